"""What a request asks to be done to its logits, in token ids of the model at hand.

Words become token ids here, and ids are held against the vocabulary, so that nothing below ever meets one
that is out of range.

This module knows neither the engine nor how logits are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from triolet.errors import InvalidRequestError
from triolet.request import LogitsAdjustments, ThinkingLimit
from triolet.sampling_params import SamplingParams
from triolet.text.tokenizer import Tokenizer

__all__ = ["check_token_ids", "logits_adjustments"]

NO_ADJUSTMENTS = LogitsAdjustments()


def logits_adjustments(
    params: SamplingParams,
    *,
    tokenizer: Tokenizer,
    vocab_size: int,
    end_token_ids: frozenset[int],
    grammar: str | None = None,
    thinking_limit: ThinkingLimit | None = None,
) -> LogitsAdjustments | None:
    """The adjustments of a request, or None if the logits are to be taken as they are.

    ``end_token_ids``: what ends the output, hence what ``min_tokens`` forbids. ``grammar``: compiled.
    Raises InvalidRequestError naming the field for an id outside the vocabulary, for a word that cannot be
    written in tokens, and where no token would be left to choose from.
    """
    bias, allowed = params.logit_bias or {}, params.allowed_token_ids
    check_token_ids("logit_bias", bias, vocab_size)
    check_token_ids("allowed_token_ids", allowed or (), vocab_size)
    adjustments = LogitsAdjustments(
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=tuple(sorted((token_id, value) for token_id, value in bias.items() if value)),
        banned_sequences=_banned_sequences(params.bad_words, tokenizer, vocab_size),
        allowed_token_ids=None if allowed is None else tuple(sorted(set(allowed))),
        min_tokens=params.min_tokens,
        end_token_ids=end_token_ids if params.min_tokens else frozenset(),
        grammar=grammar,
        thinking_limit=thinking_limit,
        processors=tuple(params.logits_processors),
    )
    if adjustments == NO_ADJUSTMENTS:
        return None
    _check_something_is_left(adjustments)
    return adjustments


def check_token_ids(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    """Raises InvalidRequestError naming the field ``name`` for an id that the model has no logit for."""
    for token_id in token_ids:
        if token_id >= vocab_size:
            raise InvalidRequestError(
                f"{name}: {token_id} is outside the vocabulary [0, {vocab_size})", param=name
            )


def _banned_sequences(
    words: Iterable[str], tokenizer: Tokenizer, vocab_size: int
) -> tuple[tuple[int, ...], ...]:
    """Both spellings of each word, at the beginning of a text and after a space; they may be the same."""
    banned = {}
    for word in words:
        spellings = [tuple(_encode(text, tokenizer)) for text in (word, f" {word.lstrip()}")]
        if not all(spellings):
            raise InvalidRequestError(f"bad_words: {word!r} has no tokens", param="bad_words")
        # A token that the model has no logit for never comes out anyway.
        banned.update(dict.fromkeys(ids for ids in spellings if max(ids) < vocab_size))
    return tuple(banned)


def _encode(text: str, tokenizer: Tokenizer) -> list[int]:
    try:
        return tokenizer.encode(text, add_special_tokens=False)
    except InvalidRequestError as exc:
        raise InvalidRequestError(f"bad_words: {exc.message}", param="bad_words") from exc


def _check_something_is_left(adjustments: LogitsAdjustments) -> None:
    if adjustments.allowed_token_ids is None:
        return
    left = set(adjustments.allowed_token_ids) - set(_single_tokens(adjustments.banned_sequences))
    if not left - adjustments.end_token_ids:
        others = "bad_words and min_tokens" if adjustments.min_tokens else "bad_words"
        raise InvalidRequestError(
            f"allowed_token_ids: {others} leave none of them; allow more tokens or forbid fewer",
            param="allowed_token_ids",
        )


def _single_tokens(sequences: Iterable[tuple[int, ...]]) -> Iterator[int]:
    return (ids[0] for ids in sequences if len(ids) == 1)
