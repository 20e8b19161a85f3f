"""The parts that parsers are made of."""

from __future__ import annotations

from triolet.text.incremental import IncrementalParser, Parsing


class Names(IncrementalParser):
    """Names before semicolons, and what is between brackets after them."""

    def _parse(self) -> Parsing[None]:
        while (yield from self._peek()):
            name, marker = yield from self._name_until((";",))
            self._content.append(f"<{name}|{marker}>")
            if marker is None or not (yield from self._value(self._think)):
                self._content.append("!")
                self._at = len(self._text)

    def _think(self, text: str) -> None:
        self._reasoning.append(text)


def read(text: str, size: int) -> tuple[str, str]:
    parser = Names()
    outputs = [parser.add(text[at : at + size]) for at in range(0, len(text), size)]
    outputs.append(parser.finish())
    return "".join(part.content for part in outputs), "".join(part.reasoning for part in outputs)


def test_values_end_where_their_brackets_close() -> None:
    text = 'a;{"}": "\\"}", "b": [1]}b;12.5e3 c;"x y"'
    for size in (1, 2, 100):
        content, values = read(text, size)
        assert values == '{"}": "\\"}", "b": [1]}12.5e3"x y"'
        assert content == "<a|;><b|;>< c|;>"


def test_a_value_that_does_not_end_and_a_name_that_is_too_long() -> None:
    assert read("a;[1, ", 1) == ("<a|;>!", "[1, ")
    assert read("x" * 257 + ";1", 300) == ("<|None>!", "")


def test_adding_nothing_after_the_end_is_harmless() -> None:
    parser = Names()
    assert parser.add("").content == ""
    parser.finish()
    assert parser.finish().content == ""
