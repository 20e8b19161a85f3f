"""Models over several processes for real: answers as of one, deaths, signals, two machines."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.integration.shapes import Holdings, ask_all, ended_by, processes, running, stream, wait_until
from tests.leaks.census import child_processes
from tests.ports import free_port

from triolet import LLM, Engine, SamplingParams
from triolet.errors import EngineDeadError, UsageError
from triolet.sampling_params import StructuredOutputs

pytestmark = pytest.mark.slow

ONE_LOOP = pytest.mark.parametrize("anyio_backend", ["asyncio"])
OPTIONS: dict[str, Any] = {
    "dtype": "float32", "num_threads": 1, "num_kv_blocks": 64, "max_num_batched_tokens": 64,
    "max_num_seqs": 4,
}  # fmt: skip
PROMPTS = ["The quick brown fox jumps over the lazy dog. " * 2, "one", "The quick brown fox"]
PARAMS = [
    SamplingParams(max_tokens=12, temperature=0.0, logprobs=2, ignore_eos=True),
    SamplingParams(max_tokens=12, temperature=0.9, seed=5, ignore_eos=True),
    SamplingParams(max_tokens=12, seed=6, structured_outputs=StructuredOutputs(regex="[a-f]{5,9}")),
]

Answer = tuple[list[int], list[float]]


def answers(llm: LLM) -> list[Answer]:
    def of(output: Any) -> Answer:
        [choice] = output.outputs
        logprobs = [value for entry in choice.logprobs or () for value in entry.logprobs]
        return list(choice.token_ids), logprobs

    return [of(output) for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


def assert_close(actual: list[Answer], expected: list[Answer]) -> None:
    assert [tokens for tokens, _ in actual] == [tokens for tokens, _ in expected]
    for (_, logprobs), (_, others) in zip(actual, expected, strict=True):
        assert logprobs == pytest.approx(others, abs=1e-4)


def test_two_processes_answer_as_one_and_are_gone_afterwards(byte_llama: Path) -> None:
    """Text, drawn tokens, a grammar and logprobs, also from the prefix cache and after a sleep."""
    before = child_processes()
    with LLM(str(byte_llama), **OPTIONS) as llm:
        expected = answers(llm)
    with LLM(str(byte_llama), tensor_parallel_size=2, **OPTIONS) as llm:
        assert len(child_processes() - before) == 1
        first = answers(llm)
        assert_close(first, expected)
        assert answers(llm) == first, "bit for bit, from the prefix cache"
        llm.sleep(1)
        llm.wake_up()
        assert answers(llm) == first
    assert child_processes() <= before


@pytest.mark.model
def test_smollm2_on_three_shards(smollm2_path: Path) -> None:
    prompts, params = ["The capital of France is"], SamplingParams(max_tokens=8, temperature=0.0, logprobs=2)
    outputs = []
    for size in (1, 3):
        with LLM(
            str(smollm2_path),
            dtype="float32",
            num_threads=1,
            num_kv_blocks=16,
            max_model_len=256,
            tensor_parallel_size=size,
        ) as llm:
            outputs += llm.generate(prompts, params, use_tqdm=False)
    [whole], [sharded] = (output.outputs for output in outputs)
    assert sharded.token_ids == whole.token_ids
    assert chosen(sharded) == pytest.approx(chosen(whole), abs=1e-4)


def chosen(output: Any) -> list[float]:
    return [entry.logprobs[0] for entry in output.logprobs]


def test_a_number_that_the_model_does_not_take_is_refused_soon(byte_llama: Path) -> None:
    with pytest.raises(UsageError, match="is 3, but the model has 4 attention heads"):
        LLM(str(byte_llama), tensor_parallel_size=3, **OPTIONS)


@asynccontextmanager
async def engine_of(path: Path, **options: Any) -> AsyncIterator[Engine]:
    async with Engine(model=str(path), tensor_parallel_size=2, **OPTIONS, **options) as engine:
        yield engine


@pytest.mark.anyio
async def test_the_death_of_a_shard_is_that_of_the_engine(byte_llama: Path) -> None:
    """Also while nothing is asked of it."""
    others = child_processes()
    with pytest.raises(EngineDeadError, match="shard 1 of engine 0 died: killed by SIGKILL"):  # noqa: PT012
        async with engine_of(byte_llama):
            kill_children(others)
            with anyio.fail_after(10):
                await anyio.sleep_forever()


@pytest.mark.anyio
@ONE_LOOP
async def test_a_shard_that_dies_in_a_step_ends_the_streams_with_its_cause(byte_llama: Path) -> None:
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    seen: list[str] = []
    others = child_processes()

    async def read(engine: Engine) -> None:
        try:
            async for _ in engine.generate("abc", params):
                kill_children(others)
        except EngineDeadError as error:
            seen.append(str(error))
            raise

    with pytest.raises(EngineDeadError, match="shard 1 of engine 0 died: killed by SIGKILL"):
        async with engine_of(byte_llama) as engine:
            await read(engine)
    assert "killed by SIGKILL" in seen[0]


def kill_children(others: Set[int]) -> None:
    """Those that are new; a server of other tests may be among the ``others``."""
    for pid in child_processes() - others:
        os.kill(pid, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


BODIES: list[dict[str, Any]] = [
    {"prompt": f"Story {number}", "max_tokens": 12, "ignore_eos": True, "temperature": 0}
    for number in range(12)
]
RANK_0, RANK_1 = ({"X-data-parallel-rank": rank} for rank in "01")


@pytest.mark.timeout(300)
def test_two_ranks_of_two_shards_behind_two_api_servers(byte_llama: Path) -> None:
    """A shard that dies takes its rank with it; the other serves on, and the rank comes back whole."""
    shape = ("--tensor-parallel-size", "2", "--data-parallel-size", "2", "--api-server-count", "2")
    with LLM(str(byte_llama), **OPTIONS) as llm:
        params = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0)
        outputs = llm.generate([body["prompt"] for body in BODIES], params, use_tqdm=False)
    expected = [output.outputs[0].text for output in outputs]
    with running(byte_llama, (*shape, "--dtype", "float32", "--shutdown-timeout", "30")) as (server,):
        assert ask_all(server, BODIES) == expected
        engine, other = processes(server, b"engine_process")
        [shard] = children_of(engine)
        with (
            stream(server, max_tokens=200, headers=RANK_0) as first,
            stream(server, max_tokens=200, headers=RANK_1) as second,
        ):
            os.kill(shard, signal.SIGKILL)
        kept, lost = sorted((first, second), key=lambda events: "error" in events[-2])
        assert re.search(r"shard 1 of engine \d died: killed by SIGKILL", lost[-2]["error"]["message"])
        assert ended_by(kept) == "length"
        assert ask_all(server, BODIES) == expected, "by the rank that is left"
        wait_until(lambda: server.ranks() == ["ready", "ready"], 60, lambda: server.log)
        assert sorted(rank["num_restarts"] for rank in server.get("/health")["ranks"]) == [0, 1]
        assert not Path(f"/proc/{engine}").exists()
        assert ask_all(server, BODIES) == expected
        holdings = Holdings.of([server])
        assert len(holdings.pids) == 7
        [shard] = children_of(other)
        os.kill(other, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{shard}").exists(), 20)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.log
        assert holdings.left() == []


class Machine:
    """One of two ``machines`` of a rank, on the loopback."""

    def __init__(self, path: Path, node_rank: int, master_port: int, *arguments: str) -> None:
        command = [
            sys.executable, "-m", "server", str(path), "--nnodes", "2", "--node-rank", str(node_rank),
            "--tensor-parallel-size", "2", "--master-addr", "127.0.0.1", "--master-port", str(master_port),
            "--dtype", "float32", "--num-threads", "1", "--num-kv-blocks", "64", *arguments,
        ]  # fmt: skip
        search_path = os.pathsep.join(entry for entry in sys.path if entry)
        self.process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": search_path}, stderr=subprocess.PIPE, text=True
        )

    def wait_for_line(self, text: str) -> None:
        """Until it has written a line with this in it."""
        assert self.process.stderr is not None
        assert any(text in line for line in self.process.stderr), f"it never wrote {text!r}"

    def end(self) -> tuple[int, str]:
        """Its exit code and what it wrote, after the line that was waited for."""
        _, written = self.process.communicate(timeout=60)
        return self.process.returncode, written


def complete(port: int) -> str:
    body = {"model": "bytes", "prompt": "abc", "max_tokens": 4, "temperature": 0}
    deadline = time.monotonic() + 60
    while True:
        try:
            response = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=30)
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
            continue
        if response.status_code == 200:
            return str(response.json()["choices"][0]["text"])
        assert response.status_code == 503
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("killed", [None, 0, 1])
def test_two_machines_share_a_rank(byte_llama: Path, killed: int | None) -> None:
    """Orderly, and with the one or the other killed: each ends in time, with the right exit code."""
    master = free_port(2)
    port = master + 1
    worker = Machine(byte_llama, 1, master, "--headless")
    head = Machine(byte_llama, 0, master, "--port", str(port), "--served-model-name", "bytes")
    try:
        text = complete(port)
        if killed is None:
            with LLM(str(byte_llama), **OPTIONS) as llm:
                params = SamplingParams(max_tokens=4, temperature=0.0)
                assert llm.generate("abc", params, use_tqdm=False)[0].outputs[0].text == text
        number = signal.SIGTERM if killed is None else signal.SIGKILL
        (worker if killed == 1 else head).process.send_signal(number)
        if killed == 1:
            url, body = f"http://127.0.0.1:{port}/v1/completions", {"model": "bytes", "prompt": "x"}
            with pytest.raises(httpx.HTTPError):
                httpx.post(url, json=body, timeout=20).raise_for_status()
        head_code, head_said = head.end()
        worker_code, worker_said = worker.end()
    finally:
        for machine in (head, worker):
            machine.process.kill()
            machine.process.wait()
    if killed is None:
        assert (head_code, worker_code) == (0, 0), (head_said, worker_said)
    elif killed == 0:
        assert worker_code == 1
        assert "a tensor parallel shard was lost" in worker_said
    else:
        assert head_code == 1
        assert "a tensor parallel shard was lost" in head_said


def test_sigterm_ends_a_worker_that_waits(byte_llama: Path) -> None:
    worker = Machine(byte_llama, 1, free_port(), "--headless")
    worker.wait_for_line("shard 1 of engine 0, which is at 127.0.0.1")
    worker.process.terminate()
    assert worker.end()[0] == 0
