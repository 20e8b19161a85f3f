from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from tests.triolet.runtime.fake_device import FakeDevice
from tests.triolet.runtime.kv_sizes import small_cache_config
from torch import Tensor

from triolet.errors import UsageError
from triolet.runtime.kv_cache import KVCacheTensors
from triolet.runtime.step_memory import step_memory
from triolet_kernels.ops import AttentionBatch
from triolet_kernels.reference import ReferenceOps


class Measured(FakeDevice):
    def peak_memory(self, function: Callable[[], object]) -> int:
        function()
        return 1234


class Full(FakeDevice):
    def peak_memory(self, function: Callable[[], object]) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory")


class Model:
    """Writes to the cache, attends to it, and notes what it was given."""

    num_tokens = 0
    num_rows = 0

    def forward(
        self, token_ids: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCacheTensors, rows: Tensor
    ) -> Tensor:
        self.num_tokens, (keys, values) = len(token_ids), kv_cache[0]
        assert int(batches[0].sequence_lengths.sum()) == len(token_ids)
        query = torch.zeros(len(token_ids), 2, keys.shape[3])
        seen = ReferenceOps().paged_attention(query, keys, values, batches[0], scale=1.0)
        return seen[rows]

    def logits(self, hidden: Tensor) -> Tensor:
        self.num_rows = len(hidden)
        return hidden


def test_the_largest_step_is_tried() -> None:
    config, model = small_cache_config(), Model()
    assert step_memory(Measured(), model, config, max_num_seqs=5) == 1234
    assert (model.num_tokens, model.num_rows) == (27, 5)


def test_a_step_for_which_there_is_no_memory_names_its_option() -> None:
    with pytest.raises(UsageError, match=r"27 tokens.*lower max_num_batched_tokens") as raised:
        step_memory(Full(), Model(), small_cache_config(), max_num_seqs=5)
    assert raised.value.param == "max_num_batched_tokens"
