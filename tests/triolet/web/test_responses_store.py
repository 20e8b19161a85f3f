"""The store against a model of it that keeps a list: bounds, order of dropping, owners."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from triolet.web.responses_store import ENTRY_BYTES, LARGEST_ENTRY, ResponseStore, StoredResponse

MAX_RESPONSES, MAX_BYTES = 4, 6 * ENTRY_BYTES
OWNERS = st.sampled_from(["alice", "bob"])


class StoreMachine(RuleBasedStateMachine):
    """``kept`` is ordered by use, the latest last."""

    def __init__(self) -> None:
        super().__init__()
        self.store = ResponseStore(MAX_RESPONSES, MAX_BYTES)
        self.kept: dict[str, StoredResponse] = {}
        self.num_put = 0

    @rule(owner=OWNERS, size=st.integers(0, MAX_BYTES), other_size=st.integers(0, ENTRY_BYTES))
    def put(self, owner: str, size: int, other_size: int) -> None:
        stored = StoredResponse(owner, bytes(size), bytes(other_size))
        name = str(self.num_put)
        self.num_put += 1
        is_kept = stored.num_bytes <= MAX_BYTES
        assert self.store.put(name, stored) == is_kept
        if not is_kept:
            return
        self.kept[name] = stored
        while len(self.kept) > MAX_RESPONSES or sum(s.num_bytes for s in self.kept.values()) > MAX_BYTES:
            del self.kept[next(iter(self.kept))]

    @rule(owner=OWNERS, age=st.integers(1, 6))
    def find(self, owner: str, age: int) -> None:
        name = str(self.num_put - age)
        expected = self.kept.get(name)
        if expected is not None and expected.owner == owner:
            self.kept[name] = self.kept.pop(name)
        else:
            expected = None
        assert self.store.find(name, owner) == expected

    @rule(owner=OWNERS, age=st.integers(1, 6))
    def delete(self, owner: str, age: int) -> None:
        name = str(self.num_put - age)
        is_there = name in self.kept and self.kept[name].owner == owner
        assert self.store.delete(name, owner) == is_there
        if is_there:
            del self.kept[name]

    @invariant()
    def is_bounded(self) -> None:
        assert len(self.store) == len(self.kept) <= MAX_RESPONSES
        assert self.store.num_bytes == sum(stored.num_bytes for stored in self.kept.values()) <= MAX_BYTES


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


def test_a_store_of_nothing_is_off() -> None:
    for sizes in ((0, 100), (100, 0)):
        store = ResponseStore(*sizes)
        assert not store.put("1", StoredResponse("", b"", b""))
        assert store.is_off
        assert store.find("1", "") is None


def test_what_could_not_be_sent_to_another_server_is_not_kept() -> None:
    store = ResponseStore(10, 10 * LARGEST_ENTRY)
    assert not store.put("1", StoredResponse("", bytes(LARGEST_ENTRY), b""))
    assert len(store) == 0
