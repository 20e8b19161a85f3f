from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from triolet.args import EngineArgs, ServeArgs
from triolet.cli.options import OptionParser, add_options, collect_options, options_of
from triolet.errors import UsageError


def parse(*argv: str) -> ServeArgs:
    parser = OptionParser(prog="test")
    add_options(parser, ServeArgs)
    return collect_options(ServeArgs, parser.parse_args(argv))


def test_nothing_given_is_the_defaults() -> None:
    assert parse() == ServeArgs()


def test_values_get_the_types_of_the_fields() -> None:
    args = parse(
        "--model", "m.gguf", "--port", "0", "--ping-interval", "2.5", "--cache-dir", "/x",
        "--served-model-name", "a", "b", "--backend", "trio", "--num-threads", "2",
    )  # fmt: skip
    assert args == ServeArgs(
        model="m.gguf", port=0, ping_interval=2.5, cache_dir=Path("/x"),
        served_model_name=("a", "b"), backend="trio", num_threads=2,
    )  # fmt: skip


def test_a_word_may_stand_for_a_number_where_the_field_has_one() -> None:
    assert parse("--max-model-len", "auto").max_model_len == "auto"
    assert parse("--max-model-len", "512").max_model_len == 512
    with pytest.raises(UsageError, match="--max-model-len: invalid int value: 'longest'"):
        parse("--max-model-len", "longest")


@pytest.mark.parametrize("cls", [EngineArgs, ServeArgs])
def test_every_field_is_an_option_with_help_and_group(cls: type[EngineArgs]) -> None:
    options = options_of(cls)
    assert sorted(option.name for option in options) == sorted(field.name for field in fields(cls))
    for option in options:
        assert option.help.endswith(".")
        assert option.group


def test_help_shows_defaults_choices_and_groups() -> None:
    parser = OptionParser(prog="test")
    add_options(parser, ServeArgs)
    text = " ".join(parser.format_help().split())
    assert "HTTP options:" in text
    assert "--backend {asyncio,trio}" in text
    assert "(default: 8000)" in text
    assert "(default: None)" not in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--port", "many"], "--port"),
        (["--backend", "gevent"], "choose from"),
        (["--max-num", "3"], "unrecognized arguments"),
        (["--max-modl-len=5"], "arguments: --max-modl-len=5; did you mean --max-model-len?"),
        (["--data-parallel-backend=ray"], "=ray; there are no backends to choose from: whatever starts"),
        (["--port", "70000"], "port (--port) must be in [0, 65535]"),
        (["--max-num-seqs", "0"], "max_num_seqs (--max-num-seqs) must be 1 or more"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(*argv)
    assert message in str(caught.value)


def test_options_can_be_left_out() -> None:
    parser = OptionParser(prog="test")
    add_options(parser, EngineArgs, omit=("seed",))
    with pytest.raises(UsageError):
        parser.parse_args(["--seed", "1"])
