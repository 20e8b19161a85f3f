from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from triolet.scheduling.block_pool import BlockPool


def make_pool(num_blocks: int, num_before_eviction: int | None = None) -> tuple[BlockPool, list[int]]:
    """A pool, and the blocks that it has evicted so far."""
    evicted: list[int] = []
    return BlockPool(num_blocks, evicted.append, num_before_eviction), evicted


def test_used_blocks_are_handed_out_before_fresh_ones() -> None:
    pool, _ = make_pool(8)
    pool.release(pool.allocate(2))
    assert sorted(pool.allocate(3)) == [0, 1, 2]


def test_fresh_blocks_are_handed_out_before_kept_ones() -> None:
    pool, evicted = make_pool(3)
    (first,) = pool.allocate(1)
    pool.keep(first)
    pool.release([first])
    assert pool.num_free == 3
    assert first not in pool.allocate(2)
    assert evicted == []
    assert pool.allocate(1) == [first]
    assert evicted == [first]
    assert not pool.is_kept(first)


def test_kept_blocks_make_room_before_more_than_so_many_are_used() -> None:
    pool, evicted = make_pool(5, num_before_eviction=3)
    for block_id in (kept := pool.allocate(2)):
        pool.keep(block_id)
    pool.release(kept)
    # One more that is fresh, then those that were kept, then the rest.
    assert pool.allocate(5) == [2, 1, 0, 3, 4]
    assert evicted == [1, 0]


def test_the_least_recently_freed_is_evicted_first_and_the_tail_of_a_table_before_its_head() -> None:
    pool, evicted = make_pool(5)
    block_ids = pool.allocate(5)
    for block_id in block_ids:
        pool.keep(block_id)
    pool.release(block_ids[3:])
    pool.release(block_ids[:3])
    pool.allocate(5)
    assert evicted == [4, 3, 2, 1, 0]


def test_a_block_is_free_when_its_last_owner_lets_go() -> None:
    pool, _ = make_pool(2)
    block_ids = pool.allocate(1)
    pool.retain(block_ids)
    assert pool.reference_count(block_ids[0]) == 2
    pool.release(block_ids)
    assert pool.num_free == 1
    pool.release(block_ids)
    assert pool.num_free == 2


def test_retaining_a_free_kept_block_takes_it_with_what_it_holds() -> None:
    pool, evicted = make_pool(2)
    block_ids = pool.allocate(2)
    pool.keep(1)
    pool.release(block_ids)
    pool.retain([1])
    assert pool.num_free == 1
    assert pool.allocate(1) == [0]
    assert evicted == []
    assert pool.is_kept(1)


def test_a_forgotten_block_is_an_ordinary_one() -> None:
    pool, evicted = make_pool(2)
    block_ids = pool.allocate(2)
    pool.keep(0)
    pool.keep(1)
    pool.forget(1)
    pool.release(block_ids)
    pool.forget(0)
    assert sorted(pool.allocate(2)) == [0, 1]
    assert evicted == []


def test_more_blocks_than_are_free_are_never_handed_out() -> None:
    pool, _ = make_pool(2)
    with pytest.raises(AssertionError, match="3 blocks wanted, 2 free"):
        pool.allocate(3)
    assert pool.num_free == 2


def test_releasing_a_free_block_is_found_out() -> None:
    pool, _ = make_pool(2)
    with pytest.raises(AssertionError, match="block 1 is free already"):
        pool.release([1])


class BlockPoolMachine(RuleBasedStateMachine):
    """The pool against plain lists: owners' tables, blocks worth keeping, in which order they became free."""

    @initialize(num_blocks=st.integers(1, 12), num_before_eviction=st.none() | st.integers(1, 12))
    def start(self, num_blocks: int, num_before_eviction: int | None) -> None:
        self.pool, self.evicted = make_pool(num_blocks, num_before_eviction)
        self.num_before_eviction = min(num_blocks, num_before_eviction or num_blocks)
        self.num_used = 0
        self.recycled: list[int] = []
        self.evictable: list[int] = []
        self.kept: set[int] = set()
        self.tables: list[list[int]] = []

    @property
    def num_free(self) -> int:
        return self.pool.num_blocks - self.num_used + len(self.recycled) + len(self.evictable)

    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        num_blocks = data.draw(st.integers(0, self.num_free))
        self.evicted.clear()
        block_ids = self.pool.allocate(num_blocks)
        num_recycled = min(num_blocks, len(self.recycled))
        num_wanted = num_blocks - num_recycled
        num_fresh = min(num_wanted, max(0, self.num_before_eviction - self.num_used))
        num_evicted = min(num_wanted - num_fresh, len(self.evictable))
        expected = [self.recycled.pop() for _ in range(num_recycled)]
        expected += range(self.num_used, self.num_used + num_fresh)
        expected += self.evictable[:num_evicted]
        self.num_used += num_fresh
        num_fresh = num_wanted - num_fresh - num_evicted
        expected += range(self.num_used, self.num_used + num_fresh)
        self.num_used += num_fresh
        assert block_ids == expected
        assert self.evicted == self.evictable[:num_evicted]
        self.kept -= set(self.evicted)
        del self.evictable[:num_evicted]
        self.tables.append(block_ids)

    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        candidates = sorted({block_id for table in self.tables for block_id in table} | self.kept)
        block_ids = data.draw(st.lists(st.sampled_from(candidates), unique=True)) if candidates else []
        self.pool.retain(block_ids)
        self.evictable = [block_id for block_id in self.evictable if block_id not in block_ids]
        self.tables.append(block_ids)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table)
        owned = {block_id for other in self.tables for block_id in other}
        for block_id in reversed(table):
            if block_id not in owned:
                (self.evictable if block_id in self.kept else self.recycled).append(block_id)

    @precondition(lambda self: any(self.tables))
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        owned = sorted({block_id for table in self.tables for block_id in table})
        block_id = data.draw(st.sampled_from(owned))
        self.pool.keep(block_id)
        self.kept.add(block_id)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.kept)))
        self.pool.forget(block_id)
        self.kept.remove(block_id)
        if block_id in self.evictable:
            self.evictable.remove(block_id)
            self.recycled.append(block_id)

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity()
        assert self.pool.num_free == self.num_free
        for block_id in range(self.pool.num_blocks):
            assert self.pool.reference_count(block_id) == sum(block_id in table for table in self.tables)
            assert self.pool.is_kept(block_id) == (block_id in self.kept)


TestBlockPoolMachine = BlockPoolMachine.TestCase
TestBlockPoolMachine.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, derandomize=True
)
