from __future__ import annotations

import asyncio

import pytest
from bench.client import Address, BenchError, ChunkedDecoder, Timed, stream_request
from hypothesis import given
from hypothesis import strategies as st
from tests.openai_server import canned_server


@given(st.lists(st.binary(min_size=1, max_size=50)), st.integers(1, 17))
def test_chunks_come_out_whole_whatever_the_sizes_bytes_arrive_in(chunks: list[bytes], size: int) -> None:
    wire = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    decoder = ChunkedDecoder()
    body = b"".join(decoder.feed(wire[i : i + size]) for i in range(0, len(wire), size))
    assert body == b"".join(chunks)
    assert decoder.is_finished


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000/v1", Address("127.0.0.1", 8000, "/v1")),
        ("http://host/v1/", Address("host", 80, "/v1")),
        ("http://host:1", Address("host", 1, "")),
    ],
)
def test_addresses(url: str, address: Address) -> None:
    assert Address.parse(url) == address


def test_an_address_of_another_kind_is_an_error() -> None:
    with pytest.raises(BenchError, match="must look like"):
        Address.parse("https://host/v1")


def ask(url: str, path: str = "/completions", **body: object) -> Timed:
    return asyncio.run(stream_request(Address.parse(url), path, {"model": "m", **body}, 10.0))


@pytest.mark.parametrize("path", ["/completions", "/chat/completions"])
def test_a_stream_is_timed_and_its_tokens_counted_by_the_server(path: str) -> None:
    with canned_server() as server:
        timed = ask(server.url, path, max_tokens=20)
    assert (timed.prompt_tokens, timed.output_tokens) == (100, 20)
    assert len(timed.gaps) == 19
    assert 0 < timed.time_to_first_token <= timed.latency
    assert timed.latency == pytest.approx(timed.time_to_first_token + sum(timed.gaps))


def test_a_refusal_is_an_error_with_the_servers_words() -> None:
    refusal = (429, {"error": {"message": "queue full"}})
    with canned_server(error=refusal) as server, pytest.raises(BenchError, match=r"status 429.*queue full"):
        ask(server.url)


def test_an_error_in_the_stream_is_an_error() -> None:
    with (
        canned_server(mid_stream_error="engine died") as server,
        pytest.raises(BenchError, match="engine died"),
    ):
        ask(server.url)


def test_nobody_there_is_an_error() -> None:
    with pytest.raises(BenchError, match="ConnectionRefusedError"):
        ask("http://127.0.0.1:9/v1")
