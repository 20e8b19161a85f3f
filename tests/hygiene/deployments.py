"""The server's commands in the documentation's manifests, units and scripts, as the server would get them."""

from __future__ import annotations

import argparse
import configparser
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.hygiene.source_files import ROOT

from triolet.args import ServeArgs
from triolet.cli import serve
from triolet.cli.options import OptionParser

__all__ = ["HOW_TO", "Pod", "Unit", "pods", "serve_args_of", "unit"]

HOW_TO = ROOT / "docs/how-to"
VALUES = {"POD_IP": "10.0.0.7", "RANK": "2", "LWS_LEADER_ADDRESS": "triolet-0.triolet.default"}
"""What Kubernetes puts in place of variables."""


def serve_args_of(command: Sequence[str]) -> ServeArgs:
    """The options in ``… python -m server …``. Raises UsageError, or exits, where the server would."""
    start = command.index("server") + 1
    assert list(command[start - 2 : start]) == ["-m", "server"]
    parser = OptionParser(prog="python -m server", add_help=False)
    serve.add_arguments(parser)
    namespace: argparse.Namespace = parser.parse_args(list(command[start:]))
    return serve.serve_args(namespace)


@dataclass(frozen=True)
class Pod:
    """A pod with one container, from the template that ``path`` leads to in a manifest."""

    manifest: Path
    path: str
    spec: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.manifest.stem}:{self.path}"

    @property
    def container(self) -> Mapping[str, Any]:
        (container,) = self.spec["containers"]
        return container  # type: ignore[no-any-return]

    @property
    def environment(self) -> set[str]:
        return {variable["name"] for variable in self.container["env"]}

    @property
    def serve_args(self) -> ServeArgs:
        words = [*self.container["command"], *self.container["args"]]
        known = self.environment | {"LWS_LEADER_ADDRESS"}  # that one is added by its controller

        def value(match: re.Match[str]) -> str:
            assert match[1] in known
            return VALUES[match[1]]

        return serve_args_of([re.sub(r"\$\((\w+)\)", value, word) for word in words])

    def probed_path(self, name: str) -> str | None:
        """Where a probe asks; None if there is none."""
        probe = self.container.get(name, {})
        if "httpGet" in probe:
            return str(probe["httpGet"]["path"])
        if "exec" in probe:
            (path,) = re.findall(r" 127\.0\.0\.1:8000(/\w+)$", probe["exec"]["command"][-1])
            return str(path)
        return None


def pods() -> Iterator[Pod]:
    """All pods in the manifests."""
    for manifest in sorted((HOW_TO / "kubernetes").glob("*.yaml")):
        for document in yaml.safe_load_all(manifest.read_text()):
            yield from _pods_in(document, manifest, document["metadata"]["name"])


def _pods_in(value: Any, manifest: Path, path: str) -> Iterator[Pod]:
    if isinstance(value, Mapping):
        if "containers" in value:
            yield Pod(manifest, path, value)
        for key, part in value.items():
            yield from _pods_in(part, manifest, f"{path}.{key}" if key.endswith("Template") else path)


@dataclass(frozen=True)
class Unit:
    """A service of systemd; ``%i`` in it is 2."""

    settings: Mapping[str, str]

    @property
    def serve_args(self) -> ServeArgs:
        command = self.settings["ExecStart"].replace("\\\n", " ")
        return serve_args_of(shlex.split(command.replace("%i", "2").replace("%d", "/run/credentials")))


def unit(path: Path) -> Unit:
    """The service in a unit file."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text().replace("\\\n", " "))
    return Unit(parser["Service"])
