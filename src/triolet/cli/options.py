"""Turns the fields of ``EngineArgs`` into command line options, and what was parsed back into the object.

Each default is written once, in the dataclass: the parser leaves out what the user did not give.
Knows no option by name but ``model``, which may also be given as the first argument.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from triolet.args import EngineArgs
from triolet.errors import UsageError
from triolet.option_fields import choices_of, flag_of

__all__ = ["Option", "OptionParser", "add_options", "collect_options", "options_of"]

Args = TypeVar("Args", bound=EngineArgs)

UNIONS = (Union, UnionType)
LAST_GROUPS = {"parallel": 1, "http": 2}
"""Shown after the others; the fields of ``parallel`` are a base's, and would come first."""

REMEDIES = {
    "--data-parallel-backend": "there are no backends to choose from: whatever starts processes, Ray and "
    "Slurm too, can run the command of each machine (--headless)",
}
"""For flags of other servers that have no like here, though others are close by name."""

_METAVARS: dict[type, str] = {int: "N", float: "SECONDS", Path: "PATH"}


class OptionParser(argparse.ArgumentParser):
    """An ``ArgumentParser`` whose complaints are :class:`UsageError`, and which takes no abbreviations."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("allow_abbrev", False)
        super().__init__(**settings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As ``argparse`` has it, but what nobody knows is an error here, where the flags to suggest are."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(
                f"unrecognized arguments: {' '.join(unknown)}{self._hint(unknown[0].partition('=')[0])}"
            )
        return parsed, unknown

    def _hint(self, flag: str) -> str:
        if flag in REMEDIES:
            return f"; {REMEDIES[flag]}"
        close = get_close_matches(flag, self._option_string_actions, n=1)
        return f"; did you mean {close[0]}?" if close else ""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One field of an options class, as the command line and the reference page show it.

    ``kind`` is the type of one value, for which ``words`` may stand; ``is_list`` when several may be given.
    """

    name: str
    group: str
    help: str
    default: Any
    kind: type
    choices: tuple[str, ...] | None
    words: tuple[str, ...]
    metavar: str | None
    is_list: bool

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def title(self) -> str:
        """The group as a heading."""
        return "HTTP" if self.group == "http" else self.group

    @property
    def default_text(self) -> str | None:
        """How the default is shown; None where the help says what happens when the option is left out."""
        if self.default is None or self.default == ():
            return None
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


def options_of(cls: type[EngineArgs]) -> list[Option]:
    """The options of a class by group, in the order of their fields."""
    hints = get_type_hints(cls)
    choices = choices_of(cls)
    options = [_option(field, hints[field.name], choices.get(field.name)) for field in fields(cls)]
    return sorted(options, key=lambda option: LAST_GROUPS.get(option.group, 0))


def _option(field: Field[Any], hint: Any, choices: tuple[str, ...] | None) -> Option:
    assert field.default is not MISSING, f"{field.name} has no default"
    kind, is_list = _value_type(hint)
    metavar = field.metadata.get("metavar") or _METAVARS.get(kind, field.name.rpartition("_")[2].upper())
    return Option(
        name=field.name,
        group=field.metadata["group"],
        help=field.metadata["help"],
        default=field.default,
        kind=kind,
        choices=choices,
        words=_words_of(hint),
        metavar=None if choices or kind is bool else metavar,
        is_list=is_list,
    )


def _value_type(hint: Any) -> tuple[type, bool]:
    """``int | None`` → (int, False); ``tuple[str, ...]`` → (str, True); a ``Literal`` → (str, False)."""
    origin = get_origin(hint)
    if origin in UNIONS:
        hint = next(part for part in get_args(hint) if part is not type(None))
        return _value_type(hint)
    if origin is tuple:
        return get_args(hint)[0], True
    return (hint, False) if isinstance(hint, type) else (str, False)


def _words_of(hint: Any) -> tuple[str, ...]:
    """``int | Literal["auto"]`` → ("auto",); nothing where words are all there is."""
    parts = get_args(hint) if get_origin(hint) in UNIONS else ()
    return tuple(word for part in parts if get_origin(part) is Literal for word in get_args(part))


def add_options(parser: argparse.ArgumentParser, cls: type[EngineArgs], *, omit: Iterable[str] = ()) -> None:
    """Give ``parser`` a flag for each field of ``cls``, in the groups that the fields name."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in options_of(cls):
        if option.name in omit:
            continue
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(f"{option.title} options")
        _add_option(groups[option.group], option)


def _add_option(group: argparse._ArgumentGroup, option: Option) -> None:
    default = option.default_text
    text = option.help.replace("%", "%%") + (f" (default: {default})" if default else "")
    settings: dict[str, Any] = {"dest": option.name, "default": argparse.SUPPRESS, "help": text}
    if option.kind is bool:
        settings["action"] = argparse.BooleanOptionalAction
    else:
        settings |= {"type": _reader_of(option), "choices": option.choices, "metavar": option.metavar}
        if option.is_list:
            settings["nargs"] = "+"
    group.add_argument(option.flag, **settings)


def _reader_of(option: Option) -> Callable[[str], Any]:
    """What turns the text of a value into the value."""

    def read(text: str) -> Any:
        return text if text in option.words else option.kind(text)

    read.__name__ = option.kind.__name__  # argparse names it where a value is wrong
    return read


def collect_options(cls: type[Args], namespace: argparse.Namespace) -> Args:
    """The options that were given, as ``cls``, which checks them. Raises :class:`UsageError`."""
    names = {field.name for field in fields(cls)}
    given = {name: value for name, value in vars(namespace).items() if name in names}
    for name, value in given.items():
        if isinstance(value, list):
            given[name] = tuple(value)
    return cls(**given)
