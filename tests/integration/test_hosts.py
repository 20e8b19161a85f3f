"""A head and two headless nodes on hosts of their own: in any order, with cables that are cut and killings.

Each host is a network namespace. The head serves HTTP on a Unix socket, which needs no network.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from bench.answers import Job, Verdict, ask, expected_texts, make_jobs
from tests.integration.hosts import Network, why_not

from triolet.cluster.handshake import PROTOCOL_VERSION

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(300)]

SECRET = "a secret that all hosts know"
LIVENESS_SECONDS = 3.0
LEAVING_SECONDS = 10.0
"""What a node may take to end, beyond noticing why."""
START_SECONDS = 120.0
MAX_NUM_SEQS = 2
OLD_VERSION = """
import sys
from triolet.cluster import handshake
handshake.PROTOCOL_VERSION += 1
from triolet.cli import serve_main
sys.exit(serve_main())
"""


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The loop of the client; one node runs on the other."""
    return str(request.param)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """The hosts outlive a test: that nothing is left of them is seen in the end, by :func:`cluster`."""


class Cluster:
    """The three hosts and what is to run on them."""

    def __init__(self, network: Network, model: Path, socket: Path) -> None:
        self.network = network
        self.head, *self.nodes = network.hosts
        self._model = model
        self._socket = socket
        self._jobs = expected_texts(str(model), make_jobs(80, 3, max_tokens=130))

    def jobs(self, number: int) -> list[Job]:
        """Long ones first."""
        return sorted(self._jobs, key=lambda job: -job.max_tokens)[:number]

    def arguments(self, rank: int, *more: str) -> list[str]:
        """The command line of the host with the rank."""
        alike = [
            str(self._model), "--data-parallel-size", "3", "--data-parallel-size-local", "1",
            "--data-parallel-address", self.head.address, "--liveness-timeout", str(LIVENESS_SECONDS),
            "--max-num-seqs", str(MAX_NUM_SEQS), "--num-threads", "1", "--num-kv-blocks", "64",
            "--device", "cpu",
        ]  # fmt: skip
        node = ["--headless", "--data-parallel-start-rank", str(rank)]
        return [*alike, *(node if rank else ["--uds", str(self._socket)]), *more]

    def start(self, rank: int) -> None:
        more = ["--backend", "trio"] if rank == 2 else []
        self.network.hosts[rank].serve(self.arguments(rank, *more), TRIOLET_CLUSTER_SECRET=SECRET)

    def client(self, rank: int | None = None) -> httpx.AsyncClient:
        """For requests at a rank, or at any."""
        headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
        transport = httpx.AsyncHTTPTransport(uds=str(self._socket))
        return httpx.AsyncClient(transport=transport, base_url="http://head", headers=headers, timeout=60)

    async def health(self) -> dict[str, Any]:
        async with self.client() as client:
            return (await client.get("/health")).json()  # type: ignore[no-any-return]

    async def until(self, *states: str, seconds: float = START_SECONDS) -> dict[str, Any]:
        """Wait until the ranks are so, in their order; what /health says then."""
        said: object = None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                health = await self.health()
                said = [rank["state"] for rank in health["ranks"]]
            except httpx.TransportError as error:
                said = error
            else:
                if said == list(states):
                    return health
            assert self.head.is_running, self.head.said
            await anyio.sleep(0.05)
        raise AssertionError(f"the ranks are {said}\n{self.head.said}")

    async def whole(self) -> None:
        """All hosts run and all ranks serve, whatever was before."""
        for rank, host in enumerate(self.network.hosts):
            host.mend()
            if not host.is_running:
                self.start(rank)
        await self.until("ready", "ready", "ready")

    @asynccontextmanager
    async def load(self, jobs: list[Job], rank: int | None = None) -> Any:
        """Ask for all of them at once; their verdicts are there once the block has been left."""
        verdicts: list[Verdict] = []

        async def ask_for(client: httpx.AsyncClient, job: Job) -> None:
            verdicts.append(await ask(client, job, is_streamed=True))

        async with self.client(rank) as client, anyio.create_task_group() as tasks:
            for job in jobs:
                tasks.start_soon(ask_for, client, job)
            yield verdicts

    async def busy(self, rank: int) -> None:
        """Return once requests are computed at the rank."""
        with anyio.fail_after(30):
            while not (await self.health())["ranks"][rank]["num_running"]:
                pass


