from __future__ import annotations

import threading

from triolet.text.errands import Errands


def test_they_run_in_order_on_one_thread_that_ends() -> None:
    errands, done = Errands("triolet-test"), list[tuple[int, str]]()
    may_begin, all_done = threading.Event(), threading.Event()
    errands.add(may_begin.wait)  # type: ignore[arg-type]
    for number in range(50):
        errands.add(lambda number=number: done.append((number, threading.current_thread().name)))  # type: ignore[misc]
    errands.add(all_done.set)
    assert done == []
    may_begin.set()
    assert all_done.wait(10)
    errands.close()
    assert done == [(number, "triolet-test") for number in range(50)]


def test_another_thread_comes_after_the_first_has_ended() -> None:
    errands, threads = Errands("triolet-test"), list[threading.Thread]()
    for _ in range(3):
        ran = threading.Event()
        errands.add(lambda: threads.append(threading.current_thread()))
        errands.add(ran.set)
        assert ran.wait(10)
        errands.close()
    assert not any(thread.is_alive() for thread in threads)
    assert len(threads) == 3


def test_closing_drops_what_has_not_begun_and_waits_for_the_rest() -> None:
    errands, has_begun, may_end, done = (
        Errands("triolet-test"),
        threading.Event(),
        threading.Event(),
        list[str](),
    )

    def first() -> None:
        has_begun.set()
        may_end.wait()
        done.append("first")

    errands.add(first)
    errands.add(lambda: done.append("second"))
    assert has_begun.wait(10)
    closing = threading.Thread(target=errands.close)
    closing.start()
    while errands._waiting:
        closing.join(0.001)
    may_end.set()
    closing.join()
    assert done == ["first"]
    errands.close()
