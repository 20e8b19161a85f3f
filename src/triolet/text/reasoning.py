"""Reasoning that a model writes between two tags before its answer, told apart from it.

Knows nothing of tools; a format in which reasoning and calls are parts of one whole has a parser of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from triolet.text.incremental import HeldSpace, IncrementalParser, Parsing

__all__ = ["REASONING_FORMATS", "ReasoningFormat", "ReasoningParser", "find_reasoning_format"]


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The tags of one family of models."""

    name: str
    opening: str
    closing: str

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.opening, self.closing)

    def is_written_by(self, template: str) -> bool:
        return self.closing in template

    def is_open_after(self, prompt: str) -> bool:
        """Whether an answer to ``prompt`` begins inside the tags."""
        return prompt.rstrip().endswith(self.opening.rstrip())

    def new_parser(self, prompt: str) -> ReasoningParser:
        return ReasoningParser(self, is_open=self.is_open_after(prompt))


REASONING_FORMATS = (
    ReasoningFormat("think", "<think>", "</think>"),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    ReasoningFormat("seed", "<seed:think>", "</seed:think>"),
    ReasoningFormat("gemma", "<|channel>thought\n", "<channel|>"),
)
"""By the name that ``--reasoning-parser`` takes."""


def find_reasoning_format(template: str) -> ReasoningFormat | None:
    """The format whose tags a chat template writes."""
    return next((known for known in REASONING_FORMATS if known.is_written_by(template)), None)


class ReasoningParser(IncrementalParser):
    """An answer that may begin with reasoning; the white space around the tags belongs to neither."""

    has_called = False

    def __init__(self, form: ReasoningFormat, *, is_open: bool) -> None:
        self._form = form
        self._is_open = is_open
        self._held_space = HeldSpace()
        super().__init__()

    def _parse(self) -> Parsing[None]:
        space = yield from self._space()
        is_opened = yield from self._literal(self._form.opening)
        if is_opened or self._is_open:
            yield from self._space()
            yield from self._until((self._form.closing,), self._add_reasoning)
            yield from self._space()
        else:
            self._content.append(space)
        while (yield from self._peek()):
            self._content.append(self._text[self._at :])
            self._at = len(self._text)

    def _add_reasoning(self, text: str) -> None:
        """White space at the end waits until something follows it."""
        self._reasoning.append(self._held_space.push(text))
