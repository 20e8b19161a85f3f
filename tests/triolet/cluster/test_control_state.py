"""What engines are meant to be, compared with what becomes of one that is asked all that was asked for."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import FakeRunner, fake_core

from triolet.cluster.codec import from_plain, to_plain
from triolet.cluster.control_state import ControlState, Order
from triolet.core.engine_core import EngineCore
from triolet.errors import ConflictError, InvalidRequestError

PARTS = ("weights", "kv_cache", "scheduling")
steps = st.lists(
    st.one_of(
        st.just(("pause", ())),
        st.just(("resume", ())),
        st.tuples(st.just("sleep"), st.tuples(st.sampled_from([0, 1, 2]))),
        st.tuples(st.just("wake_up"), st.tuples(st.none() | st.sets(st.sampled_from(PARTS)))),
    ),
    max_size=8,
)


def do(core: EngineCore, method: str, *arguments: Any) -> Any:
    """What a service does when it is asked."""
    match method:
        case "pause":
            core.pause("keep")
        case "resume":
            core.resume()
        case "sleep":
            core.pause("keep")
            core.sleep(arguments[0])
        case "wake_up":
            parts = core.parts_to_wake(arguments[0])
            core.restore_memory(parts)
            core.wake_up(parts)
            return parts
    return None


@given(steps)
def test_an_engine_that_joins_is_like_one_that_was_there(taken: list[tuple[str, tuple[Any, ...]]]) -> None:
    state, core = ControlState(), fake_core(FakeRunner())
    for method, arguments in taken:
        try:
            parts = do(core, method, *arguments)
        except (ConflictError, InvalidRequestError):
            continue
        version = state.version
        match method:
            case "pause":
                state = state.paused("keep")
            case "resume":
                state = state.resumed()
            case "sleep":
                state = state.sleeping(arguments[0], "keep")
            case "wake_up":
                state = state.woken(parts)
        assert state.version == version + 1
    assert (state.is_paused, bool(state.asleep)) == (core.is_paused, core.is_sleeping)
    joined = fake_core(FakeRunner())
    for method, call_arguments in state.calls():
        do(joined, method, *call_arguments)
    assert (joined.is_paused, joined.is_sleeping) == (core.is_paused, core.is_sleeping)
    assert joined.parts_to_wake(None) == core.parts_to_wake(None) == state.parts_asleep


def test_what_could_not_be_woken_sleeps_on_as_something_new() -> None:
    asleep = ControlState().sleeping(2, "wait")
    again = asleep.woken(asleep.parts_asleep).asleep_again(asleep)
    assert (again.version, again.asleep, again.level, again.mode) == (3, asleep.asleep, 2, "wait")


def test_those_that_have_begun_finish_after_all_where_that_was_asked_for() -> None:
    assert ControlState().paused("wait").calls() == [("pause", ("wait", False))]
    assert ControlState().paused("abort").calls() == [("pause", ("keep", False))]


def test_an_order_goes_over_the_wire_and_back() -> None:
    state = ControlState().sleeping(1, "keep").woken({"weights"})
    order = Order(state, "wake_up", (("weights",),), ends_requests=True)
    assert from_plain(Order, to_plain(order)) == order
    assert from_plain(Order, to_plain(Order())) == Order()


def test_what_empties_prefix_caches() -> None:
    forgetting = [
        Order(method=method, arguments=arguments).forgets_prefixes
        for method, arguments in [
            ("pause", ("keep", True)), ("sleep", (1, "keep")), ("reset_prefix_cache", (False,)),
            ("pause", ("keep", False)), ("sleep", (0, "keep")), ("resume", ()), (None, ()),
        ]
    ]  # fmt: skip
    assert forgetting == [True] * 3 + [False] * 4
