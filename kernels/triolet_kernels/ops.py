"""The operations a model is made of: one method per operation, with its contract.

:func:`select_ops` picks an implementation by device and capability. Each implementation computes the same
thing as ``reference``, within the bound its tests state. All of them are synchronous, keep no global state
and allocate their own outputs unless said otherwise.

Shapes: T tokens of a ragged batch of S sequences, H query heads, G key/value heads, D head dimension,
B tokens in a KV block. Caches are ``(num_blocks, G, B, D)``; in which order the B × D values of one block and
head lie is the implementation's own affair, so nothing else reads or writes inside a block. A cache needs no
initial values. On a CPU it may be int8, ``(num_blocks, G, B, D + 2)``: see ``reference/cache_codes.py``.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from triolet_kernels.expert_ops import ExpertOps

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from triolet_kernels.quant import QuantTensor
    from triolet_kernels.steps import StepRunner

__all__ = [
    "AttentionBatch",
    "DrawSettings",
    "DrawnTokens",
    "GatedActivation",
    "KVCache",
    "Ops",
    "RankedTokens",
    "select_ops",
]


logger = logging.getLogger("triolet.kernels")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBatch:
    """Where the tokens of a ragged batch belong. Shared by all layers of a step.

    ``positions`` (T,) int64: position of each token in its sequence.
    ``cache_slots`` (T,) int64: block id × B + offset at which the token's key and value are kept.
    ``block_tables`` (S, max_blocks) int32: entries past a sequence's last block are not read, nor, with a
    window, those of blocks that none of the sequence's tokens sees.
    ``query_starts`` (S + 1,) int32: tokens of sequence s are ``query_starts[s]:query_starts[s + 1]``.
    ``sequence_lengths`` (S,) int32: keys of sequence s, those of this step included.
    ``max_query_length``, ``max_sequence_length``: the largest of each, as plain integers.
    """

    positions: Tensor
    cache_slots: Tensor
    block_tables: Tensor
    query_starts: Tensor
    sequence_lengths: Tensor
    max_query_length: int
    max_sequence_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawSettings:
    """How to draw from each of R rows of logits; all arrays are ``(R,)`` and contiguous.

    ``temperatures`` 0 is greedy. ``uniforms`` are random numbers in [0, 1). ``top_k`` 0, ``top_p`` 1 and
    ``min_p`` 0 are off.
    """

    temperatures: NDArray[np.float64]
    uniforms: NDArray[np.float64]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """What was drawn from R rows of V logits; all arrays are ``(R,)``.

    ``highest``: a row's highest logit, or not a finite number if one is NaN or plus infinity. If it is not
    finite, the token means nothing.
    ``num_kept``: of how many of the most likely tokens the filters left the choice; V if there were none.
    """

    token_ids: NDArray[np.int64]
    highest: NDArray[np.float32]
    num_kept: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RankedTokens:
    """The K most likely tokens of N rows in order, ties by id, lowest first.

    ``token_ids (N, K)`` int64 and ``weights (N, K)`` float32, relative to the first one, at the rows'
    temperatures; -1 and 0 where there are fewer. ``totals (N,)`` float64: the weight of all tokens, 0 where
    top-p does not ask for it. ``highest (N,)``: as in :class:`DrawnTokens`.
    """

    token_ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    totals: NDArray[np.float64]
    highest: NDArray[np.float32]


MAX_DRAWN = 64
"""After how many rows tokens are drawn at once: so many rows of logits are there at a time."""

MAX_OTHERS = 64
"""How many further tokens are drawn at once."""

GatedActivation: TypeAlias = Literal["silu", "gelu"]
"""What gates go through."""

KVCache: TypeAlias = "Sequence[tuple[Tensor, Tensor]]"
"""Key and value cache of each layer."""


class Ops(ExpertOps, Protocol):
    """One implementation of every operation. Tensors are contiguous unless said otherwise."""

    name: str

    @property
    def uses_torch_threads(self) -> bool:
        """Whether torch's own threads do part of the work, with what has been packed so far.

        If not, torch is better off with one thread: its waiting threads would take cores from the kernels'.
        """
        ...

    def pack_linear(self, weight: Tensor | QuantTensor, bias: Tensor | None, dtype: torch.dtype) -> Any:
        """Prepare a weight ``(out, in)`` for :meth:`linear` with inputs of ``dtype``; done once, at load.

        The result is opaque; it may keep the weight quantised. The argument is not kept where it is copied.
        """
        ...

    def pack_vocabulary(self, weight: Tensor | QuantTensor, bias: Tensor | None, dtype: torch.dtype) -> Any:
        """As :meth:`pack_linear`, for the weight that makes logits: it is not rounded to fewer digits."""
        ...

    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """``x (T, in)`` times the packed weight, plus its bias → ``(T, out)`` in the dtype of ``x``."""
        ...

    def gated_linear(self, x: Tensor, packed: Any, activation: GatedActivation) -> Tensor:
        """:meth:`linear` of gates, then ups, then :meth:`silu_mul` or :meth:`gelu_mul` → ``(T, out / 2)``.

        What is between the two may be rounded to the dtype of ``x``, or not.
        """
        ...

    def pack_embedding(self, weight: Tensor | QuantTensor, dtype: torch.dtype) -> Any:
        """Prepare a table ``(V, hidden)`` for :meth:`embedding`; opaque."""
        ...

    def embedding(self, token_ids: Tensor, packed: Any) -> Tensor:
        """Rows of the table for ``token_ids (T,)`` int64 → ``(T, hidden)``."""
        ...

    def take_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        """``x[rows]``: copies of rows of ``x (T, size)``, by number, ``rows (R,)`` int64 → ``(R, size)``."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
        """``x / sqrt(mean(x²) + eps) * weight`` over the last dimension, computed in float32 (Zhang 2019).

        The result is of ``dtype``, that of ``x`` if not given.
        """
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """``residual += x`` in place, then :meth:`rms_norm` of the sum, in the dtype of ``x``.

        ``residual`` is float32: what dozens of layers add to it would be lost in fewer digits.
        """
        ...

    def norm_columns(self, x: Tensor, first: int, weight: Tensor, eps: float) -> None:
        """:meth:`rms_norm` of some columns of ``x (T, size)``, in place: from ``first`` on, as many as
        ``weight`` has."""
        ...

    def rotary_and_cache(
        self,
        qkv: Tensor,
        batch: AttentionBatch,
        cos_sin: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        *,
        num_heads: int,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 1e-6,
    ) -> Tensor:
        """Normalise (where given) and rotate queries and keys, keep keys and values in the cache.

        ``qkv (T, (H + 2 G) * D)``: queries, keys, values of each token. ``cos_sin (positions, D)`` float32:
        D/2 cosines, then D/2 sines. Rotation pairs dimension i with i + D/2 (Su 2021, half-split form).
        ``q_norm``/``k_norm (D,)``: RMS norm per head, before rotation. → queries ``(T, H, D)``.
        """
        ...

    def paged_attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        batch: AttentionBatch,
        *,
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        """Causal attention of each token over its sequence's keys, softmax in float32 → ``(T, H * D)``.

        The token at position p sees keys at positions ≤ p, and with ``window`` only those > p - window.
        Query head h uses key/value head h // (H / G).
        """
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """``silu(gate) * up`` for ``gate_up (T, 2 F)``: gates, then ups → ``(T, F)``."""
        ...

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        """``gelu(gate) * up`` with the tanh form of GELU, layout as :meth:`silu_mul`."""
        ...

    def to_float32(self, x: Tensor) -> Tensor:
        """``x`` (N, M) as float32; itself if it is that already."""
        ...

    def draw(
        self, logits: Tensor, settings: DrawSettings, rows: NDArray[np.int64] | None = None
    ) -> DrawnTokens:
        """Draw a token from each row of ``logits (R, V)`` float32; the first of the highest if greedy.

        With ``rows (N,)``, from those only, and ``settings`` are of N rows.
        The filters, their order, and the draw by inversion are those of
        :mod:`triolet_kernels.reference.drawing`. What is drawn from a row depends on nothing beside it.
        Where rounding decides, implementations may differ.
        """
        ...

    def draw_masked(
        self, logits: Tensor, settings: DrawSettings, rows: NDArray[np.int64], masks: NDArray[np.int32]
    ) -> DrawnTokens:
        """Draw from ``rows (N,)`` of ``logits (R, V)``, no two the same, what their masks allow.

        ``masks (N, ceil(V / 32))``: token i is allowed if bit ``i % 32`` of word ``i // 32`` is set. The
        other logits become minus infinity, in place. ``settings`` are of N rows; the rest is as in
        :meth:`draw`. A mask does not hide a NaN or plus infinity: ``highest`` is not finite then.
        """
        ...

    def rank(
        self, logits: Tensor, settings: DrawSettings, rows: NDArray[np.int64], count: int
    ) -> RankedTokens:
        """The ``count`` most likely tokens of ``rows (N,)`` of ``logits (R, V)``.

        ``settings`` are of N rows, whose temperatures are above 0.
        """
        ...

    def draw_others(
        self,
        logits: Tensor,
        rows: NDArray[np.int64],
        token_ids: NDArray[np.int64],
        temperatures: NDArray[np.float64],
        uniforms: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        """Draw K further tokens from ``rows (N,)`` of ``logits (R, V)``, no two rows the same → ``(N, K)``.

        Each is drawn, without filters, from what its row's ``token_ids (N,)`` and those before it leave:
        by inversion, ``uniforms (N, K)`` in [0, 1), or the most likely one where ``temperatures (N,)`` is 0.
        Once nothing is left that weighs anything beside the row's highest logit, tokens are -1. The highest
        logits are finite, and K is at most ``MAX_OTHERS``.
        """
        ...

    def step_runner(self) -> StepRunner:
        """Something that runs one model's step, in the quickest way there is, with the same results."""
        ...


def select_ops(device: torch.device, *, is_reference: bool = False, num_threads: int | None = None) -> Ops:
    """The fastest implementation for ``device``, or the reference one if asked for.

    ``num_threads`` is how many threads CPU kernels may use; as many as torch if not given. On a CPU the
    environment variable ``TRIOLET_CPU_ISA`` (amx, avx512, avx2, portable) asks for lower instructions than
    the best; ValueError if the CPU lacks them. On a GPU ``TRIOLET_BATCH_INVARIANT=1`` asks for linear layers
    whose results for a row do not depend on the rows beside it, and ``TRIOLET_GPU_LINEAR`` (int8, fp8) for
    linear layers with inputs and weights rounded to 8 bits, where weights come in 16; ValueError if the GPU
    does not multiply those.
    """
    import torch

    from triolet_kernels.cpu import CpuOps
    from triolet_kernels.cpu.loader import NativeError, NativeLibrary
    from triolet_kernels.reference import ReferenceOps

    if is_reference:
        return ReferenceOps()
    if device.type != "cpu":
        return _select_gpu_ops(device)
    try:
        return CpuOps(NativeLibrary.open(os.environ, num_threads or torch.get_num_threads()))
    except NativeError as error:
        logger.warning(
            "%s: running on torch alone, which is slow. Install again where there is a C++ compiler (g++), "
            "or in a checkout run: python kernels/build_cpu.py",
            str(error),  # not itself: a record that is kept would pin the frames it came through
        )
        return CpuOps(NativeLibrary.missing())


def _select_gpu_ops(device: torch.device) -> Ops:
    """Triton kernels on NVIDIA and AMD GPUs, where Triton is installed."""
    from triolet_kernels.reference import ReferenceOps

    if device.type != "cuda":  # which is what torch calls AMD's GPUs, too
        return ReferenceOps()
    if importlib.util.find_spec("triton") is None:
        logger.warning(
            "Triton is not installed: running on torch alone, which is slow. "
            "Install it: pip install 'triolet[gpu]'"
        )
        return ReferenceOps()

    from triolet_kernels.gpu import GpuOps
    from triolet_kernels.gpu.launch import GpuDevice

    is_batch_invariant = os.environ.get("TRIOLET_BATCH_INVARIANT") == "1"
    scheme = os.environ.get("TRIOLET_GPU_LINEAR") or None
    return GpuOps(GpuDevice.of(device), is_batch_invariant=is_batch_invariant, scheme=scheme)
