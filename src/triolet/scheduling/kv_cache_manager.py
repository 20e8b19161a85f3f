"""Which KV blocks each sequence has, in each layer group, and which of them it found computed already.

**Groups.** Layers that see equally far back form a group with a pool and, for each sequence, a block table of
its own. In a group with a window, blocks that no position still to be computed can see are given back, so
that a sequence never has more than its window and the tokens in flight take.

**Claims.** A sequence is admitted when there is room for all tokens it has, and what it does not take at
once stays promised to it: a prefill, in however many chunks, never lacks a block. Only tokens generated
later may find no room.

**Prefix cache.** Blocks are cached once they are full and computed, and found by the next sequence that
starts with the same tokens, for as long as the room is not needed. A sequence whose next block a running one
is about to compute is held back until that is done. At least the last token is always computed, because its
logits are wanted. In a group with a window, a hit needs only the blocks that the next position sees.

This module knows nothing of slots, budgets or the order in which sequences are served.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum, auto

from triolet.plan import LayerGroup, num_blocks_needed
from triolet.scheduling.block_pool import BlockPool
from triolet.scheduling.prefix_cache import PrefixCache, extend_hashes

__all__ = ["Admission", "KVCacheManager", "SequenceBlocks"]


class Admission(Enum):
    """What came of asking for a sequence's blocks."""

    ADMITTED = auto()
    HELD_BACK = auto()
    """A running sequence is computing what this one needs next."""
    NO_ROOM = auto()


class SequenceBlocks:
    """What one sequence has in the KV cache; kept up by :class:`KVCacheManager`.

    ``tables``: for each group, the block of each ``block_size`` positions. ``starts``: for each group, the
    first entry that is still owned; what is before it has left the window. ``claims``: for each group, how
    many blocks the sequence may own. ``hashes``: of its full blocks, as far as their tokens are known.
    ``num_cached_blocks`` were found computed; those up to ``num_computed_blocks`` have been computed since,
    those up to ``num_announced_blocks`` are about to be.
    """

    __slots__ = (
        "cache_salt",
        "claims",
        "epoch",
        "hashes",
        "is_looked_up",
        "num_announced_blocks",
        "num_cached_blocks",
        "num_computed_blocks",
        "num_told",
        "starts",
        "tables",
    )

    def __init__(self, *, cache_salt: str = "", is_looked_up: bool = True) -> None:
        """``is_looked_up``: use blocks computed already; not so where the logits of all tokens are wanted."""
        self.cache_salt = cache_salt
        self.is_looked_up = is_looked_up
        self.hashes: list[bytes] = []
        self.clear()

    def clear(self) -> None:
        """Own nothing. The hashes stay: they are those of the tokens."""
        self.tables: tuple[list[int], ...] = ()
        self.starts: list[int] = []
        self.claims: list[int] = []
        self.epoch = 0
        self.num_cached_blocks = 0
        self.num_computed_blocks = 0
        self.num_announced_blocks = 0
        self.num_told = 0

    def num_owned(self, group: int) -> int:
        return len(self.tables[group]) - self.starts[group]

    def take_news(self) -> tuple[int, tuple[tuple[int, ...], ...]]:
        """The entries of each table since the last call, and the index of the first of them."""
        first = self.num_told
        self.num_told = len(self.tables[0])
        return first, tuple(tuple(table[first:]) for table in self.tables)


