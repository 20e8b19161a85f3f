from __future__ import annotations

import warnings
from typing import Any

import pytest

from triolet.errors import UsageError
from triolet.frontend.offline_options import CompilationConfig, KVTransferConfig, engine_options


def test_options_of_the_engine_pass_through() -> None:
    options = {"model": "x", "max_num_seqs": 3}
    assert engine_options(options) == options


def test_swap_space_is_dropped_with_a_warning() -> None:
    options = {"swap_space": 4, "seed": 1}
    with pytest.warns(DeprecationWarning, match="swap_space"):
        assert engine_options(options) == {"seed": 1}
    assert options == {"swap_space": 4, "seed": 1}, "the caller's own"


def test_several_engines_are_an_option_like_others() -> None:
    assert engine_options({"data_parallel_size": 4}) == {"data_parallel_size": 4}


def test_workers_that_would_do_nothing_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="renderer_num_workers has no effect"):
        assert engine_options({"renderer_num_workers": 4}) == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert engine_options({"renderer_num_workers": 1}) == {}


@pytest.mark.parametrize("value", [None, 0, 3, {}, {"mode": 2}, CompilationConfig(mode=1)], ids=repr)
def test_how_much_to_compile_is_a_hint_in_any_form(value: object) -> None:
    assert engine_options({"compilation_config": value}) == {}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (4, r"mode: must be an integer in \[0, 3\], got 4"),
        (-1, "mode"),
        (True, "mode"),
        ({"mode": "fast"}, "mode: .*'fast'"),
        ({"backend": "x"}, "backend"),
        ("x", "must be a dict, got str"),
        ([1], "must be a dict, got list"),
    ],
    ids=repr,
)
def test_what_is_no_such_hint_is_refused_with_its_cause(value: object, words: str) -> None:
    with pytest.raises(UsageError, match=rf"Invalid 'compilation_config' provided: .*{words}") as caught:
        engine_options({"compilation_config": value})
    assert caught.value.param == "compilation_config"
    assert isinstance(caught.value.__cause__, ValueError | TypeError)


@pytest.mark.parametrize("value", [None, {}, {"kv_connector": None}, KVTransferConfig()], ids=repr)
def test_handing_on_nothing_is_what_this_engine_does(value: object) -> None:
    assert engine_options({"kv_transfer_config": value}) == {}


@pytest.mark.parametrize("value", [{"kv_connector": "Some"}, {"kv_role": "kv_both"}, 5, "x"], ids=repr)
def test_handing_on_anything_is_refused_with_its_cause(value: Any) -> None:
    with pytest.raises(UsageError, match="Invalid 'kv_transfer_config' provided") as caught:
        engine_options({"kv_transfer_config": value})
    assert repr(value) in caught.value.message
    assert isinstance(caught.value.__cause__, ValueError | TypeError)


@pytest.mark.parametrize("name", ["enforce_eager", "trust_remote_code"])
def test_what_has_no_effect_is_dropped_with_its_reason(name: str) -> None:
    with pytest.warns(UserWarning, match=f"{name} has no effect here: .*; remove it"):
        assert engine_options({name: True, "seed": 1}) == {"seed": 1}
