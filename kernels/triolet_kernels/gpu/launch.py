"""How Triton kernels reach a device.

Kernels are started through a :class:`GpuDevice`, so that the same code runs them on a GPU, under Triton's
interpreter, or has them compiled for a GPU that is not there. Must not know what any kernel computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from triolet_kernels.gpu.configurations import Configuration, Configurations

__all__ = ["GpuDevice", "Launch", "launch_kernel"]


class Launch(Protocol):
    """Starts a kernel."""

    def __call__(
        self,
        kernel: Any,
        grid: Sequence[int],
        configuration: Configuration,
        *arguments: Any,
        **constants: Any,
    ) -> None:
        """Start ``kernel`` once for each point of ``grid``, or never if that is empty.

        ``arguments`` are tensors and numbers, in order; ``constants`` are its ``tl.constexpr`` parameters but
        for those that the configuration holds.
        """
        ...


def launch_kernel(
    kernel: Any, grid: Sequence[int], configuration: Configuration, *arguments: Any, **constants: Any
) -> None:
    """Start it on the device of its tensors, or interpret it if ``TRITON_INTERPRET`` says so."""
    if 0 in grid:
        return
    kernel[tuple(grid)](
        *arguments,
        **constants,
        **configuration.constants,
        num_warps=configuration.num_warps,
        num_stages=configuration.num_stages,
        enable_fp_fusion=True,
    )


CPU = torch.device("cpu")
"""Where the interpreter's tensors are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDevice:
    """What wrappers of kernels need to know of a device, and how they start a kernel on it.

    ``num_multiprocessors``: streaming multiprocessors, or compute units. ``torch_device``: where its tensors
    are.
    """

    configurations: Configurations
    num_multiprocessors: int
    launch: Launch = launch_kernel
    torch_device: torch.device = CPU

    @classmethod
    def of(cls, device: torch.device) -> GpuDevice:
        """The GPU that torch calls ``device``."""
        properties = torch.cuda.get_device_properties(device)
        architecture = getattr(properties, "gcnArchName", "").partition(":")[0]
        if torch.version.hip is None:
            architecture = f"sm_{properties.major}{properties.minor}"
        return cls(
            configurations=Configurations.load(architecture),
            num_multiprocessors=properties.multi_processor_count,
            torch_device=device,
        )
