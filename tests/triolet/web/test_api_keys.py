"""API keys as they are written in options and files."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.errors import UsageError
from triolet.web.api_keys import ApiKey, digest_of, parse_key_file, parse_keys

ALICE = ApiKey(name="alice", digest=digest_of("a1"), max_concurrent_requests=2, max_requests_per_minute=60)
ROOT = ApiKey(name="root", digest=digest_of("r1"), is_admin=True)


def test_an_option_holds_one_key_or_several_with_names() -> None:
    assert parse_keys(None, option="api_key") == []
    assert parse_keys("s3cret=", option="api_key") == [ApiKey(name="default", digest=digest_of("s3cret="))]
    assert parse_keys("a:1  b:2:3", option="api_key") == [
        ApiKey(name="a", digest=digest_of("1")),
        ApiKey(name="b", digest=digest_of("2:3")),
    ]
    [admin] = parse_keys("k", option="admin_api_key", is_admin=True)
    assert (admin.name, admin.is_admin) == ("admin", True)


@pytest.mark.parametrize("text", ["one two", " ", "a:1 a:2", "a:", ":k"])
def test_an_option_that_is_wrong_names_itself_and_no_key(text: str) -> None:
    with pytest.raises(UsageError, match="--api-key") as caught:
        parse_keys(text, option="api_key")
    assert caught.value.param == "api_key"


def test_a_file_is_json_or_lines() -> None:
    lines = "# people\n\nalice a1 max_concurrent_requests=2 max_requests_per_minute=60\nroot r1 admin\n"
    entries = [
        {"name": "alice", "key": "a1", "max_concurrent_requests": 2, "max_requests_per_minute": 60},
        {"name": "root", "key": "r1", "admin": True},
    ]
    assert parse_key_file(lines.encode(), "keys") == [ALICE, ROOT]
    assert parse_key_file(json.dumps(entries).encode(), "keys") == [ALICE, ROOT]
    assert parse_key_file(b"", "keys") == []


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"alice", "line 1: must be a name and a key"),
        (b"ok k\nalice s3cret speed=2", "unknown field `speed` of key 'alice'"),
        (b"alice s3cret max_concurrent_requests=0", "max_concurrent_requests"),
        (b"alice s3cret max_concurrent_requests=many", "max_concurrent_requests"),
        (b"a s3cret\na other", "'a' names two keys"),
        (b'[{"name": "alice"}]', "missing required field `key` of key 'alice'"),
        (b'[{"name": "", "key": "s3cret"}]', "name"),
        (b"[5]", "Expected `object`"),
        (b"[{", "neither JSON nor text"),
        (b"\xff\xfe", "neither JSON nor text"),
    ],
)
def test_a_file_that_is_wrong_says_where_and_tells_no_key(data: bytes, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_key_file(data, "keys.txt")
    message = caught.value.message
    assert told in message
    assert message.startswith("--api-key-file keys.txt")
    assert "s3cret" not in message


@given(st.binary() | st.text().map(str.encode))
def test_whatever_is_in_the_file_the_error_is_a_usage_error(data: bytes) -> None:
    try:
        keys = parse_key_file(data, "keys")
    except UsageError:
        return
    assert len({key.name for key in keys}) == len(keys)
