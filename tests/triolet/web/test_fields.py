"""Which fields may be ignored, and with which values."""

from __future__ import annotations

import msgspec
import pytest

from triolet.errors import InvalidRequestError
from triolet.web.fields import CHAT_NEUTRAL, HARMLESS, check_other_fields, is_neutral
from triolet.web.schema import ChatBody


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def test_null_and_neutral_values_are_neutral_but_true_is_not_one() -> None:
    assert is_neutral(None, ())
    assert is_neutral(1.0, (1,))
    assert not is_neutral(True, (1,))
    assert not is_neutral(0, (False,))
    assert not is_neutral([1], ([],))


def test_no_field_is_both_served_and_ignored() -> None:
    served = set(ChatBody.__struct_fields__)
    assert not served & HARMLESS
    assert not served & CHAT_NEUTRAL.keys()
    assert not HARMLESS & CHAT_NEUTRAL.keys()


def test_known_and_harmless_fields_pass_unread() -> None:
    check_other_fields({"a": msgspec.Raw(b"?"), "store": msgspec.Raw(b"?")}, {"a"}, {})


@pytest.mark.parametrize(
    ("value", "words"), [(raw(2), "does not support"), (msgspec.Raw(b"[" * 100_000), "recursion")]
)
def test_an_unserved_field_is_refused(value: msgspec.Raw, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        check_other_fields({"n": value}, (), {"n": (1,)})
    assert caught.value.param == "n"


def test_an_unknown_field_is_refused_unless_null() -> None:
    check_other_fields({"new": raw(None)}, (), {})
    with pytest.raises(InvalidRequestError, match="unknown field"):
        check_other_fields({"new": raw(0)}, (), {})


def test_a_very_long_name_is_not_told_again() -> None:
    with pytest.raises(InvalidRequestError, match="unknown field") as caught:
        check_other_fields({"x" * 10**6: raw(0)}, (), {})
    assert len(caught.value.message) < 300


def test_a_field_without_a_name_is_named_all_the_same() -> None:
    with pytest.raises(InvalidRequestError, match=r'^"": unknown field') as caught:
        check_other_fields({"": raw(0)}, (), {})
    assert caught.value.param == '""'


def test_a_slip_of_the_pen_is_told_the_name_that_was_meant() -> None:
    with pytest.raises(InvalidRequestError, match=r"max_token: unknown field; did you mean max_tokens\?"):
        check_other_fields({"max_token": raw(5)}, {"max_tokens"}, {})


def test_a_field_that_was_given_up_is_told_its_successor() -> None:
    for name, successor in (("guided_json", "structured_outputs.json"), ("functions", "tools")):
        with pytest.raises(InvalidRequestError, match=f"{name}: .*; send {successor}$"):
            check_other_fields({name: raw([1])}, (), CHAT_NEUTRAL)
