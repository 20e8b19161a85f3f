"""The operations of a GPU, run by Triton's interpreter."""

from __future__ import annotations

from triolet_kernels.gpu import GpuOps
from triolet_kernels.gpu.configurations import Configurations
from triolet_kernels.gpu.launch import GpuDevice


def interpreted_device(architecture: str = "sm_90") -> GpuDevice:
    """A device with the stored configurations of ``architecture`` that runs on tensors of the CPU."""
    return GpuDevice(configurations=Configurations.load(architecture), num_multiprocessors=4)


def interpreted_ops(architecture: str = "sm_90") -> GpuOps:
    return GpuOps(interpreted_device(architecture))
