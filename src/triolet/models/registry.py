"""Which class builds which architecture. To add one: write its class and name it here and in the config."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from triolet.errors import UnknownArchitectureError
from triolet.models.decoder import Decoder
from triolet.models.gemma import GemmaDecoder

__all__ = ["MODEL_TYPES", "model_type"]

MODEL_TYPES: Mapping[str, type[Decoder]] = MappingProxyType(
    {
        "llama": Decoder,
        "mistral": Decoder,
        "qwen2": Decoder,
        "qwen3": Decoder,
        "gemma3": GemmaDecoder,
        "mixtral": Decoder,
        "qwen2_moe": Decoder,
        "qwen3_moe": Decoder,
        "olmoe": Decoder,
    }
)


def model_type(architecture: str) -> type[Decoder]:
    """The class for an architecture. Raises :class:`UnknownArchitectureError`, which lists the known ones."""
    try:
        return MODEL_TYPES[architecture]
    except KeyError:
        known = ", ".join(MODEL_TYPES)
        raise UnknownArchitectureError(
            f"architecture {architecture!r} is not supported; supported: {known}"
        ) from None
