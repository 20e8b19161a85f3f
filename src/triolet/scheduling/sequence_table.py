"""Where each sequence is: waiting, running or leaving; and who has which slot and blocks.

**Leaving.** A slot and blocks in use by a plan in flight are given back when it is committed: what leaves
(ended, aborted, thrown out) waits for that. What is sampled meanwhile for a sequence that was thrown out is
kept, so that it is queued with all its tokens known.

This module knows what can be done with a sequence, never when it should be, and nothing of steps.
"""

from __future__ import annotations

from collections import Counter

from triolet.scheduling.config import SchedulerConfig
from triolet.scheduling.integrity import check_sequences
from triolet.scheduling.kv_cache_manager import Admission, KVCacheManager
from triolet.scheduling.sequence import Sequence, SequenceStatus
from triolet.scheduling.waiting_queue import WaitingQueue

__all__ = ["SequenceTable"]


class SequenceTable:
    """All sequences that have not ended, with the slots and blocks there are.

    ``running`` is in order of admission. ``leaving`` have rows in flight, and give back what they hold when
    those are committed.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.waiting = WaitingQueue(config.scheduling_policy)
        self.running: dict[int, Sequence] = {}
        self.leaving: dict[int, Sequence] = {}
        self.kv_cache = KVCacheManager(
            config.layer_groups,
            block_size=config.block_size,
            max_num_batched_tokens=config.max_num_batched_tokens,
            enable_prefix_caching=config.enable_prefix_caching,
        )
        self.num_preemptions = 0
        self._config = config
        self._free_slots = list(reversed(range(config.max_num_seqs)))

    def __contains__(self, request_id: int) -> bool:
        return request_id in self.waiting or self.is_holding(request_id)

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

    def is_holding(self, request_id: int) -> bool:
        """Whether the request has a slot and blocks: it runs, or has left with a plan in flight."""
        return request_id in self.running or request_id in self.leaving

    def admit(self, sequence: Sequence) -> Admission:
        """Make a waiting sequence run, if there are blocks; there must be a slot.

        There must be blocks for all its known tokens, and one more for each that runs already, so that
        nothing is thrown out again at once.
        """
        admission = self.kv_cache.admit(sequence.blocks, sequence.token_ids, len(self.running))
        if admission is not Admission.ADMITTED:
            return admission
        num_cached_tokens = sequence.blocks.num_cached_blocks * self._config.block_size
        if sequence.num_cached_tokens is None:
            self.kv_cache.count_lookup(sequence.blocks, len(sequence.token_ids))
        self.waiting.take(sequence, len(sequence.token_ids) - num_cached_tokens)
        self.running[sequence.request.request_id] = sequence
        sequence.admit(self._free_slots.pop(), num_cached_tokens)
        return admission

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give a running sequence the blocks for so many more positions; False if there are not enough."""
        end = sequence.num_scheduled_tokens + num_tokens
        if end <= len(sequence.blocks.tables[0]) * self._config.block_size:
            return True  # which is what most steps come to
        return self.kv_cache.grow(sequence.blocks, end)

    def worst_running(self) -> Sequence:
        """The one to throw out first: the least urgent, of these the one that arrived last."""
        return max(self.running.values(), key=lambda sequence: sequence.rank)

    def preempt(self, sequence: Sequence) -> None:
        """Throw a running sequence out; it waits again, with its tokens, and nothing of it is computed."""
        self.num_preemptions += 1
        self._leave(sequence, SequenceStatus.PREEMPTED)

    def end(self, sequence: Sequence) -> None:
        """A running or leaving sequence has ended, however that came."""
        self._leave(sequence, SequenceStatus.FINISHED)

    def drop(self, request_id: int) -> bool:
        """Take out a request, wherever it is; False if there is none, or it has ended."""
        if self.waiting.remove(request_id) is not None:
            return True
        sequence = self.running.get(request_id) or self.leaving.get(request_id)
        if sequence is None or sequence.status is SequenceStatus.FINISHED:
            return False
        self.end(sequence)
        return True

    def _leave(self, sequence: Sequence, status: SequenceStatus) -> None:
        self.running.pop(sequence.request.request_id, None)
        self.leaving[sequence.request.request_id] = sequence
        sequence.status = status
        self.give_back(sequence)

    def give_back(self, sequence: Sequence) -> None:
        """Free the slot and the blocks of a leaving sequence, unless a plan in flight uses them."""
        if sequence.num_rows_in_flight:
            return
        assert sequence.slot is not None
        del self.leaving[sequence.request.request_id]
        self.kv_cache.release(sequence.blocks)
        self._free_slots.append(sequence.slot)
        if sequence.status is SequenceStatus.PREEMPTED:
            sequence.reset(SequenceStatus.WAITING)
            self.waiting.put_back(sequence)
        else:
            sequence.reset(SequenceStatus.FINISHED)
            self.waiting.end(sequence)

    def check_integrity(self, in_flight: Counter[Sequence]) -> None:
        """Assert that the books agree; ``in_flight``: how many rows of each sequence are in flight."""
        holders = [*self.running.values(), *self.leaving.values()]
        self.kv_cache.check_integrity([sequence.blocks for sequence in holders])
        slots = [*self._free_slots, *(sequence.slot for sequence in holders)]
        assert Counter(slots) == Counter(range(self._config.max_num_seqs)), "each slot is in one place"
        check_sequences(
            waiting=self.waiting,
            running=self.running.values(),
            leaving=self.leaving.values(),
            in_flight=in_flight,
            block_size=self._config.block_size,
        )
