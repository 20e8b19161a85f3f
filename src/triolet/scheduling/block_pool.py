"""The pool of KV blocks: which are free, how many owners the others have, what is worth keeping.

This module knows nothing of sequences or of what the blocks hold.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

__all__ = ["BlockPool"]


class BlockPool:
    """Reference-counted blocks 0 … ``num_blocks`` - 1.

    A block whose content is to be kept (:meth:`keep`) stays usable after its last owner has let go, until
    the room is needed. So blocks are handed out in this order: those used before with nothing to keep, the
    last freed first; those never used, up to ``num_before_eviction`` (None: all of them), so that no more
    memory is touched than is needed; kept ones, least recently freed first, of which ``on_evict`` is told;
    the others that were never used.
    """

    def __init__(
        self, num_blocks: int, on_evict: Callable[[int], None], num_before_eviction: int | None = None
    ) -> None:
        self.num_blocks = num_blocks
        self._num_before_eviction = num_blocks if num_before_eviction is None else num_before_eviction
        self._on_evict = on_evict
        self._reference_counts = [0] * num_blocks
        self._is_kept = [False] * num_blocks
        self._num_used = 0  # blocks from here on have never been handed out
        self._recycled: list[int] = []
        self._evictable: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks without an owner, kept ones included."""
        return self.num_blocks - self._num_used + len(self._recycled) + len(self._evictable)

    def reference_count(self, block_id: int) -> int:
        """How many owners the block has; 0 for a free one."""
        return self._reference_counts[block_id]

    def is_kept(self, block_id: int) -> bool:
        return self._is_kept[block_id]

    def allocate(self, num_blocks: int) -> list[int]:
        """Take free blocks, each with one owner. There must be enough (see :attr:`num_free`)."""
        assert num_blocks <= self.num_free, f"{num_blocks} blocks wanted, {self.num_free} free"
        block_ids = [self._take() for _ in range(num_blocks)]
        for block_id in block_ids:
            self._reference_counts[block_id] = 1
        return block_ids

    def _take(self) -> int:
        if self._recycled:
            return self._recycled.pop()
        if self._num_used < (self._num_before_eviction if self._evictable else self.num_blocks):
            self._num_used += 1
            return self._num_used - 1
        block_id, _ = self._evictable.popitem(last=False)
        self._is_kept[block_id] = False
        self._on_evict(block_id)
        return block_id

    def retain(self, block_ids: Sequence[int]) -> None:
        """Add an owner to each block, which has one already or is kept."""
        for block_id in block_ids:
            if self._reference_counts[block_id] == 0:
                del self._evictable[block_id]
            self._reference_counts[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Take an owner from each block; those without any become free.

        ``block_ids`` are in the order of the owner's table. The last is freed first, so that it is evicted
        first: the head of a sequence is the likelier to be shared.
        """
        for block_id in reversed(block_ids):
            assert self._reference_counts[block_id] > 0, f"block {block_id} is free already"
            self._reference_counts[block_id] -= 1
            if self._reference_counts[block_id] == 0:
                if self._is_kept[block_id]:
                    self._evictable[block_id] = None
                else:
                    self._recycled.append(block_id)

    def keep(self, block_id: int) -> None:
        """What the block, which has an owner, holds is worth keeping."""
        assert self._reference_counts[block_id] > 0, f"block {block_id} is free"
        self._is_kept[block_id] = True

    def forget(self, block_id: int) -> None:
        """What the block holds is not worth keeping any more."""
        self._is_kept[block_id] = False
        if self._reference_counts[block_id] == 0:
            del self._evictable[block_id]
            self._recycled.append(block_id)

    def check_integrity(self) -> None:
        """Assert that each block without an owner is free in exactly one way."""
        assert len(self._reference_counts) == self.num_blocks
        assert all(count >= 0 for count in self._reference_counts)
        free = [*self._recycled, *self._evictable, *range(self._num_used, self.num_blocks)]
        ownerless = [block_id for block_id, count in enumerate(self._reference_counts) if count == 0]
        assert sorted(free) == ownerless, "the free blocks are not those without an owner"
        kept = {block_id for block_id in free if self._is_kept[block_id]}
        assert kept == set(self._evictable), "free blocks that hold something can be evicted, and no others"
