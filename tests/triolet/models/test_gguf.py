"""Reading GGUF: what the ``gguf`` package writes and reads is the reference; anything else is refused."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.triolet.models.model_files import LLAMA_METADATA, llama_tensors, write_gguf

from triolet.errors import ModelFileError, ModelLoadError
from triolet.models.checkpoint import open_checkpoint
from triolet.models.gguf import TENSOR_KINDS, GGUFFile
from triolet.models.source import local_files

SMOLLM2_TOKENS = 49_152


def test_metadata_and_tensors_are_those_written(llama_gguf: Path) -> None:
    with GGUFFile(llama_gguf) as file:
        expected = {"general.architecture": "llama", **LLAMA_METADATA}
        assert {key: file.metadata[key] for key in expected} == expected
        for name, values in llama_tensors().items():
            tensor = file.tensors[name]
            assert tensor.shape == values.shape
            np.testing.assert_array_equal(file.view(tensor).view(np.float32), values.reshape(-1))


def test_a_view_lives_on_after_the_file_is_closed_and_takes_no_memory(llama_gguf: Path) -> None:
    def resident_kilobytes() -> int:
        maps = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
        mapping = maps.split(str(llama_gguf), maxsplit=1)[1]
        return int(mapping.split("Rss:", maxsplit=1)[1].split(maxsplit=1)[0])

    with GGUFFile(llama_gguf) as file:
        name, values = next(iter(llama_tensors().items()))
        view = file.view(file.tensors[name])
        assert view.any()
        assert resident_kilobytes() > 0
    assert resident_kilobytes() == 0
    np.testing.assert_array_equal(view.view(np.float32), values.reshape(-1))


def test_the_table_of_formats_is_that_of_the_gguf_package() -> None:
    for number, kind in TENSOR_KINDS.items():
        known = gguf.GGMLQuantizationType(number)
        assert (kind.name, (kind.block_size, kind.block_bytes)) == (known.name, gguf.GGML_QUANT_SIZES[known])


@pytest.mark.model
def test_a_real_file_reads_as_the_gguf_package_reads_it(default_model_path: Path) -> None:
    reader = gguf.GGUFReader(default_model_path)
    with GGUFFile(default_model_path) as file:
        fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        assert set(file.metadata) == set(fields)
        for key, field in fields.items():
            value = file.metadata[key]
            is_long = isinstance(value, list) and len(value) > 1000
            some = slice(None, None, 97) if is_long else slice(None)
            assert (value[some] if is_long else value) == (
                field.contents(some) if is_long else field.contents()
            )
        assert len(file.metadata["tokenizer.ggml.tokens"]) == SMOLLM2_TOKENS
        assert {tensor.name for tensor in reader.tensors} == set(file.tensors)
        for tensor in reader.tensors:
            ours = file.tensors[tensor.name]
            assert ours.shape == tuple(reversed([int(size) for size in tensor.shape]))
            assert (ours.kind.name, ours.offset) == (tensor.tensor_type.name, tensor.data_offset)
            assert ours.num_bytes == tensor.n_bytes


def test_views_outlive_the_file(llama_gguf: Path) -> None:
    with GGUFFile(llama_gguf) as file:
        view = file.view(file.tensors["output_norm.weight"])
    file.close()
    np.testing.assert_array_equal(view.view(np.float32), llama_tensors()["output_norm.weight"])


def test_writing_to_a_view_leaves_the_file_alone(llama_gguf: Path) -> None:
    before = llama_gguf.read_bytes()
    with GGUFFile(llama_gguf) as file:
        file.view(file.tensors["output_norm.weight"])[:] = 0
    assert llama_gguf.read_bytes() == before


def header(num_tensors: int = 0, num_pairs: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_pairs)


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def tensor(name: bytes = b"x", shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    head = string(name) + struct.pack("<I", len(shape))
    return head + struct.pack(f"<{len(shape)}QIQ", *shape, kind, offset)


def with_tensors(*tensors: bytes) -> bytes:
    return header(num_tensors=len(tensors)) + b"".join(tensors) + bytes(4096)


def pair(kind: int, value: bytes, key: bytes = b"k") -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def with_pairs(*pairs: bytes) -> bytes:
    return header(num_pairs=len(pairs)) + b"".join(pairs)


def array(kind: int, length: int, content: bytes = b"") -> bytes:
    return with_pairs(pair(9, struct.pack("<IQ", kind, length) + content))


HUGE = 2**64 - 1
ALIGNMENT = b"general.alignment"

HOSTILE = {
    "empty": (b"", "the file is empty"),
    "not gguf": (b"PK\x03\x04" * 10, "starts with b'GGUF'"),
    "truncated header": (b"GGUF\x03\x00\x00", "truncated"),
    "version 1": (header(version=1), "version 1 is not 2 or 3"),
    "big-endian": (header(version=3 << 24), "big-endian"),
    "huge tensor count": (header(num_tensors=HUGE), "18446744073709551615 tensors cannot be"),
    "huge pair count": (header(num_pairs=HUGE), "key-value pairs cannot be"),
    "more tensors than bytes": (header(num_tensors=60_000), "60000 tensors cannot be"),
    "huge key": (with_pairs(struct.pack("<Q", HUGE) + bytes(99)), "key 0: a string of 1844674407"),
    "key past the end": (with_pairs(struct.pack("<Q", 500) + b"a" * 20), "truncated"),
    "key not UTF-8": (with_pairs(pair(4, bytes(4), b"\xff")), "not valid UTF-8"),
    "key twice": (with_pairs(pair(4, bytes(4)), pair(4, bytes(4))), "'k': the key is there twice"),
    "unknown value type": (with_pairs(pair(99, bytes(8))), "unknown value type 99"),
    "boolean 2": (with_pairs(pair(7, b"\x02")), "a boolean is 0 or 1, got 2"),
    "huge string": (with_pairs(pair(8, struct.pack("<Q", HUGE))), "'k': a string of 1844674407"),
    "huge array": (array(0, HUGE), "'k': an array of 1844674407"),
    "array past the end": (array(10, 10**6), "truncated"),
    "strings past the end": (array(8, 2, struct.pack("<QQ", HUGE, 5)), "string 0 of 2 reaches past"),
    "strings end early": (array(8, 2, string(b"12345678")), "the file ends before string 1 of 2"),
    "string in array not UTF-8": (array(8, 1, string(b"\xc3\x28")), "string 0 of 1 is not valid UTF-8"),
    "nested array": (array(9, 1, bytes(30)), "array of value type 9"),
    "alignment 0": (with_pairs(pair(4, bytes(4), ALIGNMENT)), "power of two"),
    "alignment 24": (with_pairs(pair(4, struct.pack("<I", 24), ALIGNMENT)), "power of two"),
    "alignment a string": (with_pairs(pair(8, string(b"32"), ALIGNMENT)), "power of two"),
    "no dimension": (with_tensors(tensor(shape=())), "tensor 'x': has 0 dimensions"),
    "many dimensions": (with_tensors(tensor(shape=(1,) * 5)), "5 dimensions"),
    "dimension 0": (with_tensors(tensor(shape=(32, 0))), r"dimensions \[32, 0\]"),
    "negative dimension": (with_tensors(tensor(shape=(HUGE,))), r"dimensions \[1844674407"),
    "product overflow": (with_tensors(tensor(shape=(2**32, 2**32, 2**32))), "past the end of the file"),
    "unknown format": (with_tensors(tensor(kind=16)), "format 16, which is not .* known are F32, F16"),
    "part of a block": (with_tensors(tensor(shape=(33,), kind=8)), "33 values, not a multiple of Q8_0's"),
    "misaligned": (with_tensors(tensor(offset=4)), "offset 4 is not a multiple of 32"),
    "past the end": (with_tensors(tensor(offset=2**40)), "past the end of the file"),
    "offset overflow": (with_tensors(tensor(offset=2**64 - 32)), "past the end of the file"),
    "name twice": (with_tensors(tensor(), tensor(offset=128)), "tensor 'x': is there twice"),
    "overlap": (with_tensors(tensor(b"a"), tensor(b"b", offset=96)), "tensor 'b': .* 96 overlap"),
    "long name": (with_tensors(tensor(name=b"n" * 300)), "a string of 300 bytes"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_with_place_and_reason(tmp_path: Path, case: str) -> None:
    content, message = HOSTILE[case]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match=message) as error:
            GGUFFile(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert str(path) in error.value.message


def test_what_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.gguf"):
        with pytest.raises(ModelFileError, match="cannot be read"):
            GGUFFile(path)


def read_everything(path: Path) -> None:
    with open_checkpoint(local_files(path)) as checkpoint:
        for name in checkpoint.tensor_shapes:
            checkpoint.tensor(name)


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("fuzz") / "small.gguf"
    tensors: dict[str, Any] = dict(llama_tensors())
    tensors["blk.0.ffn_up.weight"] = (np.zeros((64, 34), np.uint8), "Q8_0")
    return write_gguf(path, tensors=tensors).read_bytes()


INTERESTING = st.sampled_from([0, 1, 2, 7, 8, 9, 31, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1])


@st.composite
def mutations(draw: st.DrawFn) -> list[tuple[float, bytes]]:
    """Where (as a fraction of the header) and what to write over the file."""
    value = st.one_of(
        st.binary(min_size=1, max_size=12),
        INTERESTING.map(lambda number: struct.pack("<Q", number)),
        INTERESTING.map(lambda number: struct.pack("<I", number & 0xFFFFFFFF)),
    )
    return draw(st.lists(st.tuples(st.floats(0, 1), value), min_size=1, max_size=4))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=mutations(), kept=st.one_of(st.just(1.0), st.floats(0, 1)))
def test_a_mutated_file_fails_with_our_errors_only(
    tmp_path: Path, small_file: bytes, changes: list[tuple[float, bytes]], kept: float
) -> None:
    content = bytearray(small_file)
    header_bytes = len(content) - sum(values.nbytes for values in llama_tensors().values()) // 2
    for fraction, value in changes:
        start = int(fraction * header_bytes)
        content[start : start + len(value)] = value
    path = tmp_path / "mutated.gguf"
    path.write_bytes(content[: int(kept * len(content))])
    with suppress(ModelLoadError):
        read_everything(path)
