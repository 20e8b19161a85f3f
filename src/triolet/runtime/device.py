"""Where and how a model runs: the device, the number format and the number of threads.

It turns options into choices and knows nothing of models or memory.
"""

from __future__ import annotations

import torch

from triolet.args import EngineArgs
from triolet.errors import UsageError
from triolet.runtime import cuda
from triolet.runtime.cores import num_available_cores
from triolet_kernels.preferred_dtype import preferred_dtype

__all__ = ["choose_cache_dtype", "choose_device", "choose_dtype", "choose_num_threads"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def choose_device(args: EngineArgs) -> torch.device:
    """The device asked for; a GPU if any where none is. UsageError where it is not there."""
    has_gpu = cuda.is_available()
    if args.device == "cuda" and not has_gpu:
        raise UsageError(
            f"device (--device) is cuda, but {cuda.why_unavailable()}; or use --device cpu", param="device"
        )
    return torch.device("cuda" if has_gpu and args.device != "cpu" else "cpu")


def choose_dtype(args: EngineArgs, device: torch.device) -> torch.dtype:
    """The format of activations. Reference kernels compute in float32 and nothing else."""
    if args.kernels == "reference":
        if args.dtype not in ("auto", "float32"):
            raise UsageError(
                f"dtype (--dtype) {args.dtype} does not go with --kernels reference, which is plain "
                "float32; drop one of the two",
                param="dtype",
            )
        return torch.float32
    return preferred_dtype(device) if args.dtype == "auto" else DTYPES[args.dtype]


def choose_cache_dtype(args: EngineArgs, device: torch.device) -> torch.dtype:
    """The format of the KV cache: that of activations, unless another is asked for and there are kernels.

    int8 is codes, as in :mod:`triolet_kernels.reference.cache_codes`.
    """
    if args.kv_cache_dtype == "auto":
        return choose_dtype(args, device)
    if args.kv_cache_dtype == "int8":
        if device.type != "cpu":
            raise UsageError(
                "kv_cache_dtype (--kv-cache-dtype) int8 is for CPUs; 8 bits on a GPU are fp8",
                param="kv_cache_dtype",
            )
        return torch.int8
    if device.type == "cpu" or args.kernels == "reference":
        raise UsageError(
            "kv_cache_dtype (--kv-cache-dtype) fp8 needs a GPU without --kernels reference; "
            "8 bits on a CPU are int8",
            param="kv_cache_dtype",
        )
    return cuda.float8_of(device)


def choose_num_threads(args: EngineArgs) -> int:
    """The number asked for, else one for each core that this process may use."""
    return num_available_cores() if args.num_threads is None else args.num_threads
