"""``Fields``: typed, bounded reading of a mapping that somebody else wrote.

Every failure is a :class:`ModelFileError` naming the file, the field, what is there and what may be there.
This module knows neither what the fields mean nor where they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from triolet.errors import ModelFileError

__all__ = ["MAX_SIZE", "Fields"]

MAX_SIZE = 1 << 20
"""No dimension of a model known today comes near this."""

_REQUIRED: Any = object()


class Fields:
    """The fields of one mapping; ``prefix`` is put before each name, in look-ups and in errors.

    A field that is absent or null takes the default; without one it is an error.
    """

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self.values = values
        self.source = source
        self.prefix = prefix

    def fail(self, name: str, problem: str) -> NoReturn:
        """Raise the error for a field: ``problem`` reads on from the field's name."""
        raise ModelFileError(f"{self.source}: {self.prefix}{name} {problem}")

    def get(self, name: str, default: Any = _REQUIRED) -> Any:
        value = self.values.get(self.prefix + name)
        if value is not None:
            return value
        if default is _REQUIRED:
            self.fail(name, "is missing")
        return default

    def integer(self, name: str, default: int = _REQUIRED, *, low: int = 1, high: int = MAX_SIZE) -> int:
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.fail(name, f"must be an integer in [{low}, {high}], got {_shown(value)}")
        return value

    def number(self, name: str, default: float = _REQUIRED, *, low: float = 0.0, high: float = 1e12) -> float:
        """A finite number with ``low < number <= high``."""
        value = self.get(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not low < value <= high:
            self.fail(name, f"must be a number in ({low}, {high:g}], got {_shown(value)}")
        return float(value)

    def flag(self, name: str, default: bool = _REQUIRED) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            self.fail(name, f"must be true or false, got {_shown(value)}")
        return value

    def text(self, name: str, default: str = _REQUIRED) -> str:
        value = self.get(name, default)
        if not isinstance(value, str):
            self.fail(name, f"must be a string, got {_shown(value)}")
        return value

    def section(self, name: str) -> Fields | None:
        """The fields of a nested mapping, named ``name.field`` in errors; None where there is none."""
        value = self.get(name, None)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(name, f"must be an object, got {_shown(value)}")
        path = f"{self.prefix}{name}."
        return Fields({path + str(key): item for key, item in value.items()}, self.source, path)

    def refuse_unless(self, name: str, *allowed: object) -> None:
        """A feature that is not supported: absent, null, or one of ``allowed``, else an error."""
        value = self.get(name, None)
        if value is not None and not any(type(value) is type(one) and value == one for one in allowed):
            expected = f"; supported: {', '.join(map(_shown, allowed))} or absent" if allowed else ""
            self.fail(name, f"is {_shown(value)}, which is not supported{expected}")


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'an array'} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a huge integer"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
