"""The team of threads that kernels share their work with."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from tests.kernels.cpu.variants import build_if_missing

from triolet_kernels.cpu import CpuOps
from triolet_kernels.cpu.loader import NativeLibrary

Body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
RunTeam = Callable[[Callable[[], None], int], None]


@pytest.fixture
def run_team() -> RunTeam:
    build_if_missing()
    entry, _ = NativeLibrary.open({}).team
    assert entry is not None
    function = ctypes.CFUNCTYPE(None, Body, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(entry)

    def run(body: Callable[[], None], num_threads: int) -> None:
        function(Body(lambda _: body()), None, num_threads, 0)

    return run


def test_one_thread_is_the_caller(run_team: RunTeam) -> None:
    threads: list[int] = []
    run_team(lambda: threads.append(threading.get_native_id()), 1)
    assert threads == [threading.get_native_id()]


def test_the_caller_takes_part_and_no_more_than_asked_for(run_team: RunTeam) -> None:
    for _ in range(200):
        threads: list[int] = []
        run_team(lambda threads=threads: threads.append(threading.get_native_id()), 3)  # type: ignore[misc]
        assert threading.get_native_id() in threads
        assert len(threads) == len(set(threads)) <= 3


def test_workers_do_take_part(run_team: RunTeam) -> None:
    # The caller stays until a worker has come: it must come, whether asleep or spinning.
    for _ in range(20):
        others = threading.Semaphore(0)
        caller = threading.get_native_id()

        def body(others: threading.Semaphore = others, caller: int = caller) -> None:
            if threading.get_native_id() == caller:
                assert others.acquire(timeout=30)
            else:
                others.release()

        run_team(body, 2)


def test_nothing_is_running_when_it_returns(run_team: RunTeam) -> None:
    for _ in range(100):
        inside = Counter[str]()

        def body(inside: Counter[str] = inside) -> None:
            inside["came"] += 1
            sum(range(2000))
            inside["left"] += 1

        run_team(body, 4)
        assert inside["came"] == inside["left"] >= 1


def test_a_second_caller_works_alone_meanwhile(run_team: RunTeam) -> None:
    threads: list[int] = []

    def second() -> None:
        run_team(lambda: threads.append(threading.get_native_id()), 2)

    def first() -> None:
        if not threads:
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()

    run_team(first, 1 + 1)
    assert threads


def test_callers_in_many_threads_get_right_results() -> None:
    ops = CpuOps(NativeLibrary.open({}, num_threads=2))
    weight = torch.randn(576)
    inputs = [torch.randn(64, 576) for _ in range(4)]
    expected = [ops.rms_norm(x, weight, 1e-5) for x in inputs]
    num_right = Counter[int]()

    def work(index: int) -> None:
        for _ in range(50):
            num_right[index] += torch.equal(ops.rms_norm(inputs[index], weight, 1e-5), expected[index])

    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert num_right == dict.fromkeys(range(4), 50)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_a_team_of_its_own(run_team: RunTeam) -> None:
    run_team(lambda: None, 2)
    child = os.fork()
    if child == 0:
        done: list[int] = []
        run_team(lambda: done.append(1), 2)
        os._exit(0 if done else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
