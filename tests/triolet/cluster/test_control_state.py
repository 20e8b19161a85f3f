"""What engines that join are asked, compared with what became of one that was asked everything."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import FakeRunner, fake_core

from triolet.cluster.control_state import ControlState
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
        getattr(state, method)(*(arguments if method != "wake_up" else (parts,)))
        assert state.version == version + 1
    assert (state.is_paused, bool(state.asleep)) == (core.is_paused, core.is_sleeping)
    joined = fake_core(FakeRunner())
    for method, call_arguments in state.calls():
        do(joined, method, *call_arguments)
    assert (joined.is_paused, joined.is_sleeping) == (core.is_paused, core.is_sleeping)
    assert joined.parts_to_wake(None) == core.parts_to_wake(None)


def test_what_could_not_be_woken_sleeps_on() -> None:
    state = ControlState()
    state.sleep(1)
    asleep = state.asleep
    state.wake_up(asleep)
    state.sleep_on(asleep)
    assert (state.is_paused, state.asleep) == (True, asleep)
