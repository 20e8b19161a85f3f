"""Models of real shapes with random weights, and the engine's own runner made to run steps of them.

Figures of speed do not depend on what weights hold. Plans are made here rather than by a scheduler, so that a
decode at any context takes no prompt. Knows nothing of what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, NoReturn, Self

import torch
from numpy.typing import NDArray
from torch import Tensor

from triolet.args import EngineArgs
from triolet.models.config import ExpertsConfig, ModelConfig, RopeConfig
from triolet.models.decoder import Decoder
from triolet.models.loader import load_model
from triolet.models.registry import model_type
from triolet.plan import PlanRow, StepPlan, StepResult
from triolet.request import Request
from triolet.runtime.accelerator import CaptureError, Device, Graph
from triolet.runtime.cuda import CudaDevice
from triolet.runtime.kv_cache import KVCacheConfig, allocate_kv_cache
from triolet.runtime.loading import LoadedModel
from triolet.runtime.overlapped_runner import OverlappedRunner
from triolet.runtime.residence import Sources
from triolet_kernels.ops import Ops

__all__ = ["MODELS", "Batch", "EagerDevice", "HostDevice", "RandomModel", "RandomWeights", "num_parameters"]

BLOCK_SIZE = 32
NUM_BLOCKS_EACH = 64
"""Of the cache, for a sequence that is generated here."""


def _config(architecture: str, **sizes: Any) -> ModelConfig:
    theta = sizes.pop("theta")
    return ModelConfig(
        architecture=architecture,
        rope=RopeConfig(theta=theta, dim=sizes["head_dim"]),
        windows=(None,) * sizes["num_layers"],
        attention_scale=sizes["head_dim"] ** -0.5,
        max_position_embeddings=40960,
        **sizes,
    )


MODELS: Mapping[str, ModelConfig] = {
    "Llama 3 8B": _config(
        "llama", vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_layers=32, num_heads=32,
        num_kv_heads=8, head_dim=128, rms_norm_eps=1e-5, theta=500_000.0,
    ),
    "Qwen3 4B": _config(
        "qwen3", vocab_size=151936, hidden_size=2560, intermediate_size=9728, num_layers=36, num_heads=32,
        num_kv_heads=8, head_dim=128, rms_norm_eps=1e-6, theta=1e6, has_qk_norm=True, is_embedding_tied=True,
    ),
    "a quarter of Qwen3 30B A3B": _config(
        "qwen3_moe", vocab_size=151936, hidden_size=2048, intermediate_size=768, num_layers=12, num_heads=32,
        num_kv_heads=4, head_dim=128, rms_norm_eps=1e-6, theta=1e6, has_qk_norm=True,
        experts=ExpertsConfig(count=128, num_chosen=8, is_normalized=True),
    ),
    "tiny": _config(
        "llama", vocab_size=300, hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4,
        num_kv_heads=2, head_dim=16, rms_norm_eps=1e-5, theta=10_000.0,
    ),
    "tiny mixture": _config(
        "mixtral", vocab_size=300, hidden_size=64, intermediate_size=32, num_layers=2, num_heads=4,
        num_kv_heads=2, head_dim=16, rms_norm_eps=1e-5, theta=10_000.0,
        experts=ExpertsConfig(count=4, num_chosen=2, is_normalized=True),
    ),
}  # fmt: skip


def num_parameters(config: ModelConfig, num_tokens: int | None = None) -> int:
    """Weights of matrices that a token may be multiplied with: the embedding only as the output projection.

    With ``num_tokens``, those that so many are multiplied with on average, if all experts are equally likely.
    """
    shapes = model_type(config.architecture).shapes(config)
    sizes = {name: shape[0] * shape[1] for name, shape in shapes.items() if len(shape) == 2}
    in_experts = sum(size for name, size in sizes.items() if ".experts." in name)
    total = sum(sizes.values())
    if config.experts is not None and num_tokens is not None:
        share_missed = (1 - config.experts.num_chosen / config.experts.count) ** num_tokens
        total -= int(in_experts * share_missed)
    return total if config.is_embedding_tied else total - config.vocab_size * config.hidden_size


class RandomWeights:
    """A checkpoint that is nowhere: matrices that keep the size of what goes through them, norms of one."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self.config = config
        self.tensor_shapes = model_type(config.architecture).shapes(config)
        self._generator = torch.Generator(device).manual_seed(1)
        self._device = device

    def tensor(self, name: str) -> Tensor:
        shape = self.tensor_shapes[name]
        if len(shape) == 1:
            return torch.ones(shape, device=self._device)
        values = torch.empty(shape, dtype=torch.bfloat16, device=self._device)
        return values.normal_(0.0, shape[-1] ** -0.5, generator=self._generator)

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class EagerDevice(CudaDevice):
    """A GPU on which every step is run as it stands."""

    def capture(self, function: Callable[[], Tensor], pool: object) -> NoReturn:
        raise CaptureError("no graphs are wanted here")


