from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from tests.triolet.runtime.fake_device import FakeDevice
from tests.triolet.runtime.kv_sizes import small_cache_config
from torch import Tensor

from triolet.runtime.accelerator import GraphMemory
from triolet.runtime.decode_graphs import batch_size_ladder, length_ladder
from triolet.runtime.graph_memory import graph_memory
from triolet.runtime.kv_cache import KVCacheTensors
from triolet_kernels.ops import AttentionBatch
from triolet_kernels.reference import ReferenceOps

CONFIG = small_cache_config()


class Measured(FakeDevice):
    def graph_memory(self, function: Callable[[], Tensor]) -> GraphMemory:
        super().graph_memory(function)
        return GraphMemory(pool=10**9, each=10**6)


class Model:
    """Attends to what is in the cache, and notes what it was given."""

    num_tokens = 0

    def forward(
        self, token_ids: Tensor, batches: Sequence[AttentionBatch], kv_cache: KVCacheTensors, rows: Tensor
    ) -> Tensor:
        self.num_tokens, (keys, values) = len(token_ids), kv_cache[0]
        query = torch.zeros(len(token_ids), 2, keys.shape[3])
        return ReferenceOps().paged_attention(query, keys, values, batches[0], scale=1.0)[rows]

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden


def test_there_is_a_graph_for_each_size_and_length() -> None:
    model = Model()
    taken = graph_memory(Measured(), model, CONFIG, max_num_seqs=40, max_model_len=5000)
    num_graphs = len(batch_size_ladder(40)) * len(length_ladder(5000))
    inputs = taken - 10**9 - num_graphs * 10**6
    tables = 40 * 5000 // 8 * 4
    assert 2 * tables <= inputs <= 3 * tables
    assert model.num_tokens == 40


def test_where_nothing_is_captured_nothing_is_kept_free() -> None:
    device = Measured(captures=False)
    assert graph_memory(device, Model(), CONFIG, max_num_seqs=40, max_model_len=5000) == 0


def test_one_sequence_is_enough() -> None:
    config = replace(CONFIG, windows=(None,), group_windows=(None,))
    assert graph_memory(Measured(), Model(), config, max_num_seqs=1, max_model_len=100) > 10**9
