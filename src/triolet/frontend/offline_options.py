"""Keyword options that scripts written for other engines give to ``LLM``, and what they mean here.

Each is taken in, dropped with a warning, or refused with the way out; none is passed over in silence. What is
left are the fields of :class:`triolet.args.EngineArgs`.

This module knows nothing of models or engines.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from triolet.errors import UsageError

__all__ = ["CompilationConfig", "KVTransferConfig", "engine_options"]

logger = logging.getLogger("triolet.engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilationConfig:
    """How much is to be compiled: ``mode`` 0 (nothing) to 3. A hint about speed that no answer depends on;
    here the kernels have been compiled at install, and nothing is left to do."""

    mode: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.mode, int) or isinstance(self.mode, bool) or not 0 <= self.mode <= 3:
            raise ValueError(f"mode: must be an integer in [0, 3], got {self.mode!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTransferConfig:
    """How KV blocks are handed from one engine to another, which this one does not do."""

    kv_connector: str | None = None

    def __post_init__(self) -> None:
        if self.kv_connector is not None:
            raise ValueError(
                f"kv_connector: {self.kv_connector!r} is not known, for this engine hands no KV blocks to "
                "others; leave it out"
            )


NO_EFFECT: Mapping[str, str] = {
    "disable_log_stats": "log_stats_interval=0 does that",
    "enforce_eager": "what cannot be captured runs as it stands",
    "trust_remote_code": "code that comes with a model is never run",
}
"""Options that no answer depends on, and why they do nothing here."""


def engine_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are left for :class:`triolet.args.EngineArgs`. Raises UsageError naming the option."""
    left = dict(options)
    for name in NO_EFFECT.keys() & left.keys():
        del left[name]
        warnings.warn(f"{name} has no effect here: {NO_EFFECT[name]}; remove it", UserWarning, stacklevel=3)
    if "swap_space" in left:
        del left["swap_space"]
        warnings.warn(
            "swap_space has no effect and will be refused: what does not fit is computed anew; remove it",
            DeprecationWarning,
            stacklevel=3,
        )
    _check_num_workers(left.pop("renderer_num_workers", 1))
    compilation = _normalized(CompilationConfig, "compilation_config", left.pop("compilation_config", None))
    _normalized(KVTransferConfig, "kv_transfer_config", left.pop("kv_transfer_config", None))
    if compilation.mode:
        logger.info("compilation_config: the kernels are compiled already; nothing is left to do")
    return left


def _check_num_workers(num_workers: object) -> None:
    if num_workers == 1 or num_workers is None:
        return
    warnings.warn(
        "renderer_num_workers has no effect here: an LLM renders prompts in the calling thread; remove it",
        UserWarning,
        stacklevel=4,
    )


def _normalized(kind: type[Any], name: str, value: object) -> Any:
    """A config from whatever stands for one: a dict, the number that is its mode, itself, or None."""
    if value is None:
        return kind()
    if isinstance(value, kind):
        return value
    try:
        if isinstance(value, Mapping):
            return kind(**value)
        if isinstance(value, int) and kind is CompilationConfig:
            return kind(mode=value)
        raise TypeError(f"must be a dict, got {type(value).__name__}")
    except (TypeError, ValueError) as exc:
        known = ", ".join(field.name for field in fields(kind))
        raise UsageError(
            f"Invalid '{name}' provided: {exc} (known here: {known}); got {value!r}", param=name
        ) from exc