class HostDevice:
    """The CPU in the place of a device, to see that a script runs: everything is done at once."""

    torch_device = torch.device("cpu")

    def pinned(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def upload(self, source: Tensor, target: Tensor) -> None:
        target.copy_(source)

    def fetch(self, tensors: Sequence[Tensor]) -> _Fetched:
        return _Fetched([tensor.clone() for tensor in tensors])

    def graph_pool(self) -> object:
        return None

    def capture(self, function: Callable[[], Tensor], pool: object) -> Graph:
        raise CaptureError("a CPU has no graphs")

    def synchronize(self) -> None: ...

    def peak_memory(self, function: Callable[[], object]) -> int:
        function()
        return 0

    def graph_memory(self, function: Callable[[], Tensor]) -> NoReturn:
        raise CaptureError("a CPU has no graphs")


@dataclass
class _Fetched:
    values: list[Tensor]

    def wait(self) -> list[NDArray[Any]]:
        return [value.numpy() for value in self.values]


@dataclass
class Batch:
    """Sequences of one ``context`` that generate; each has blocks of its own as long as there are enough.

    ``asking``: what they ask for beside a token.
    """

    size: int
    context: int
    num_blocks: int
    num_steps: int = 0
    asking: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        prompt = (1,) * self.context
        self._requests = [
            Request(request_id=slot, prompt_token_ids=prompt, max_tokens=10**6, seed=slot, **self.asking)
            for slot in range(self.size)
        ]

    def plan(self) -> StepPlan:
        """The next step: tokens are not known yet, but in the first."""
        rows = tuple(self._row(slot) for slot in range(self.size))
        self.num_steps += 1
        return StepPlan(step_id=self.num_steps, rows=rows)

    def _row(self, slot: int) -> PlanRow:
        start = self.context + self.num_steps
        is_first = self.num_steps == 0
        per_sequence = -(-(self.context + 256) // BLOCK_SIZE)
        first = slot * per_sequence
        num_new = per_sequence if is_first else 0
        blocks = tuple((first + index) % self.num_blocks for index in range(num_new))
        return PlanRow(
            request=self._requests[slot],
            slot=slot,
            start=start,
            num_tokens=1,
            token_ids=(1,) if is_first else (),
            first_new_block=0 if is_first else per_sequence,
            new_block_ids=(blocks,),
            is_sampled=True,
            history=(*self._requests[slot].prompt_token_ids, 1) if is_first else None,
        )


class RandomModel:
    """A model and what it takes to run it, with ``cache_bytes`` of KV cache."""

    def __init__(
        self,
        config: ModelConfig,
        ops: Ops,
        device: torch.device,
        *,
        dtype: torch.dtype,
        cache_bytes: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        cache_config = KVCacheConfig.of(
            config,
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=max_num_batched_tokens,
            dtype=dtype,
            device=device,
        )
        self.bytes_per_block = cache_config.bytes_per_block(0)
        self.num_blocks = cache_bytes // self.bytes_per_block
        self.model: Decoder = torch.inference_mode()(load_model)(
            RandomWeights(config, device),
            ops,
            dtype=dtype,
            device=device,
            num_positions=config.max_position_embeddings,
        )
        self.loaded = LoadedModel(
            model=self.model,
            kv_cache=allocate_kv_cache(cache_config, [self.num_blocks + 1]),
            layer_groups=cache_config.layer_groups([self.num_blocks]),
            vocab_size=config.vocab_size,
            max_model_len=config.max_position_embeddings,
            device=device,
            ops=ops,
            sources=Sources(lambda: self.model, lambda: self.loaded.kv_cache),
            draft_model=None,
        )
        self.args = EngineArgs(
            kernels="reference",  # of the host, which draws nothing here
            block_size=BLOCK_SIZE,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        )

    def runner(self, *, captures: bool = True) -> OverlappedRunner:
        device: Device = HostDevice()
        if self.device.type != "cpu":
            device = CudaDevice(self.device) if captures else EagerDevice(self.device)
        return OverlappedRunner(self.loaded, self.args, device)

    def cache_bytes_of(self, batch: int, context: int) -> int:
        """What a decode step reads of the KV cache."""
        return batch * context * self.bytes_per_block // BLOCK_SIZE

    def weight_bytes_of(self, batch: int) -> int:
        """What a decode step reads of the weights."""
        return num_parameters(self.config, batch) * self.dtype.itemsize

    def prefill_plan(self, num_tokens: int) -> StepPlan:
        """One prompt, in one step."""
        tokens = tuple(index % self.config.vocab_size for index in range(num_tokens))
        request = Request(request_id=0, prompt_token_ids=tokens, max_tokens=1, seed=0)
        row = PlanRow(
            request=request,
            slot=0,
            start=0,
            num_tokens=num_tokens,
            token_ids=tokens,
            first_new_block=0,
            new_block_ids=(tuple(range(-(-num_tokens // BLOCK_SIZE))),),
            is_sampled=True,
            history=tokens,
        )
        return StepPlan(step_id=0, rows=(row,))

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        num_tokens: int,
        *,
        overlaps: bool = True,
        captures: bool = True,
    ) -> list[list[int]]:
        """A few greedy tokens after each prompt, each step launched before the last is known, or after."""
        runner, taken = self.runner(captures=captures), list[list[int]]()
        rows = [self._first_row(slot, prompt) for slot, prompt in enumerate(prompts)]
        waiting: list[Callable[[], StepResult]] = []
        for step in range(num_tokens):
            waiting.append(runner.launch(StepPlan(step_id=step, rows=tuple(rows))))
            if step or not overlaps:
                taken.append([tokens[0] for tokens in waiting.pop(0)().token_ids])
            for slot, row in enumerate(rows):
                rows[slot] = replace(
                    row, start=len(prompts[slot]) + step, num_tokens=1, first_new_block=NUM_BLOCKS_EACH,
                    token_ids=() if overlaps else (taken[-1][slot],), new_block_ids=((),), history=None,
                )  # fmt: skip
        taken += [[tokens[0] for tokens in take().token_ids] for take in waiting]
        runner.close()
        return [list(tokens) for tokens in zip(*taken, strict=True)]

    def _first_row(self, slot: int, prompt: Sequence[int]) -> PlanRow:
        row = self.prefill_plan(len(prompt)).rows[0]
        first = slot * NUM_BLOCKS_EACH
        blocks = tuple(range(first, first + NUM_BLOCKS_EACH))
        request = replace(row.request, request_id=slot, prompt_token_ids=tuple(prompt))
        return replace(
            row, request=request, slot=slot, token_ids=tuple(prompt), new_block_ids=(blocks,),
            history=tuple(prompt),
        )  # fmt: skip
