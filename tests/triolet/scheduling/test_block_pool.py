from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from triolet.scheduling.block_pool import BlockPool


def test_blocks_are_handed_out_least_recently_freed_first() -> None:
    pool = BlockPool(4)
    assert pool.allocate(4) == [0, 1, 2, 3]
    pool.release([2])
    pool.release([0])
    pool.release([3])
    assert pool.allocate(3) == [2, 0, 3]


def test_the_tail_of_a_table_is_reused_before_its_head() -> None:
    pool = BlockPool(3)
    pool.release(pool.allocate(3))
    assert pool.allocate(3) == [2, 1, 0]


def test_a_block_is_free_when_its_last_owner_lets_go() -> None:
    pool = BlockPool(2)
    block_ids = pool.allocate(1)
    pool.retain(block_ids)
    assert pool.reference_count(block_ids[0]) == 2
    pool.release(block_ids)
    assert pool.num_free == 1
    pool.release(block_ids)
    assert pool.num_free == 2


def test_retaining_a_free_block_takes_it_off_the_free_list() -> None:
    pool = BlockPool(3)
    pool.retain([1])
    assert pool.num_free == 2
    assert pool.allocate(2) == [0, 2]


def test_more_blocks_than_are_free_are_never_handed_out() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="3 blocks wanted, 2 free"):
        pool.allocate(3)
    assert pool.num_free == 2


def test_releasing_a_free_block_is_found_out() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="block 1 is free already"):
        pool.release([1])


class BlockPoolMachine(RuleBasedStateMachine):
    """The pool against a plain list of owners' tables and of the order in which blocks became free."""

    @initialize(num_blocks=st.integers(1, 12))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.free = list(range(num_blocks))
        self.tables: list[list[int]] = []

    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        num_blocks = data.draw(st.integers(0, len(self.free)))
        expected, self.free = self.free[:num_blocks], self.free[num_blocks:]
        assert self.pool.allocate(num_blocks) == expected
        self.tables.append(expected)

    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        block_ids = data.draw(st.lists(st.integers(0, self.pool.num_blocks - 1), unique=True))
        self.pool.retain(block_ids)
        self.free = [block_id for block_id in self.free if block_id not in block_ids]
        self.tables.append(block_ids)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table)
        owned = {block_id for other in self.tables for block_id in other}
        self.free += [block_id for block_id in reversed(table) if block_id not in owned]

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity()
        assert self.pool.num_free == len(self.free)
        for block_id in range(self.pool.num_blocks):
            assert self.pool.reference_count(block_id) == sum(block_id in table for table in self.tables)


TestBlockPoolMachine = BlockPoolMachine.TestCase
TestBlockPoolMachine.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, derandomize=True
)
