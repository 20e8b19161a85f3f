"""How OpenMP's threads wait, in processes that are ours from their start.

Weights are arranged by torch, whose threads wait for each other by spinning. Where something else keeps the
cores busy that takes many times as long as the work itself. The library leaves the environment of its host
alone; command lines and child processes are our own. To be called before torch is imported. Knows no torch.
"""

from __future__ import annotations

from collections.abc import MutableMapping

__all__ = ["wait_without_spinning"]


def wait_without_spinning(environment: MutableMapping[str, str]) -> None:
    """Have OpenMP's threads sleep while they wait, unless ``environment`` says otherwise.

    Source: OpenMP 5.0, ``OMP_WAIT_POLICY``.
    """
    environment.setdefault("OMP_WAIT_POLICY", "passive")
