"""Manifests, units and scripts start what the pages about them say, and give it the time that it needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from tests.hygiene.deployments import HOW_TO, Pod, pods, serve_args_of, unit
from tests.hygiene.snippets import snippets

from triolet.args import ServeArgs
from triolet.web.route_descriptions import ROUTES

API: dict[str, Any] = {
    "Service": client.V1Service, "Deployment": client.V1Deployment, "StatefulSet": client.V1StatefulSet,
}  # fmt: skip
MANIFESTS = sorted((HOW_TO / "kubernetes").glob("*.yaml"))
PODS = list(pods())
UNITS = sorted((HOW_TO / "systemd").glob("*.service"))
CLOSING_SECONDS = 20
"""What a server may take beyond its time-outs to write last events, close connections, and stop engines."""
SHAPES = {
    "server:triolet": ("single", [0], [0]),
    "cluster:triolet-head": ("internal", [0], [0, 1, 2]),
    "cluster:triolet-node": ("headless", [2], []),
    "leader-worker-set:triolet.leaderWorkerTemplate.leaderTemplate": ("internal", [0], [0, 1, 2]),
    "leader-worker-set:triolet.leaderWorkerTemplate.workerTemplate": ("headless", [2], []),
    "triolet.service": ("internal", [0, 1], [0, 1]),
    "triolet-head.service": ("internal", [0], [0, 1, 2]),
    "triolet-node@.service": ("headless", [2], []),
}
"""The shape, the ranks here, and those that requests go to."""


def shape_of(args: ServeArgs) -> tuple[str, list[int], list[int]]:
    shape = args.launch_shape()
    return shape.mode, list(shape.local_ranks), list(shape.served_ranks)


def seconds_to_stop(args: ServeArgs) -> float:
    return args.drain_lead_time + args.shutdown_timeout + CLOSING_SECONDS


def is_head(args: ServeArgs) -> bool:
    return bool(args.launch_shape().remote_ranks)


def test_everything_is_looked_at() -> None:
    assert {str(pod) for pod in PODS} | {path.name for path in UNITS} == set(SHAPES)


@pytest.mark.parametrize("pod", PODS, ids=str)
def test_a_pod_starts_what_it_should_and_may_end_in_peace(pod: Pod) -> None:
    args = pod.serve_args
    assert shape_of(args) == SHAPES[str(pod)]
    assert pod.spec["terminationGracePeriodSeconds"] >= seconds_to_stop(args)
    assert args.launch_shape().needs_secret == ("TRIOLET_CLUSTER_SECRET" in pod.environment)
    assert "lifecycle" not in pod.container, "the lead time does what a preStop hook would"
    mounts = {mount["mountPath"] for mount in pod.container["volumeMounts"]}
    assert str(args.cache_dir) in mounts


@pytest.mark.parametrize("pod", PODS, ids=str)
def test_probes_ask_routes_that_exist_of_pods_that_have_them(pod: Pod) -> None:
    args = pod.serve_args
    paths = [pod.probed_path(name) for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    ports = {port["name"]: port["containerPort"] for port in pod.container.get("ports", [])}
    if args.headless:
        assert paths == [None] * 3
        assert ports == {}
        return
    assert paths == ["/ready", "/ready", "/live"]
    routes = {route.path for route in ROUTES}
    assert all(path in routes for path in paths)
    assert args.host == "0.0.0.0"
    assert args.drain_lead_time > pod.container["readinessProbe"]["periodSeconds"]
    expected = {"http": args.port}
    if is_head(args):
        port = args.data_parallel_rpc_port
        expected |= {"nodes": port, "engines": port + 1}
    assert ports == expected


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_api_of_kubernetes_takes_a_manifest(path: Path) -> None:
    """Its models refuse fields that it does not have; a field misspelt would be ignored, or refused late."""
    for document in yaml.safe_load_all(path.read_text()):
        api = API.get(document["kind"])
        if api is not None:
            api.model_validate(document)
            continue
        assert document["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
        group = document["spec"].pop("leaderWorkerTemplate")
        assert set(document["spec"]) == {"replicas"}
        for name in ("leaderTemplate", "workerTemplate"):
            client.V1PodTemplateSpec.model_validate(group.pop(name))
        assert set(group) == {"size", "restartPolicy"}


def test_the_api_of_kubernetes_is_strict() -> None:
    with pytest.raises(ValueError, match="terminationGracePeriodSecond"):
        client.V1PodSpec.model_validate({"containers": [], "terminationGracePeriodSecond": 1})


@pytest.mark.parametrize("name", ["cluster", "leader-worker-set"])
def test_machines_of_a_cluster_agree(name: str) -> None:
    members = [pod.serve_args for pod in PODS if pod.manifest.stem == name]
    shared = {(args.model, args.data_parallel_size, args.data_parallel_rpc_port) for args in members}
    assert len(shared) == 1
    documents = list(yaml.safe_load_all((HOW_TO / f"kubernetes/{name}.yaml").read_text()))
    (size,) = {args.data_parallel_size for args in members}
    if name == "cluster":
        (head,) = (document for document in documents if document["metadata"]["name"] == "triolet-head"
                   and document["kind"] == "Service")  # fmt: skip
        assert head["spec"]["publishNotReadyAddresses"]
        (node,) = (document for document in documents if document["metadata"]["name"] == "triolet-node")
        assert node["spec"]["ordinals"]["start"] + node["spec"]["replicas"] == size
        assert members[1].data_parallel_address == "triolet-head-0.triolet-head"
    else:
        assert documents[-1]["spec"]["leaderWorkerTemplate"]["size"] == size


def test_services_lead_to_pods() -> None:
    for manifest in sorted((HOW_TO / "kubernetes").glob("*.yaml")):
        text = manifest.read_text()
        for document in yaml.safe_load_all(text):
            if document["kind"] == "Service":
                labels = ", ".join(f"{key}: {value}" for key, value in document["spec"]["selector"].items())
                assert f"labels: {{{labels}}}\n" in text, f"{manifest}: nothing has {labels}"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_what_it_should_and_may_end_in_peace(path: Path) -> None:
    service = unit(path)
    args = service.serve_args
    assert shape_of(args) == SHAPES[path.name]
    settings = service.settings
    assert int(settings["TimeoutStopSec"]) >= seconds_to_stop(args)
    assert settings["KillMode"] == "mixed"
    assert settings["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert settings["RestartPreventExitStatus"] == "2"
    assert settings["Restart"] == ("always" if args.headless else "on-failure")
    assert ("LoadCredential" in settings) == args.launch_shape().needs_secret
    assert str(args.cache_dir) == f"/var/cache/{settings['CacheDirectory']}"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    for path in UNITS:
        name = path.name.replace("@", "@2")
        text = path.read_text().replace("/opt/triolet/bin/python", sys.executable)
        (tmp_path / name).write_text(text)
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        said = [line for line in done.stderr.splitlines() if name in line]
        assert said == []


def run_slurm_task(number: int, tmp_path: Path) -> list[str]:
    """What node.sh starts as task ``number`` of three."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" python "$@"\n')
    python.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "HOME": "/home/me", "HEAD": "node7",
        "SLURM_NNODES": "3", "SLURM_PROCID": str(number),
    }  # fmt: skip
    script = HOW_TO / "slurm/node.sh"
    done = subprocess.run(
        ["bash", "-eu", str(script)], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.splitlines()


def test_slurm_tasks_are_a_head_and_its_nodes(tmp_path: Path) -> None:
    shapes = [serve_args_of(run_slurm_task(number, tmp_path)) for number in range(3)]
    assert [shape_of(args) for args in shapes] == [
        ("internal", [0], [0, 1, 2]), ("headless", [1], []), ("headless", [2], []),
    ]  # fmt: skip
    assert {args.launch_shape().head_host for args in shapes} == {"node7"}
    batch = (HOW_TO / "slurm/triolet.sbatch").read_text()
    subprocess.run(["bash", "-n"], input=batch, text=True, check=True, timeout=60)
    (seconds,) = (int(line.rpartition("@")[2]) for line in batch.splitlines() if "--signal" in line)
    assert seconds >= max(seconds_to_stop(args) for args in shapes)


class StubRay(types.ModuleType):
    """Of Ray, what the page uses: tasks, which are run where they are asked for."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.options: dict[str, Any] = {}

    def init(self) -> None:
        pass

    def remote(self, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        self.options = options
        return lambda function: types.SimpleNamespace(remote=function)

    def get(self, results: Any) -> Any:
        return results


def test_ray_tasks_are_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    (snippet,) = (snippet for snippet in snippets("python") if snippet.path.name == "ray-and-slurm.md")
    commands: list[list[str]] = []
    codes = iter([1, 0, 0])

    def run(command: list[str]) -> Any:
        commands.append(command)
        return types.SimpleNamespace(returncode=next(codes))

    monkeypatch.setitem(sys.modules, "ray", StubRay())
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    exec(compile(snippet.code, str(snippet), "exec"), {"__name__": "snippet"})
    shapes = [shape_of(serve_args_of(command)) for command in commands]
    assert shapes == [("headless", [1], []), ("headless", [1], []), ("headless", [2], [])]


@pytest.mark.parametrize("page", ["kubernetes.md", "systemd.md", "ray-and-slurm.md", "shut-down.md"])
def test_commands_on_the_pages_are_accepted(page: str, tmp_path: Path) -> None:
    for snippet in snippets("sh"):
        if snippet.path.name != page:
            continue
        for line in snippet.code.replace("\\\n", " ").splitlines():
            words = line.replace('"$HEAD"', "node7").split()
            if "server" in words and words[words.index("server") - 1] == "-m":
                assert serve_args_of(words).launch_shape()
