from __future__ import annotations

import threading

import pytest

from triolet.frontend.exclusive import Exclusive


def in_a_thread(exclusive: Exclusive) -> list[BaseException]:
    """What another thread finds that wants it."""
    found: list[BaseException] = []

    def want() -> None:
        try:
            with exclusive.held():
                pass
        except RuntimeError as error:
            found.append(error)

    thread = threading.Thread(target=want)
    thread.start()
    thread.join()
    return found


def test_another_thread_is_told_what_to_do_instead() -> None:
    exclusive = Exclusive("LLM")
    with exclusive.held():
        (error,) = in_a_thread(exclusive)
    assert "this LLM is in use by another thread; make one for each thread" in str(error)
    assert in_a_thread(exclusive) == []


def test_the_thread_that_holds_it_may_hold_it_again() -> None:
    exclusive = Exclusive("LLM")
    with exclusive.held():
        with exclusive.held():
            exclusive.check()
        assert len(in_a_thread(exclusive)) == 1, "the outer one holds it still"


def test_an_exception_gives_it_back() -> None:
    exclusive = Exclusive("LLM")
    with pytest.raises(KeyError), exclusive.held():
        raise KeyError
    assert in_a_thread(exclusive) == []
