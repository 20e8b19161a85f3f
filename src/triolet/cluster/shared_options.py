"""What machines of one cluster have in common: options that must be alike on all of them, and a secret.

This module knows no link and no process.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triolet.args import EngineArgs
from triolet.errors import UsageError

__all__ = ["SECRET_VARIABLE", "cluster_secret", "shared_options"]

SECRET_VARIABLE = "TRIOLET_CLUSTER_SECRET"
MIN_SECRET_LENGTH = 16
ALIKE = (
    "revision", "max_model_len", "dtype", "kernels", "block_size", "enable_prefix_caching", "max_num_seqs",
    "logprobs_mode", "speculation", "num_speculative_tokens", "data_parallel_size", "tensor_parallel_size",
)  # fmt: skip
"""Options on which it depends what an engine answers, or how requests are spread over engines."""

logger = logging.getLogger("triolet.cluster")


def shared_options(args: EngineArgs) -> dict[str, Any]:
    """The options that must be alike. Models go by their names, since their files may lie anywhere."""
    draft = None if args.draft_model is None else _model_name(args.draft_model)
    alike = {name: getattr(args, name) for name in ALIKE}
    return {"model": _model_name(args.model), "draft_model": draft, **alike}


def _model_name(model: str) -> str:
    path = Path(model).expanduser()
    return path.resolve().name if path.exists() else model


def cluster_secret(args: EngineArgs, environment: Mapping[str, str]) -> bytes:
    """What the machines prove to each other. Raises UsageError where there is none, or one easy to guess."""
    path = args.cluster_secret_file
    if path is not None:
        return _checked(_read(path), f"cluster_secret_file (--cluster-secret-file): {path} holds")
    secret = environment.get(SECRET_VARIABLE, "")
    if not secret:
        raise UsageError(
            "engines on other machines need a secret that all machines know: give --cluster-secret-file, or "
            f"{SECRET_VARIABLE} in the environment; `openssl rand -hex 32` makes one",
            param="cluster_secret_file",
        )
    return _checked(secret.encode(), f"{SECRET_VARIABLE} is")


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            logger.warning("%s can be read by other users of this machine: chmod 600 it", path)
        return path.read_bytes().strip()
    except OSError as exc:
        raise UsageError(
            f"cluster_secret_file (--cluster-secret-file): cannot read {path}: {exc.strerror}",
            param="cluster_secret_file",
        ) from exc


def _checked(secret: bytes, holder: str) -> bytes:
    if len(secret) < MIN_SECRET_LENGTH:
        raise UsageError(
            f"{holder} a secret of {len(secret)} characters: take {MIN_SECRET_LENGTH} or more, as "
            "`openssl rand -hex 32` makes them",
            param="cluster_secret_file",
        )
    return secret
