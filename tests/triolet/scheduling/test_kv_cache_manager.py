from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from triolet.plan import LayerGroup, num_blocks_needed
from triolet.scheduling.kv_cache_manager import Admission, KVCacheManager, SequenceBlocks

BLOCK_SIZE = 2
MAX_NUM_BATCHED_TOKENS = 3


def make_manager(*groups: tuple[int, int | None], enable_prefix_caching: bool = True) -> KVCacheManager:
    """Each group is (blocks, window)."""
    return KVCacheManager(
        [LayerGroup(num_blocks=num_blocks, window=window) for num_blocks, window in groups],
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        enable_prefix_caching=enable_prefix_caching,
    )


def compute(manager: KVCacheManager, token_ids: list[int]) -> SequenceBlocks:
    """Admit a sequence and compute all of it at once."""
    blocks = SequenceBlocks()
    assert manager.admit(blocks, token_ids, 0) is Admission.ADMITTED
    assert manager.grow(blocks, len(token_ids))
    manager.commit(blocks, token_ids, len(token_ids))
    return blocks


def num_found(manager: KVCacheManager, token_ids: list[int]) -> int:
    """How many blocks a new sequence of these tokens finds."""
    blocks = SequenceBlocks()
    assert manager.admit(blocks, token_ids, 0) is Admission.ADMITTED
    found = blocks.num_cached_blocks
    manager.release(blocks)
    return found


def test_at_least_the_last_token_is_left_to_compute() -> None:
    manager = make_manager((8, None))
    manager.release(compute(manager, [1, 2, 3, 4]))
    assert num_found(manager, [1, 2, 3, 4]) == 1
    assert num_found(manager, [1, 2, 3, 4, 5]) == 2


def test_blocks_are_shared_while_they_are_owned() -> None:
    manager = make_manager((8, None))
    first = compute(manager, [1, 2, 3, 4, 5])
    second = compute(manager, [1, 2, 3, 4, 6])
    assert first.tables[0][:2] == second.tables[0][:2]
    assert manager.num_free_blocks == 8 - 4
    manager.check_integrity([first, second])


def test_an_evicted_tail_leaves_the_head() -> None:
    manager = make_manager((4, None))
    manager.release(compute(manager, [1, 2, 3, 4, 5, 6]))
    manager.release(compute(manager, [7, 8, 9]))
    assert num_found(manager, [1, 2, 3, 4, 5, 6, 7]) == 2


def test_where_there_is_no_room_nothing_changes() -> None:
    manager = make_manager((4, None))
    first = compute(manager, [1, 2, 3, 4])
    blocks = SequenceBlocks()
    assert manager.admit(blocks, [1, 2, 3, 4, 5, 6, 7, 8], 0) is Admission.ADMITTED
    other = SequenceBlocks()
    assert manager.admit(other, [9], 0) is Admission.NO_ROOM, "the others are promised"
    manager.check_integrity([first, blocks])
    assert not manager.grow(first, 5)
    manager.release(blocks)
    assert manager.admit(other, [9], 2) is Admission.NO_ROOM, "two are reserved"
    assert manager.admit(other, [9], 1) is Admission.ADMITTED
    manager.check_integrity([first, other])


def test_a_hit_in_a_window_group_needs_the_last_blocks_alone() -> None:
    manager = make_manager((8, 3))
    manager.release(compute(manager, [1, 2, 3, 4, 5, 6]))
    blocks = SequenceBlocks()
    assert manager.admit(blocks, [1, 2, 3, 4, 5, 6, 7], 0) is Admission.ADMITTED
    assert blocks.num_cached_blocks == 3
    assert blocks.starts == [2]
    assert blocks.tables[0][:2] == [0, 0]
    assert manager.num_free_blocks == 7


def test_a_hit_is_as_long_as_all_groups_have_it() -> None:
    manager = make_manager((9, None), (4, 2))
    manager.release(compute(manager, [1, 2, 3, 4, 5, 6]))
    assert num_found(manager, [1, 2, 3, 4, 5, 6, 7]) == 3
    manager.release(compute(manager, [7, 8, 9, 10, 11, 12, 13]))
    assert num_found(manager, [1, 2, 3, 4, 5, 6, 7]) == 0, "the window group's blocks were needed"


@dataclass(eq=False)
class Model:
    """A sequence: its tokens, and how many are promised, in flight (row by row) and computed.

    A broken one writes rubbish from some row on.
    """

    blocks: SequenceBlocks
    token_ids: list[int]
    num_promised: int = 0
    num_computed: int = 0
    in_flight: list[int] = field(default_factory=list)
    is_broken: bool = False

    @property
    def num_scheduled(self) -> int:
        return self.num_computed + sum(self.in_flight)


