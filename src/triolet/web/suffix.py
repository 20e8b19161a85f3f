"""``suffix`` of completions: the prompt becomes a request to fill the gap before it.

Knows tokenizers and prompts, not how marks are found or what becomes of the prompt.
"""

from __future__ import annotations

from dataclasses import replace

from triolet.errors import InvalidRequestError
from triolet.sampling_params import BeamSearchParams, SamplingParams
from triolet.text.fill_in_middle import find_middle_format, middle_end_token_ids
from triolet.web.serving_engine import TokenText

__all__ = ["fill_in"]

_Params = SamplingParams | BeamSearchParams
_Prompts = list[str | list[int]]


def fill_in(
    suffix: str, params: _Params, prompts: _Prompts, tokenizer: TokenText
) -> tuple[_Params, _Prompts]:
    """How to choose the tokens between each prompt and ``suffix``, and what to go on from.

    Raises :class:`InvalidRequestError` naming the field.
    """
    middle = find_middle_format(tokenizer)
    if middle is None:
        raise InvalidRequestError(
            "suffix: this model has no tokens for filling in the middle; leave it out, or serve a model "
            "that has them, as models for code do",
            param="suffix",
        )
    if isinstance(params, SamplingParams):
        ends = middle_end_token_ids(tokenizer)
        params = replace(params, stop_token_ids=(*params.stop_token_ids, *ends))
    return params, [middle.prompt(_text(prompt), suffix) for prompt in prompts]


def _text(prompt: str | list[int]) -> str:
    if isinstance(prompt, str):
        return prompt
    raise InvalidRequestError("suffix: needs a prompt of text, not of token ids", param="suffix")
