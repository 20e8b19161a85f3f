"""The library in scripts of its users: no main guard, any loop, any thread, and a process left as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PRELUDE = """
import asyncio, json, multiprocessing, os, signal, sys, threading
import anyio, torch, trio
from tests.leaks.census import child_processes
from triolet import LLM, Engine, SamplingParams

MODEL = sys.argv[1]
OPTIONS = dict(model=MODEL, num_kv_blocks=32, num_threads=1, kernels="reference")
PARAMS = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)

def process():
    return [
        *[signal.getsignal(number) for number in signal.valid_signals()],
        asyncio.get_event_loop_policy(),
        multiprocessing.get_start_method(allow_none=True),
        sys.getswitchinterval(),
        torch.get_num_threads(),
        dict(os.environ),
        sys.excepthook,
        threading.excepthook,
        os.getcwd(),
    ]

def changes(before):
    return [[str(old), str(new)] for old, new in zip(before, process()) if old != new]

async def answer(engine, prompt="abc"):
    async for output in engine.generate(prompt, PARAMS):
        pass
    return output.outputs[0].token_ids

asyncio.get_event_loop_policy()  # makes the default one, if there is none yet
before, say = process(), {}
"""

EPILOGUE = """
say["changes"] = changes(before)
say["children"] = len(child_processes())
say["threads"] = [thread.name for thread in threading.enumerate() if thread.name.startswith("triolet")]
print(json.dumps(say))
"""

ONE_AFTER_THE_OTHER_AND_TWO_AT_ONCE = """
async def main():
    inside = process()  # the loop has a handler of its own for interrupts
    async with Engine(**OPTIONS) as engine:
        say["alone"] = await answer(engine)
        say["children while running"] = len(child_processes())
        say["changes inside"] = changes(inside)
    async with Engine(**OPTIONS) as first, Engine(**OPTIONS) as second:
        answers = [None, None]
        async def ask(index, engine):
            answers[index] = await answer(engine)
        async with anyio.create_task_group() as task_group:
            task_group.start_soon(ask, 0, first)
            task_group.start_soon(ask, 1, second)
    say["two at once"] = answers
    try:
        async with Engine(**OPTIONS) as engine:
            stream = await engine.submit("abc", PARAMS)
            raise KeyError("mine")
    except KeyError as error:
        say["exception"] = repr(error)
    with anyio.CancelScope() as scope:
        async with Engine(**OPTIONS) as engine:
            async for _ in engine.generate("abc", PARAMS.replace(max_tokens=100)):
                scope.cancel()
    say["cancelled"] = scope.cancelled_caught
"""

ASYNCIO = ONE_AFTER_THE_OTHER_AND_TWO_AT_ONCE + "asyncio.run(main())\n"
TRIO = ONE_AFTER_THE_OTHER_AND_TWO_AT_ONCE + "trio.run(main)\n"
THREADS = """
answers = {}

async def main():
    async with Engine(**OPTIONS) as engine:
        answers[threading.current_thread().name] = await answer(engine)

def on_asyncio():
    asyncio.run(main())

def on_trio():
    trio.run(main)

def without_a_loop():
    with LLM(**OPTIONS) as llm:
        (output,) = llm.generate("abc", PARAMS)
        answers["without_a_loop"] = output.outputs[0].token_ids

threads = [threading.Thread(target=f, name=f.__name__) for f in (on_asyncio, on_trio, without_a_loop)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
say["answers"] = answers
"""


def run_script(body: str, model: Path, folder: Path) -> Any:
    """Run a script of a user's own in a process of its own; → what it says."""
    script = folder / "script.py"
    script.write_text(PRELUDE + body + EPILOGUE)
    paths = [os.path.abspath(path) for path in sys.path if path]
    flags = ["-W", "error::RuntimeWarning", "-W", "error::ResourceWarning"]
    done = subprocess.run(
        [sys.executable, *flags, str(script), str(model)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()  # the script ran once, and nobody else printed anything
    said = json.loads(line)
    assert said.pop("changes") == []
    assert said.pop("children") == 0
    assert said.pop("threads") == []
    return said


@pytest.mark.parametrize("body", [ASYNCIO, TRIO], ids=["asyncio", "trio"])
def test_engines_in_a_script(body: str, byte_llama: Path, tmp_path: Path) -> None:
    said = run_script(body, byte_llama, tmp_path)
    assert len(said["alone"]) == 8
    assert said["two at once"] == [said["alone"]] * 2
    assert said["exception"] == "KeyError('mine')"
    assert said["cancelled"] is True
    assert said["children while running"] == 0
    assert said["changes inside"] == []


def test_three_front_ends_in_threads_at_once(byte_llama: Path, tmp_path: Path) -> None:
    answers = run_script(THREADS, byte_llama, tmp_path)["answers"]
    assert set(answers) == {"on_asyncio", "on_trio", "without_a_loop"}
    assert len(set(map(tuple, answers.values()))) == 1
    assert all(len(token_ids) == 8 for token_ids in answers.values())