class ManagerMachine(RuleBasedStateMachine):
    """Sequences over a fake cache that records which tokens made each place: one reads what is one's own."""

    @initialize(
        windows=st.sampled_from([(None,), (None, 3), (4,), (2, None, 7)]),
        num_blocks=st.integers(4, 14),
        enable_prefix_caching=st.sampled_from([True, True, True, False]),
    )
    def start(self, windows: tuple[int | None, ...], num_blocks: int, enable_prefix_caching: bool) -> None:
        self.windows = windows
        self.num_blocks = num_blocks
        self.manager = make_manager(
            *((num_blocks, window) for window in windows), enable_prefix_caching=enable_prefix_caching
        )
        self.running: list[Model] = []
        self.waiting: list[Model] = []
        self.contents: dict[tuple[int, int, int], object] = {}

    @rule(token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=14), salt=st.sampled_from(["", "", "s"]))
    def add(self, token_ids: list[int], salt: str) -> None:
        if self.can_fit(token_ids):
            self.waiting.append(Model(SequenceBlocks(cache_salt=salt), token_ids))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), num_reserved=st.integers(0, 2))
    def admit(self, data: st.DataObject, num_reserved: int) -> None:
        model = data.draw(st.sampled_from(self.waiting))
        admission = self.manager.admit(model.blocks, model.token_ids, num_reserved)
        if not self.running and num_reserved == 0:
            assert admission is Admission.ADMITTED, "alone, it fits"
        if admission is Admission.ADMITTED:
            self.waiting.remove(model)
            self.running.append(model)
            model.num_computed = model.blocks.num_cached_blocks * BLOCK_SIZE
            model.num_promised = len(model.token_ids)
            assert model.num_computed < model.num_promised
            self.check_seen(model, model.num_computed)

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(),
        most=st.integers(1, 3),
        token_id=st.integers(0, 1),
        breaks=st.sampled_from([False] * 19 + [True]),
    )
    def schedule(self, data: st.DataObject, most: int, token_id: int, breaks: bool) -> None:
        model = data.draw(st.sampled_from(self.running))
        start = model.num_scheduled
        if start == len(model.token_ids):
            model.token_ids.append(token_id)
        end = min(start + most, len(model.token_ids))
        if len(model.in_flight) == 2:
            return
        if not self.manager.grow(model.blocks, end):
            assert end > model.num_promised
            return
        model.is_broken |= breaks
        for position in range(start, end):
            for group in range(len(self.windows)):
                content = "rubbish" if model.is_broken else self.content(model, position)
                self.contents[self.place(model, group, position)] = content
        model.in_flight.append(end - start)
        self.check_seen(model, start)

    @precondition(lambda self: any(model.in_flight for model in self.running))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from([model for model in self.running if model.in_flight]))
        model.num_computed += model.in_flight.pop(0)
        if model.is_broken:
            self.manager.distrust(model.blocks)
            self.leave(model)
        else:
            self.manager.commit(model.blocks, model.token_ids, model.num_computed)
            self.check_seen(model, model.num_computed)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), comes_back=st.booleans())
    def end_or_preempt(self, data: st.DataObject, comes_back: bool) -> None:
        model = data.draw(st.sampled_from(self.running))
        self.leave(model)
        if comes_back and not model.is_broken and self.can_fit(model.token_ids):
            self.waiting.append(Model(model.blocks, model.token_ids))

    @rule()
    def reset(self) -> None:
        self.manager.reset_prefix_cache()

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "manager"):
            self.manager.check_integrity([model.blocks for model in self.running])

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            for model in self.running[:]:
                self.leave(model)
            assert self.manager.num_free_blocks == self.manager.num_blocks

    def can_fit(self, token_ids: list[int]) -> bool:
        return all(
            num_blocks_needed(
                len(token_ids),
                block_size=BLOCK_SIZE,
                window=window,
                max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
            )
            <= self.num_blocks
            for window in self.windows
        )

    def leave(self, model: Model) -> None:
        self.running.remove(model)
        self.manager.release(model.blocks)

    def content(self, model: Model, position: int) -> object:
        return model.blocks.cache_salt, tuple(model.token_ids[: position + 1])

    def place(self, model: Model, group: int, position: int) -> tuple[int, int, int]:
        return group, model.blocks.tables[group][position // BLOCK_SIZE], position % BLOCK_SIZE

    def check_seen(self, model: Model, start: int) -> None:
        """What a row from ``start`` on sees of what is written is what the sequence's own tokens make."""
        for group, window in enumerate(self.windows):
            first = 0 if window is None else max(0, start - window + 1)
            for position in range(first, model.num_scheduled):
                content = self.contents[self.place(model, group, position)]
                assert model.is_broken or content == self.content(model, position)


TestManagerMachine = ManagerMachine.TestCase
TestManagerMachine.settings = settings(
    max_examples=300, stateful_step_count=60, deadline=None, derandomize=True
)
