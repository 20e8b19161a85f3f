"""API keys as they are written in options and files."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.errors import UsageError
from triolet.web.api_keys import ApiKey, check_distinct, digest_of, parse_key_file, parse_keys

FILE = "--api-key-file keys"
FLAG = "--api-key (TRIOLET_API_KEY)"


def key(name: str, secret: str, source: str, **others: Any) -> ApiKey:
    return ApiKey(name=name, digest=digest_of(secret), source=source, **others)


ALICE = key("alice", "a1", FILE, max_concurrent_requests=2, max_requests_per_minute=60)
ROOT = key("root", "r1", FILE, is_admin=True)


def test_an_option_holds_one_key_or_several_with_names() -> None:
    assert parse_keys(None, option="api_key") == []
    assert parse_keys("s3cret=", option="api_key") == [key("default", "s3cret=", FLAG)]
    assert parse_keys("a:1  b:2:3", option="api_key") == [key("a", "1", FLAG), key("b", "2:3", FLAG)]
    [admin] = parse_keys("k", option="admin_api_key", is_admin=True)
    assert (admin.name, admin.is_admin) == ("admin", True)
    assert admin.source == "--admin-api-key (TRIOLET_ADMIN_API_KEY)"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("s3cret one", "'default' names two keys"),
        (" ", "holds no key"),
        ("a:s3cret a:2", "'a' names two keys"),
        ("a:s3cret b:s3cret", "'a' and 'b' are the same key"),
        ("a:", "key 1: .*length >= 1.* `key`"),
        ("x:1 :s3cret", "key 2: .*length >= 1.* `name`"),
        ("s3cret" * 20 + ":x", "key 1: .*length <= 64.* `name`"),
        ("s3crét", "key 1: the key can never be sent in a header.*printable ASCII"),
        ("s3cret\x7f", "key 1: the key can never be sent"),
        ("s3cret\udcff", "key 1: the key can never be sent"),
    ],
)
def test_an_option_that_is_wrong_names_itself_and_no_key(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(FLAG)}: {told}") as caught:
        parse_keys(text, option="api_key")
    assert caught.value.param == "api_key"
    assert "s3cr" not in caught.value.message


def test_a_file_is_json_or_lines() -> None:
    lines = "# people\n\nalice a1 max_concurrent_requests=2 max_requests_per_minute=60\nroot r1 admin\n"
    entries = [
        {"name": "alice", "key": "a1", "max_concurrent_requests": 2, "max_requests_per_minute": 60},
        {"name": "root", "key": "r1", "admin": True},
    ]
    assert parse_key_file(lines.encode(), "keys") == [ALICE, ROOT]
    assert parse_key_file(lines.encode("utf-8-sig"), "keys") == [ALICE, ROOT]
    assert parse_key_file(json.dumps(entries).encode(), "keys") == [ALICE, ROOT]
    assert parse_key_file(b"", "keys") == []


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"s3cret", "line 1: must be a name and a key"),
        (b"ok k\nalice my s3cret", "line 2: after name and key, in which there is no space, may come admin"),
        (b"alice my s3cret=2", "line 1: after name and key"),
        (b"alice other key=s3cret", "line 1: after name and key"),
        (
            b"alice s3cret max_concurrent_requests=0",
            "line 1: Expected `int` >= 1 - at `max_",
        ),
        (b"alice k max_concurrent_requests=s3cret", "line 1: Expected `int | null`, got `str` - at `max_"),
        (b"a s3cret\na other", "'a' names two keys"),
        (b"a s3cret\nb s3cret admin", "'a' and 'b' are the same key"),
        ("a x\nb s3crét".encode(), "line 2: the key can never be sent in a header"),
        (b'[{"name": "alice"}]', "entry 1: Object missing required field `key`"),
        (b'[{"name": "", "key": "s3cret"}]', "name"),
        (b'[{"name": "a", "key": "my s3cret"}]', "entry 1: the key can never be sent"),
        (b'[{"s3cret": "alice"}]', "entry 1: may have no fields but name, key, admin, "),
        (b"[5]", "entry 1: Expected `object`"),
        (b"[{", "neither JSON nor text"),
        (b"\xff\xfe", "neither JSON nor text"),
    ],
)
def test_a_file_that_is_wrong_says_where_and_tells_no_key(data: bytes, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_key_file(data, "keys.txt")
    message = caught.value.message
    assert told in message
    assert message.startswith("--api-key-file keys.txt: ")
    assert "s3cr" not in message


def test_keys_of_several_sources_are_told_apart_by_both() -> None:
    ordinary = parse_keys("s3cret", option="api_key")
    admin = parse_keys("admin:s3cret", option="admin_api_key", is_admin=True)
    both = re.escape(f"{FLAG} and --admin-api-key (TRIOLET_ADMIN_API_KEY): ")
    with pytest.raises(UsageError, match=f"^{both}'default' and 'admin' are the same key"):
        check_distinct([*ordinary, *admin], "admin_api_key")
    both = re.escape(f"{FLAG} and {FILE}: ")
    with pytest.raises(UsageError, match=f"^{both}'default' names two keys"):
        check_distinct([*ordinary, *parse_key_file(b"default other", "keys")], "api_key_file")


@given(st.binary() | st.text().map(str.encode))
def test_whatever_is_in_the_file_the_error_is_a_usage_error(data: bytes) -> None:
    try:
        keys = parse_key_file(data, "keys")
    except UsageError:
        return
    assert len({key.name for key in keys}) == len(keys)
