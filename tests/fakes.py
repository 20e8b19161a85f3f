"""Fakes shared by the tests: a model runner without a model, and a tokeniser of 256 bytes.

The runner computes tokens from the plan alone, so a test can say beforehand what comes out; it can be held
at a step, made to fail, and counts what it did.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from triolet.args import EngineArgs
from triolet.cluster.client import ClientFactory, EngineClient
from triolet.core.engine_core import CoreFactory, EngineCore, build_core
from triolet.core.service import CoreService
from triolet.plan import LayerGroup, StepPlan, StepResult
from triolet.request import Request, TokenLogprobs

__all__ = ["EOS_ID", "FakeRunner", "fake_client", "fake_core", "fake_core_factory", "write_byte_model"]

VOCAB_SIZE = 258
BOS_ID = 256
EOS_ID = 257


def alphabet(request: Request, position: int) -> int:
    """Tokens spell the alphabet over and over, by position in the sequence."""
    return ord("a") + position % 26


def logprobs_of(token_id: int, num_top: int) -> TokenLogprobs:
    """As if the token were the likeliest by far, and those after it less and less likely."""
    top = tuple((token_id + offset) % VOCAB_SIZE for offset in range(num_top))
    values = (-0.5, *(-0.5 - 2.0 * offset for offset in range(num_top)))
    return TokenLogprobs((token_id, *top), values, 1)


class FakeRunner:
    """A model runner whose token after position p is ``next_token(request, p)``.

    Clear ``gate`` to hold the next step on the device thread; ``is_held`` is set while one is held. ``fail``
    is called with each plan and may raise; with one without rows when the device is tried out.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 256,
        block_size: int = 8,
        max_model_len: int = 512,
        next_token: Callable[[Request, int], int] = alphabet,
        fail: Callable[[StepPlan], None] | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.layer_groups = (LayerGroup(num_blocks=num_blocks),)
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.vocab_size = VOCAB_SIZE
        self.next_token = next_token
        self.fail = fail
        self.gate = threading.Event()
        self.gate.set()
        self.is_held = threading.Event()
        self.num_steps = 0
        self.is_closed = False
        self.missing: set[str] = set()
        self.threads: set[int] = set()

    def execute(self, plan: StepPlan) -> StepResult:
        assert not self.is_closed, "a step after close()"
        assert not self.missing, "a step while asleep"
        self.threads.add(threading.get_ident())
        if not self.gate.is_set():
            self.is_held.set()
            assert self.gate.wait(30), "nobody opened the gate"
            self.is_held.clear()
        if self.fail is not None:
            self.fail(plan)
        self.num_steps += 1
        sampled = [row for row in plan.rows if row.is_sampled]
        tokens = tuple(self.next_token(row.request, row.start + row.num_tokens) for row in sampled)
        return StepResult(
            step_id=plan.step_id,
            token_ids=tuple((token,) for token in tokens),
            logprobs=tuple(
                None if row.request.num_logprobs is None else (logprobs_of(token, row.request.num_logprobs),)
                for row, token in zip(sampled, tokens, strict=True)
            ),
            errors={},
        )

    def probe(self) -> None:
        if self.fail is not None:
            self.fail(StepPlan(step_id=-1, rows=()))

    def release(self) -> None:
        self.missing = {"weights", "kv_cache"}

    def restore(self, part: str) -> None:
        self.missing.discard(part)

    def close(self) -> None:
        self.is_closed = True


def fake_core(runner: FakeRunner, args: EngineArgs | None = None) -> EngineCore:
    """An engine core around a fake runner."""
    return build_core(runner, args or EngineArgs())


def fake_client(runner: FakeRunner, *, depth: int = 1) -> ClientFactory:
    """What ``Engine(client_factory=…)`` takes, for a fake runner."""

    def make(args: EngineArgs, files: object, on_phase: Callable[[str], None]) -> EngineClient:
        return CoreService(lambda on_phase: fake_core(runner, args), depth=depth)

    return make


def fake_core_factory(runner: FakeRunner) -> CoreFactory:
    """What ``LLM(core_factory=…)`` takes, for a fake runner."""

    def make(args: EngineArgs, files: object, on_phase: Callable[[str], None]) -> EngineCore:
        return fake_core(runner, args)

    return make


def write_byte_model(folder: Path, *, chat_template: str | None = None) -> Path:
    """A Hugging Face directory with a tokeniser of one token per byte, and weights that nobody can load."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    spelling = _bytes_to_unicode()
    assert set(spelling.values()) == set(alphabet), "the byte-level alphabet"
    vocabulary = {spelling[byte]: byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    if chat_template is not None:
        config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "eos_token_id": EOS_ID})
    )
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def _bytes_to_unicode() -> dict[int, str]:
    """The printable stand-in of each byte in a byte-level vocabulary (Radford 2019)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(rest)}
