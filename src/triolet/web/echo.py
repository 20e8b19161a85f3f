"""``echo`` of completions: each choice begins with its prompt, text and log-probabilities.

It is put into the first delta of a choice, so that streamed and plain answers have it alike. Knows nothing
of HTTP or of the shape of answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from triolet.request import TokenLogprobs
from triolet.web.generation import Delta, PromptPart
from triolet.web.serving_engine import TokenText

__all__ = ["Echo"]


@dataclass(frozen=True, slots=True)
class Echo:
    """Puts prompts before their continuations. ``is_truncated``: their text is longer than their tokens."""

    tokenizer: TokenText
    is_truncated: bool

    def __call__(self, delta: Delta) -> Delta:
        """The same delta, or the first of a choice with the prompt before it."""
        prompt = delta.prompt
        if prompt is None:
            return delta
        logprobs = delta.logprobs
        if logprobs is not None and prompt.logprobs is not None:
            logprobs = _prompt_logprobs(prompt) + logprobs
        return replace(delta, text=self._text(prompt) + delta.text, logprobs=logprobs)

    def _text(self, prompt: PromptPart) -> str:
        if prompt.text is not None and not self.is_truncated:
            return prompt.text
        return self.tokenizer.token_bytes(prompt.token_ids, skip_special_tokens=True).decode(errors="replace")


def _prompt_logprobs(prompt: PromptPart) -> list[TokenLogprobs]:
    """For each token of the prompt; the first has none, for nothing goes before it."""
    assert prompt.logprobs is not None, "asked only where there are any"
    return [
        TokenLogprobs((token_id,), (), 0) if position is None else position
        for token_id, position in zip(prompt.token_ids, prompt.logprobs, strict=True)
    ]
