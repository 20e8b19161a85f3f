"""Logits of tiny random models of every architecture against ``transformers``, float32, eager attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.paged import PagedModel
from tests.tiny_models import GGUF_MODELS, TINY_MODELS, build_tiny_model, load_dequantised, save_gguf
from torch import Tensor

from triolet.models.checkpoint import open_checkpoint
from triolet.models.decoder import Decoder
from triolet.models.loader import load_model
from triolet.models.source import local_files
from triolet_kernels.cpu.program import ProgramRunner
from triolet_kernels.ops import Ops, select_ops

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
LIMIT = 1e-4
LENGTHS = (57, 1, 23, 8)
NUM_GREEDY = 8


@dataclass(frozen=True, slots=True)
class Expected:
    """A model on disk, prompts, the logits of ``transformers`` at each of their positions, and the tokens
    with which it goes on greedily after the third prompt."""

    path: Path
    prompts: list[list[int]]
    logits: list[Tensor]
    continuation: list[int]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    assert actual.shape == expected.shape
    assert actual.dtype == torch.float32
    assert torch.isfinite(actual).all()
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def make_prompts(vocab_size: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocab_size, (length,), generator=generator).tolist() for length in LENGTHS]


def compute_logits(model: Any, prompts: list[list[int]]) -> list[Tensor]:
    with torch.inference_mode():
        return [model(torch.tensor([prompt])).logits[0] for prompt in prompts]


def continue_greedily(model: Any, prompt: list[int]) -> list[int]:
    tokens = list(prompt)
    for _ in range(NUM_GREEDY):
        tokens.append(int(compute_logits(model, [tokens])[0][-1].argmax()))
    return tokens[len(prompt) :]


@pytest.fixture(scope="module", params=TINY_MODELS)
def expected(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    model = build_tiny_model(request.param)
    path = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(path)
    prompts = make_prompts(model.config.vocab_size)
    return Expected(path, prompts, compute_logits(model, prompts), continue_greedily(model, prompts[2]))


@pytest.fixture(scope="module", params=[True, False], ids=["reference", "fast"])
def ops(request: pytest.FixtureRequest) -> Ops:
    return select_ops(CPU, is_reference=request.param)


@pytest.fixture(scope="module")
def model(expected: Expected, ops: Ops) -> Decoder:
    return load(expected.path, ops)


def load(path: Path, ops: Ops) -> Decoder:
    with open_checkpoint(local_files(path)) as checkpoint:
        return load_model(checkpoint, ops, dtype=torch.float32, device=CPU)


def test_logits_at_every_position(model: Decoder, expected: Expected) -> None:
    for prompt, logits in zip(expected.prompts, expected.logits, strict=True):
        actual = PagedModel(model).step({0: prompt})[0]
        assert relative_error(actual, logits) <= LIMIT


def test_greedy_tokens(model: Decoder, expected: Expected) -> None:
    paged, tokens = PagedModel(model), list[int]()
    last = expected.prompts[2]
    while len(tokens) < NUM_GREEDY:
        last = [int(paged.step_last({0: last})[0].argmax())]
        tokens += last
    assert tokens == expected.continuation


def split_at(values: list[int], *ends: int) -> Iterator[list[int]]:
    for start, end in zip((0, *ends), (*ends, len(values)), strict=True):
        yield values[start:end]


def test_a_prompt_in_parts_is_the_whole_prompt(model: Decoder, expected: Expected) -> None:
    paged = PagedModel(model)
    parts = split_at(expected.prompts[0], 5, 6, 7, 24, 40)
    actual = torch.cat([paged.step({0: part})[0] for part in parts])
    assert relative_error(actual, expected.logits[0]) <= LIMIT


def test_rows_of_a_ragged_batch_are_the_rows_alone(model: Decoder, expected: Expected) -> None:
    paged = PagedModel(model)
    long, single, middle, short = expected.prompts
    paged.step({0: long[:40], 2: middle[:22]})
    actual = paged.step({3: short, 0: long[40:], 1: single, 2: middle[22:]})
    whole = expected.logits
    for rows, logits in zip(actual, (whole[3], whole[0][40:], whole[1], whole[2][22:]), strict=True):
        assert relative_error(rows, logits) <= LIMIT


def test_only_the_rows_asked_for(model: Decoder, expected: Expected) -> None:
    paged = PagedModel(model)
    actual = paged.step_last(dict(enumerate(expected.prompts)))
    ends = torch.stack([logits[-1] for logits in expected.logits])
    assert relative_error(actual, ends) <= LIMIT
    nothing = paged.step_none({0: expected.prompts[0][:3]})
    assert nothing.shape == (0, model.config.vocab_size)


def test_a_step_is_recorded_as_a_program(model: Decoder, expected: Expected, ops: Ops) -> None:
    """It asks torch for nothing, whatever the architecture: on a CPU that is what makes it fast."""
    PagedModel(model).step_last({0: expected.prompts[0]})
    if isinstance(runner := model._run_step, ProgramRunner):
        assert runner._program is not None
    else:
        assert ops.name == "reference"


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", GGUF_MODELS)
def test_gguf_file(name: str, kind: str, ops: Ops, tmp_path: Path) -> None:
    source = build_tiny_model(name)
    path = tmp_path / f"{name}.gguf"
    load_dequantised(source, save_gguf(source, path, kind))
    prompts = make_prompts(source.config.vocab_size)[:1]
    actual = PagedModel(load(path, ops)).step({0: prompts[0]})[0]
    assert relative_error(actual, compute_logits(source, prompts)[0]) <= LIMIT
