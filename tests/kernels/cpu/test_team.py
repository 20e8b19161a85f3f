"""The team of threads that kernels share their work with."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

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
    function = ctypes.CFUNCTYPE(None, Body, ctypes.c_void_p, ctypes.c_uint)(entry)

    def run(body: Callable[[], None], num_threads: int) -> None:
        function(Body(lambda _: body()), None, num_threads)

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


def does_worker_come(run_team: RunTeam, *, stays: float = 0.0) -> bool:
    """Whether one comes within a tenth of a second. It then stays in the job for so many seconds."""
    others, has_come = threading.Semaphore(0), False
    caller = threading.get_native_id()

    def body() -> None:
        nonlocal has_come
        if threading.get_native_id() == caller:
            has_come = others.acquire(timeout=0.1)
        else:
            others.release()
            threading.Event().wait(stays)

    run_team(body, 2)
    return has_come


def has_workers(run_team: RunTeam) -> bool:
    """Whether one comes in the end: on a busy machine the team does without for a while."""
    return any(does_worker_come(run_team) for _ in range(100))


def test_workers_do_take_part(run_team: RunTeam) -> None:
    # They must come, whether asleep or spinning.
    for _ in range(20):
        assert has_workers(run_team)


def test_a_team_that_has_lost_much_time_does_with_fewer_for_a_while(run_team: RunTeam) -> None:
    # A worker that holds work and sleeps uses no core, like one that has lost its own.
    assert any(does_worker_come(run_team, stays=0.05) for _ in range(100))
    assert not does_worker_come(run_team)
    assert has_workers(run_team)


def test_nothing_is_running_when_it_returns(run_team: RunTeam) -> None:
    for _ in range(100):
        inside = Counter[str]()

        def body(inside: Counter[str] = inside) -> None:
            inside["came"] += 1
            sum(range(2000))
            inside["left"] += 1

        run_team(body, 4)
        assert inside["came"] == inside["left"] >= 1


def num_threads_here() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_a_second_caller_works_alone_meanwhile(run_team: RunTeam) -> None:
    caller, threads = threading.get_native_id(), list[int]()
    num_hired = -1

    def second() -> None:
        nonlocal num_hired
        before = num_threads_here()
        run_team(lambda: threads.append(threading.get_native_id()), 100)  # more than there are workers
        num_hired = num_threads_here() - before

    def first() -> None:
        if threading.get_native_id() != caller:
            return
        thread = threading.Thread(target=second, daemon=True)
        thread.start()
        thread.join(timeout=10)
        threads.append(thread.native_id or 0)

    run_team(first, 2)
    assert num_hired == 0, "it neither waited for the first caller nor opened a job of its own"
    assert len(threads) == 2
    assert len(set(threads)) == 1


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
@pytest.mark.parametrize("is_job_open", [False, True])
def test_a_forked_child_has_a_team_of_its_own(run_team: RunTeam, is_job_open: bool) -> None:
    run_team(lambda: None, 2)
    caller, codes = os.getpid(), list[int]()

    def fork() -> None:
        child = os.fork()
        if child == 0:
            os._exit(0 if has_workers(run_team) else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    if is_job_open:
        run_team(lambda: fork() if threading.get_native_id() == caller else None, 2)
    else:
        fork()
    assert codes == [0]
