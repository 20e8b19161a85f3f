from __future__ import annotations

import pytest

from triolet.args import ServeArgs
from triolet.cli.options import OptionParser
from triolet.cli.serve import add_arguments, serve_args
from triolet.errors import UsageError


def parse(*argv: str) -> ServeArgs:
    parser = OptionParser(prog="test")
    add_arguments(parser)
    return serve_args(parser.parse_args(argv))


def test_the_model_comes_first_or_as_a_flag() -> None:
    assert parse() == ServeArgs()
    assert parse("m.gguf", "--port", "0") == parse("--port", "0", "--model", "m.gguf")
    assert parse("m.gguf", "--model", "m.gguf").model == "m.gguf"


def test_two_models_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="two models are named, 'a' and --model 'b'"):
        parse("a", "--model", "b")
