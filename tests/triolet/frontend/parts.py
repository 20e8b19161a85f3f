"""What the tests of the front end build requests from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fakes import VOCAB_SIZE

from triolet.args import EngineArgs
from triolet.frontend.input_processor import InputProcessor
from triolet.frontend.loading import load_text
from triolet.frontend.request_builder import Origin
from triolet.frontend.request_state import RequestState
from triolet.models.source import resolve_model
from triolet.request import FinishReason, RequestOptions, TokenLogprobs, TokenOutput
from triolet.sampling_params import BeamSearchParams, SamplingParams

__all__ = ["input_processor", "logprobs_of", "new_request", "token_output"]


def input_processor(byte_model: Path, *, max_model_len: int = 512, **options: Any) -> InputProcessor:
    args = EngineArgs(**{"seed": 0, **options})
    tokenizer, template = load_text(resolve_model(str(byte_model)), args)
    return InputProcessor.create(
        args,
        tokenizer=tokenizer,
        chat_template=template,
        max_model_len=max_model_len,
        vocab_size=VOCAB_SIZE,
    )


def new_request(
    inputs: InputProcessor,
    token_ids: Sequence[int] = (1, 2, 3),
    *,
    options: RequestOptions | None = None,
    origin: Origin | None = None,
    beams: BeamSearchParams | None = None,
    **fields: Any,
) -> RequestState:
    """A request for token ids; ``fields`` are those of its sampling parameters."""
    params = beams or SamplingParams(**fields)
    return inputs.builder.build(tuple(token_ids), params, options, origin or Origin())


def logprobs_of(token_id: int) -> TokenLogprobs:
    return TokenLogprobs((token_id,), (-token_id / 256,), 1)


def token_output(
    request_id: int,
    token_ids: bytes | list[int] = b"",
    *,
    has_logprobs: bool = False,
    reason: FinishReason | None = None,
    **fields: Any,
) -> TokenOutput:
    """A step's output; tokens of the byte model may be given as bytes."""
    if has_logprobs:
        fields["logprobs"] = tuple(map(logprobs_of, token_ids))
    return TokenOutput(request_id=request_id, token_ids=tuple(token_ids), finish_reason=reason, **fields)
