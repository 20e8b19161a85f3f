"""A Jinja environment for templates that come with a model: no way out, and a bound on their work.

A template is data from the internet. Jinja's immutable sandbox keeps it from Python's internals; what is
added here keeps it from running for ever or filling the memory: turns of loops and calls are counted and
timed, and operations that make long results out of short arguments are checked first.

This module knows nothing of chats.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from triolet.text.template_limits import TemplateLimitError, check_function, check_operator, check_result

__all__ = ["TemplateSandbox"]

MAX_STEPS = 200_000
"""Turns of loops and calls in one rendering."""
MAX_SECONDS = 5.0
"""Time that one rendering may take."""

_REFUSED = (nodes.Block, nodes.Extends, nodes.FromImport, nodes.Import, nodes.Include)


class _CountingContext(Context):
    """The variables of one rendering, and what it has done so far."""

    num_steps = 0
    deadline = 0.0

    def step(self, clock: Callable[[], float]) -> None:
        if self.num_steps == 0:
            self.deadline = clock() + MAX_SECONDS
        self.num_steps += 1
        if self.num_steps > MAX_STEPS:
            raise TemplateLimitError(f"takes more than {MAX_STEPS:,} steps")
        if clock() > self.deadline:
            raise TemplateLimitError(f"takes more than {MAX_SECONDS:g} s")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Compiles templates that cannot outrun their limits. ``functions`` is what they find beside Jinja's own.

    ``clock`` gives seconds, monotonically.
    """

    context_class = _CountingContext
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, *, functions: Mapping[str, Callable[..., Any]], clock: Callable[[], float]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        del self.globals["lipsum"]
        self.globals.update(functions)
        self.filters["tojson"] = _to_json
        self.filters.update({name: _checked(name, function) for name, function in self.filters.items()})
        self.clock = clock

    def compile_bounded(self, source: str) -> jinja2.Template:
        """The template; raises :class:`jinja2.TemplateSyntaxError` or :class:`TemplateLimitError`."""
        tree = self.parse(source)
        for statement in tree.find_all(_REFUSED):
            name = type(statement).__name__.lower()
            raise TemplateLimitError(f"uses {name} (line {statement.lineno}), but must stand alone")
        for concatenation in tree.find_all(nodes.Concat):
            concatenation.nodes = [_call("concatenate", concatenation.nodes)]
        for loop in tree.find_all(nodes.For):
            loop.body.insert(0, nodes.ExprStmt(_call("take_step", [])))
            if loop.test is not None:
                loop.test = nodes.And(_call("take_step", []), loop.test)
        for macro in tree.find_all(nodes.Macro):
            macro.body.insert(0, nodes.ExprStmt(_call("take_step", [])))
        tree.set_environment(self)
        return jinja2.Template.from_code(self, self.compile(tree), dict(self.globals))

    def take_step(self) -> bool:
        """True; every turn of a loop calls it, and it is counted as any call is."""
        return True

    def concatenate(self, *parts: object) -> str:
        """What ``a ~ b`` does."""
        texts = [str(part) for part in parts]
        check_function("join", "", [texts])
        return "".join(texts)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Every call of a template comes through here."""
        assert isinstance(context, _CountingContext)
        context.step(self.clock)
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
        if isinstance(owner := getattr(method, "__self__", None), str):
            check_function(method.__name__, owner, [*args, *kwargs.values()])
        return check_result(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators of ``intercepted_binops`` come through here."""
        check_operator(operator, left, right)
        return check_result(super().call_binop(context, operator, left, right))


class _Generation(Extension):
    """``{% generation %}`` marks what the model wrote, for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _call(name: str, arguments: list[nodes.Expr]) -> nodes.Call:
    """A call of a method of the environment, which no variable of a template can shadow."""
    return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)


def _checked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter with its arguments and its result checked."""
    num_passed = int(hasattr(function, "jinja_pass_arg"))  # Jinja puts the context or the like first

    @functools.wraps(function)
    def apply(*args: Any, **kwargs: Any) -> Any:
        check_function(name, args[num_passed], [*args[num_passed + 1 :], *kwargs.values()])
        return check_result(function(*args, **kwargs))

    return apply


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: characters as they are, nothing escaped for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