class _Group:
    """The pool and the cached prefixes of one layer group, and what of the pool is claimed.

    ``num_claimed`` and ``num_owned`` are over all sequences; a block that several own counts for each.
    """

    def __init__(self, layers: LayerGroup, block_size: int, max_num_batched_tokens: int) -> None:
        self.window = layers.window
        self.block_size = block_size
        self.cache = PrefixCache()
        self.pool = BlockPool(layers.num_blocks, self.cache.remove, layers.num_before_eviction)
        self.num_claimed = 0
        self.num_owned = 0
        self._max_num_batched_tokens = max_num_batched_tokens

    @property
    def num_available(self) -> int:
        """Blocks that nobody owns or will need."""
        if self.window is None:
            return self.pool.num_free - (self.num_claimed - self.num_owned)
        # An owner that leaves a shared block behind needs another in its place, and none comes free for it.
        return self.pool.num_blocks - self.num_claimed

    def num_available_after(self, claim: int, hits: Sequence[int]) -> int:
        """What is available once a sequence has claimed so many blocks, ``hits`` among them."""
        if self.window is None:
            num_owned_already = sum(self.pool.reference_count(block_id) > 0 for block_id in hits)
            return self.num_available - claim + num_owned_already
        return self.num_available - claim

    def claim_for(self, num_tokens: int) -> int:
        """How many blocks a sequence of so many tokens owns at most at any time."""
        return num_blocks_needed(
            num_tokens,
            block_size=self.block_size,
            window=self.window,
            max_num_batched_tokens=self._max_num_batched_tokens,
        )

    def first_needed(self, position: int) -> int:
        """The first block that the token at ``position``, or one after it, sees."""
        return 0 if self.window is None else max(0, position - self.window + 1) // self.block_size

    def longest_hit(self, hashes: Sequence[bytes], limit: int) -> int:
        """The most blocks, up to ``limit``, after which all that the next position sees is cached."""
        end = first = limit
        while first > self.first_needed(end * self.block_size):
            first -= 1
            if self.cache.find(hashes[first]) is None:
                end = first
        return end

    def cached_blocks(self, hashes: Sequence[bytes], first: int, end: int) -> list[int]:
        found = [self.cache.find(block_hash) for block_hash in hashes[first:end]]
        return [block_id for block_id in found if block_id is not None]

    def forget(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            self.cache.remove(block_id)
            self.pool.forget(block_id)


class KVCacheManager:
    """The blocks of all layer groups, shared out among sequences.

    ``num_queries`` and ``num_hits`` count tokens looked up and found at first admissions.
    """

    def __init__(
        self,
        groups: Sequence[LayerGroup],
        *,
        block_size: int,
        max_num_batched_tokens: int,
        enable_prefix_caching: bool = True,
    ) -> None:
        self._block_size = block_size
        self._groups = tuple(_Group(group, block_size, max_num_batched_tokens) for group in groups)
        self._is_caching = enable_prefix_caching
        self._in_progress: Counter[bytes] = Counter()
        self._epoch = 0
        self.num_blocks = sum(group.num_blocks for group in groups)
        self.num_queries = 0
        self.num_hits = 0

    @property
    def num_free_blocks(self) -> int:
        """Blocks of all groups without an owner, those with cached prefixes included."""
        return sum(group.pool.num_free for group in self._groups)

    def admit(self, blocks: SequenceBlocks, token_ids: Sequence[int], num_reserved: int) -> Admission:
        """Find what is computed already and claim room for the rest of ``token_ids``.

        ``num_reserved`` blocks are left free in each group. Where it is not ``ADMITTED``, nothing changes.
        """
        assert not blocks.tables
        num_hits = 0
        if self._is_caching:
            extend_hashes(blocks.hashes, token_ids, self._block_size, blocks.cache_salt)
            if blocks.is_looked_up:
                limit = (len(token_ids) - 1) // self._block_size
                num_hits = self._longest_hit(blocks.hashes, limit)
                if num_hits < limit and self._in_progress[blocks.hashes[num_hits]]:
                    return Admission.HELD_BACK
        starts = [group.first_needed(num_hits * self._block_size) for group in self._groups]
        hits = [
            group.cached_blocks(blocks.hashes, start, num_hits)
            for group, start in zip(self._groups, starts, strict=True)
        ]
        claims = [group.claim_for(len(token_ids)) for group in self._groups]
        for group, found, claim in zip(self._groups, hits, claims, strict=True):
            if group.num_available_after(claim, found) < num_reserved:
                return Admission.NO_ROOM
        self._start(blocks, starts, hits, claims, num_hits)
        return Admission.ADMITTED

    def _longest_hit(self, hashes: Sequence[bytes], limit: int) -> int:
        """The most blocks, up to ``limit``, that are a hit in every group."""
        while True:
            length = limit
            for group in self._groups:
                length = group.longest_hit(hashes, length)
            if length == limit:
                return length
            limit = length

    def _start(
        self,
        blocks: SequenceBlocks,
        starts: list[int],
        hits: list[list[int]],
        claims: list[int],
        num_hits: int,
    ) -> None:
        for group, found, claim in zip(self._groups, hits, claims, strict=True):
            group.pool.retain(found)
            group.num_claimed += claim
            group.num_owned += len(found)
        blocks.tables = tuple([0] * start + found for start, found in zip(starts, hits, strict=True))
        blocks.starts, blocks.claims, blocks.epoch = starts, claims, self._epoch
        blocks.num_cached_blocks = blocks.num_computed_blocks = num_hits
        blocks.num_announced_blocks = len(blocks.hashes)
        self._in_progress.update(blocks.hashes[num_hits:])

    def count_lookup(self, blocks: SequenceBlocks, num_tokens: int) -> None:
        """Put the lookup of a sequence just admitted, of so many tokens, into the statistics."""
        if self._is_caching and blocks.is_looked_up:
            self.num_queries += num_tokens
            self.num_hits += blocks.num_cached_blocks * self._block_size

    def grow(self, blocks: SequenceBlocks, num_tokens: int) -> bool:
        """Own blocks for the first ``num_tokens`` positions. False, and nothing changed, if there is no room.

        There is, for as many tokens as the sequence had when it was admitted.
        """
        num_entries = -(-num_tokens // self._block_size)
        if num_entries <= len(blocks.tables[0]):
            return True
        claims = [
            max(claim, group.claim_for(num_tokens))
            for group, claim in zip(self._groups, blocks.claims, strict=True)
        ]
        growths = [new - old for new, old in zip(claims, blocks.claims, strict=True)]
        if any(more > group.num_available for group, more in zip(self._groups, growths, strict=True)):
            return False
        blocks.claims = claims
        for group, table, more in zip(self._groups, blocks.tables, growths, strict=True):
            added = group.pool.allocate(num_entries - len(table))
            group.num_claimed += more
            group.num_owned += len(added)
            table += added
        return True

    def commit(self, blocks: SequenceBlocks, token_ids: Sequence[int], num_computed_tokens: int) -> None:
        """Cache the blocks that are computed by now, and give back those that have left the window."""
        num_blocks = num_computed_tokens // self._block_size
        if num_blocks > blocks.num_computed_blocks and self._is_caching:
            extend_hashes(blocks.hashes, token_ids, self._block_size, blocks.cache_salt)
            self._register(blocks, num_blocks)
        for index, group in enumerate(self._groups):
            start, end = blocks.starts[index], group.first_needed(num_computed_tokens)
            if end > start:
                group.pool.release(blocks.tables[index][start:end])
                group.num_owned -= end - start
                blocks.starts[index] = end

    def _register(self, blocks: SequenceBlocks, num_blocks: int) -> None:
        first = blocks.num_computed_blocks
        blocks.num_computed_blocks = num_blocks
        self._end_progress(blocks.hashes[first : min(num_blocks, blocks.num_announced_blocks)])
        if blocks.epoch != self._epoch:
            return
        for index, group in enumerate(self._groups):
            for entry in range(max(first, blocks.starts[index]), num_blocks):
                block_id = blocks.tables[index][entry]
                if group.cache.add(blocks.hashes[entry], block_id):
                    group.pool.keep(block_id)

    def _end_progress(self, hashes: Sequence[bytes]) -> None:
        for block_hash in hashes:
            self._in_progress[block_hash] -= 1
            if not self._in_progress[block_hash]:
                del self._in_progress[block_hash]

    def distrust(self, blocks: SequenceBlocks) -> None:
        """The sequence has failed: cache nothing more of it, and nothing of what it has computed so far."""
        for group in self._groups:
            group.forget(
                group.cached_blocks(blocks.hashes, blocks.num_cached_blocks, blocks.num_computed_blocks)
            )
        blocks.epoch = -1

    def release(self, blocks: SequenceBlocks) -> None:
        """Give back all that the sequence owns and claims."""
        for index, group in enumerate(self._groups):
            group.pool.release(blocks.tables[index][blocks.starts[index] :])
            group.num_claimed -= blocks.claims[index]
            group.num_owned -= blocks.num_owned(index)
        self._end_progress(blocks.hashes[blocks.num_computed_blocks : blocks.num_announced_blocks])
        blocks.clear()

    def reset_prefix_cache(self) -> None:
        """Forget all prefixes. What sequences own now is theirs until they end, but is not cached again."""
        self._epoch += 1
        for group in self._groups:
            group.forget(group.cache.block_ids())

    def check_integrity(self, holders: Sequence[SequenceBlocks]) -> None:
        """Assert that the books agree with what the holders have; cost grows with the number of blocks."""
        for index, group in enumerate(self._groups):
            group.pool.check_integrity()
            group.cache.check_integrity()
            owners = Counter(
                block_id for blocks in holders for block_id in blocks.tables[index][blocks.starts[index] :]
            )
            for block_id in range(group.pool.num_blocks):
                assert group.pool.reference_count(block_id) == owners[block_id], f"owners of {block_id}"
            kept = {block_id for block_id in range(group.pool.num_blocks) if group.pool.is_kept(block_id)}
            assert kept == set(group.cache.block_ids())
            assert all(blocks.num_owned(index) <= blocks.claims[index] for blocks in holders)
            assert group.num_owned == sum(blocks.num_owned(index) for blocks in holders)
            assert group.num_claimed == sum(blocks.claims[index] for blocks in holders)
            assert group.num_claimed - group.num_owned <= group.pool.num_free, "a claim cannot be met"
            assert group.num_available >= 0
        announced = Counter(
            block_hash
            for blocks in holders
            for block_hash in blocks.hashes[blocks.num_computed_blocks : blocks.num_announced_blocks]
        )
        assert announced == self._in_progress
