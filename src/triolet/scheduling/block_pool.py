"""The pool of KV blocks: which are free, and how many owners each of the others has.

This module knows nothing of sequences or of what the blocks hold.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["BlockPool"]


class BlockPool:
    """Reference-counted blocks 0 … ``num_blocks`` - 1.

    Free blocks are handed out least recently freed first, so that what a freed block held stays usable for
    as long as possible.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._reference_counts = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def reference_count(self, block_id: int) -> int:
        """How many owners the block has; 0 for a free one."""
        return self._reference_counts[block_id]

    def allocate(self, num_blocks: int) -> list[int]:
        """Take blocks off the free list, each with one owner. There must be enough (see :attr:`num_free`)."""
        assert num_blocks <= len(self._free), f"{num_blocks} blocks wanted, {len(self._free)} free"
        block_ids = [self._free.popitem(last=False)[0] for _ in range(num_blocks)]
        for block_id in block_ids:
            self._reference_counts[block_id] = 1
        return block_ids

    def retain(self, block_ids: Sequence[int]) -> None:
        """Add an owner to each block; a free one comes off the free list with what it holds."""
        for block_id in block_ids:
            if self._reference_counts[block_id] == 0:
                del self._free[block_id]
            self._reference_counts[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Take an owner from each block; those without any become free.

        ``block_ids`` are in the order of the owner's table. The last is freed first and so reused first:
        the head of a sequence is the likelier to be shared.
        """
        for block_id in reversed(block_ids):
            assert self._reference_counts[block_id] > 0, f"block {block_id} is free already"
            self._reference_counts[block_id] -= 1
            if self._reference_counts[block_id] == 0:
                self._free[block_id] = None

    def check_integrity(self) -> None:
        """Assert that exactly the blocks without an owner are on the free list."""
        assert len(self._reference_counts) == self.num_blocks
        assert all(count >= 0 for count in self._reference_counts)
        ownerless = {block_id for block_id, count in enumerate(self._reference_counts) if count == 0}
        assert ownerless == set(self._free), "the free list is not the set of blocks without an owner"
