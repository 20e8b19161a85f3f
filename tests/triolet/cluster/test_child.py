"""A child does not outlive its parent, whatever either of them is doing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.triolet.cluster.gone import is_gone

pytestmark = pytest.mark.anyio

PARENT = """
import anyio
from triolet.cluster.processes import ProcessSpec, SubprocessStarter

async def main():
    async with anyio.create_task_group() as task_group:
        spec = ProcessSpec(name="child", role="tests.triolet.cluster.roles:{role}")
        child = await task_group.start(SubprocessStarter(backend={backend!r}).run, spec)
        print(int((await child.stream.receive()).split()[0]), flush=True)
        await anyio.sleep_forever()

anyio.run(main, backend={backend!r})
"""


@pytest.fixture
def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@pytest.mark.parametrize("role", ["echo", "spin"])
async def test_a_child_dies_with_its_parent(
    role: str, anyio_backend: str, environment: dict[str, str]
) -> None:
    """By the end of its link, or, where it does not look at that, by the kernel."""
    script = PARENT.format(role=role, backend=anyio_backend)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as parent:  # noqa: ASYNC220
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    assert await is_gone(child)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_child_whose_parent_is_another_leaves_before_it_does_anything(
    environment: dict[str, str],
) -> None:
    command = [sys.executable, "-m", "triolet.cluster.child", "no.such:role", "0", "1", "asyncio"]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=30)  # noqa: ASYNC221
    assert (done.returncode, done.stderr) == (1, b"")


def test_nothing_but_the_standard_library_is_imported_before(environment: dict[str, str]) -> None:
    def loaded(code: str) -> set[str]:
        command = [sys.executable, "-c", f"import sys{code}; print(*sys.modules)"]
        output = subprocess.run(command, env=environment, capture_output=True, text=True).stdout
        return {name.split(".")[0] for name in output.split()}

    assert loaded(", triolet.cluster.child") - loaded("") - set(sys.stdlib_module_names) == {"triolet"}
