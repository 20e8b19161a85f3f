"""What ``/openapi.json`` says of values beyond their types: limits that are checked elsewhere.

They are said here and checked where the values are used, whose errors tell more than those of a decoder. A
test holds one to the other. Knows no bodies.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from triolet.request import MAX_PRIORITY, MAX_SECONDS
from triolet.sampling_params import MAX_CHOICES, MAX_COUNT, MAX_LOGPROBS, MAX_SEED

__all__ = [
    "AnyText",
    "Bias",
    "Count",
    "MinP",
    "NumChoices",
    "NumLogprobs",
    "Penalty",
    "Priority",
    "RepetitionPenalty",
    "Seconds",
    "Seed",
    "Temperature",
    "ToolChoice",
    "TopK",
    "TopP",
    "TruncatedLength",
    "stated",
]


def stated(**schema: Any) -> Meta:
    """Keywords of JSON Schema that are told and not checked."""
    return Meta(extra_json_schema=schema)


AnyText = Annotated[str, stated(minLength=1)]
Bias = Annotated[float, stated(minimum=-100, maximum=100)]
Count = Annotated[int, stated(minimum=0, maximum=MAX_COUNT)]
MinP = Annotated[float, stated(minimum=0, maximum=1)]
NumChoices = Annotated[int, stated(minimum=1, maximum=MAX_CHOICES)]
NumLogprobs = Annotated[int, stated(minimum=0, maximum=MAX_LOGPROBS)]
Penalty = Annotated[float, stated(minimum=-2, maximum=2)]
Priority = Annotated[int, stated(minimum=-MAX_PRIORITY, maximum=MAX_PRIORITY)]
RepetitionPenalty = Annotated[float, stated(exclusiveMinimum=0, maximum=10)]
Seconds = Annotated[float, stated(exclusiveMinimum=0, maximum=MAX_SECONDS)]
Seed = Annotated[int, stated(minimum=-MAX_SEED - 1, maximum=MAX_SEED)]
Temperature = Annotated[float, stated(minimum=0, maximum=2)]
ToolChoice = Annotated[str, stated(enum=["auto", "none", "required"])]
TopK = Annotated[int, stated(minimum=-1, maximum=MAX_COUNT)]
TopP = Annotated[float, stated(exclusiveMinimum=0, maximum=1)]
TruncatedLength = Annotated[int, stated(minimum=-1, maximum=MAX_COUNT)]
