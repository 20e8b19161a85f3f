"""A Jinja environment for templates that come with a model: no way out, and a bound on their work.

A template is data from the internet. Jinja's immutable sandbox keeps it from Python's internals; what is
added here keeps it from running for ever or filling the memory: steps are counted and timed, and whatever
an expression makes, or writes, is charged to a budget of characters.

This module knows nothing of chats.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import GeneratorType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from triolet.text import template_limits
from triolet.text.template_limits import (
    ITEM_CHARACTERS,
    MAX_CHARACTERS,
    MAX_TOTAL_CHARACTERS,
    TemplateLimitError,
    check_function,
    check_operator,
    measure,
)

__all__ = ["TemplateSandbox"]

MAX_STEPS = 200_000
"""Turns of loops, calls and filters in one rendering."""
MAX_SECONDS = 5.0
"""Time that one rendering may take."""

_REFUSED = (nodes.Block, nodes.Extends, nodes.FromImport, nodes.Import, nodes.Include)
_REFUSED_FILTERS = ("pprint", "striptags", "urlize", "wordwrap", "xmlattr")
"""Those whose work can grow faster than what goes in, and that no prompt needs."""
_REFUSED_METHODS = frozenset(
    {"encode", "expandtabs", "format_map", "maketrans", "striptags", "to_bytes", "translate"}
)
_ITERATORS: Any = (GeneratorType, reversed, type(reversed([])))


class _CountingContext(Context):
    """The variables of one rendering, and what it has done so far."""

    num_steps = 0
    num_written = 0
    num_characters = 0
    deadline = 0.0

    def step(self, clock: Callable[[], float]) -> None:
        if self.num_steps == 0:
            self.deadline = clock() + MAX_SECONDS
        self.num_steps += 1
        if self.num_steps > MAX_STEPS:
            raise TemplateLimitError(f"takes more than {MAX_STEPS:,} steps")
        if clock() > self.deadline:
            raise TemplateLimitError(f"takes more than {MAX_SECONDS:g} s")

    def charge(self, value: Any) -> Any:
        """``value`` itself, which the rendering has made."""
        self._spend(measure(value))
        return value

    def write(self, text: str) -> str:
        """``text`` itself, which goes to the prompt, or to what becomes a value of the template."""
        self.num_written += len(text)
        if self.num_written > MAX_CHARACTERS:
            raise TemplateLimitError(f"writes more than {MAX_CHARACTERS:,} characters")
        self._spend(ITEM_CHARACTERS + len(text))
        return text

    def _spend(self, num_characters: int) -> None:
        self.num_characters += num_characters
        if self.num_characters > MAX_TOTAL_CHARACTERS:
            raise TemplateLimitError(f"makes more than {MAX_TOTAL_CHARACTERS:,} characters in all")


class _BoundedCodeGenerator(CodeGenerator):
    """Jinja's, with all that is made or written passing through the context, and nothing made beforehand."""

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._charge(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._charge(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._charge(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            self._charge(super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)

    def _charge(self, visit: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame) -> None:
        self.write("context.charge(")
        visit(node, frame)
        self.write(")")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"context.write({super()._output_const_repr(group)})"

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write("context.write(")
        super()._output_child_pre(node, frame, finalize)

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        super()._output_child_post(node, frame, finalize)
        self.write(")")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Compiles templates that cannot outrun their limits. ``functions`` is what they find beside Jinja's own.

    ``clock`` gives seconds, monotonically.
    """

    code_generator_class = _BoundedCodeGenerator
    context_class = _CountingContext
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self, *, functions: Mapping[str, Callable[..., Any]], clock: Callable[[], float]) -> None:
        extensions = [loopcontrols, _Generation]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, optimized=False)
        del self.globals["lipsum"]
        self.globals.update(functions, namespace=_Namespace)
        for name in _REFUSED_FILTERS:
            del self.filters[name]
        self.filters.update(join=_join, replace=_replace, tojson=_to_json)
        self.filters.update({name: self._bounded(name, function) for name, function in self.filters.items()})
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
        return template_limits.concatenate(parts)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may see ``obj.attr``: no method that makes bytes, or much of little."""
        is_refused = attr in _REFUSED_METHODS and not isinstance(obj, Mapping | Namespace)
        return not is_refused and super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Every call of a template comes through here."""
        assert isinstance(context, _CountingContext)
        context.step(self.clock)
        if args:
            context.charge(args)
        if kwargs:
            context.charge(kwargs)
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
        if isinstance(owner := getattr(method, "__self__", None), str):
            if method.__name__ == "join":
                function = functools.partial(template_limits.concatenate, separator=owner)
            check_function(method.__name__, owner, [*args, *kwargs.values()])
        return context.charge(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators of ``intercepted_binops`` come through here."""
        assert isinstance(context, _CountingContext)
        check_operator(operator, left, right)
        return context.charge(self.binop_table[operator](left, right))

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter with its arguments checked, and what it makes charged."""
        passed = getattr(getattr(function, "jinja_pass_arg", None), "name", None)

        @functools.wraps(function)
        def apply(context: _CountingContext, *args: Any, **kwargs: Any) -> Any:
            context.step(self.clock)
            check_function(name, args[0], [*args[1:], *kwargs.values()])
            leading = () if passed is None else (_passed(context, passed),)
            result = context.charge(function(*leading, *args, **kwargs))
            if name == "groupby":
                for _, members in result:
                    context.charge(members)
            return _Items(result, context, self.clock) if isinstance(result, _ITERATORS) else result

        return jinja2.pass_context(apply)


class _Namespace(Namespace):
    """Jinja's, written out as a word: what it holds changes, and may be itself."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Items:
    """What a lazy filter gives, each item counted and charged when it is made.

    A class and no generator: Python's stack overflows when a long chain of generators is freed.
    """

    def __init__(self, items: Iterator[Any], context: _CountingContext, clock: Callable[[], float]) -> None:
        self._items = items
        self._context = context
        self._clock = clock

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._context.step(self._clock)
        return self._context.charge(next(self._items))


class _Generation(Extension):
    """``{% generation %}`` marks what the model wrote, for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _call(name: str, arguments: list[nodes.Expr]) -> nodes.Call:
    """A call of a method of the environment, which no variable of a template can shadow."""
    return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)


def _passed(context: Context, name: str) -> Any:
    """What Jinja gives a filter before its arguments."""
    return {"context": context, "environment": context.environment, "eval_context": context.eval_ctx}[name]


@jinja2.pass_context
def _join(context: Context, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    """Jinja's ``join`` with its names of arguments, made piece by piece."""
    if attribute is not None:
        value = context.environment.call_filter(
            "map", value, kwargs={"attribute": attribute}, context=context
        )
    return template_limits.concatenate(value, str(d))


def _replace(value: object, old: object, new: object, count: int | None = None) -> str:
    """Jinja's ``replace``, checked here too: keywords come in any order."""
    check_function("replace", value, [old, new])
    return str(value).replace(str(old), str(new), -1 if count is None else count)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: characters as they are, nothing escaped for HTML."""
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if indent is None and separators is None:
        return encoder.encode(value)
    return template_limits.concatenate(encoder.iterencode(value))  # spaces can outgrow the value