@pytest.fixture(scope="module")
def cluster(byte_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("hosts")
    network = Network(["head", "left", "right"], folder)
    with network.up():
        yield Cluster(network, byte_llama, folder / "http")
        if network.hosts[0].is_running:
            network.hosts[0].kill()
        assert network.wait_empty(LIVENESS_SECONDS + LEAVING_SECONDS) == []


def count(verdicts: list[Verdict]) -> dict[str, int]:
    violations = [verdict.told for verdict in verdicts if verdict.kind == "violation"]
    assert violations == []
    return Counter(verdict.kind for verdict in verdicts)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


async def test_nodes_may_come_late_and_strangers_may_not(cluster: Cluster) -> None:
    cluster.start(0)
    await cluster.until("ready", "starting", "starting")
    async with cluster.client() as client:
        assert (await client.get("/ready")).status_code == 200
    left, right = cluster.nodes
    wrong = {
        "secret": left.try_to_serve(cluster.arguments(1), TRIOLET_CLUSTER_SECRET=SECRET[::-1]),
        "version": left.try_to_serve(cluster.arguments(1), code=OLD_VERSION, TRIOLET_CLUSTER_SECRET=SECRET),
        "options": right.try_to_serve(
            cluster.arguments(2, "--block-size", "16"), TRIOLET_CLUSTER_SECRET=SECRET
        ),
    }
    said = {name: process.communicate(timeout=60)[0].decode() for name, process in wrong.items()}
    assert {name: process.returncode for name, process in wrong.items()} == {
        "secret": 1, "version": 1, "options": 2,
    }, said  # fmt: skip
    assert "secret" in said["secret"].splitlines()[-1]
    told = f"speaks version {PROTOCOL_VERSION} of the protocol, this one version {PROTOCOL_VERSION + 1}"
    assert told in said["version"].splitlines()[-1]
    assert "block_size is 32 at the head, 16 at the node" in said["options"].splitlines()[-1]
    await cluster.whole()
    for rank in range(3):
        async with cluster.load(cluster.jobs(4), rank) as verdicts:
            pass
        assert count(verdicts) == {"answered": 4}


async def test_a_short_cut_loses_nothing(cluster: Cluster) -> None:
    await cluster.whole()
    left = cluster.nodes[0]
    async with cluster.load(cluster.jobs(20), 1) as verdicts:
        await cluster.busy(1)
        left.cut()
        await anyio.sleep(LIVENESS_SECONDS / 3)
        left.mend()
    assert count(verdicts) == {"answered": 20}
    health = await cluster.until("ready", "ready", "ready", seconds=10.0)
    assert health["ranks"][1]["num_restarts"] == 0


async def test_a_cut_node_is_missed_leaves_and_comes_back(cluster: Cluster) -> None:
    await cluster.whole()
    left = cluster.nodes[0]
    async with cluster.load(cluster.jobs(30)) as verdicts:
        await cluster.busy(1)
        left.cut()
        await cluster.until("ready", "down", "ready", seconds=2 * LIVENESS_SECONDS)
        await check_degraded(cluster, 1)
        with within(LIVENESS_SECONDS + LEAVING_SECONDS):
            assert left.wait(20) == 1
    assert count(verdicts)["answered"] >= 30 - MAX_NUM_SEQS
    assert f"the head at tcp:{cluster.head.address}:29550 is lost: " in left.said.splitlines()[-1]
    await cluster.whole()
    async with cluster.load(cluster.jobs(4), 1) as verdicts:
        pass
    assert count(verdicts) == {"answered": 4}


async def check_degraded(cluster: Cluster, rank: int) -> None:
    """The head serves on, and says what it has lost."""
    with anyio.fail_after(LIVENESS_SECONDS):
        while not re.search("node .* is lost: ", (await cluster.health())["ranks"][rank]["cause"] or ""):
            pass
    assert (await cluster.health())["state"] == "degraded"
    async with cluster.client() as client:
        assert (await client.get("/ready")).status_code == 200


async def test_requests_of_a_killed_node_go_elsewhere(cluster: Cluster) -> None:
    await cluster.whole()
    right = cluster.nodes[1]
    async with cluster.load(cluster.jobs(30)) as verdicts:
        await cluster.busy(2)
        right.kill()
        await cluster.until("ready", "ready", "down", seconds=2 * LIVENESS_SECONDS)
        await check_degraded(cluster, 2)
    assert count(verdicts)["answered"] >= 30 - MAX_NUM_SEQS
    await cluster.whole()


async def test_nodes_leave_when_their_head_is_killed(cluster: Cluster) -> None:
    await cluster.whole()
    cluster.head.kill()
    with within(LEAVING_SECONDS):
        assert [node.wait(20) for node in cluster.nodes] == [1, 1]
    for node in cluster.nodes:
        assert "is lost: " in node.said.splitlines()[-1]
    assert cluster.network.wait_empty(LEAVING_SECONDS) == []
