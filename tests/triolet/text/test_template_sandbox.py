"""Hostile templates are stopped, quickly and by name."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest

from triolet.errors import InvalidRequestError
from triolet.text.chat_template import ChatTemplate
from triolet.text.template_limits import TemplateLimitError
from triolet.text.template_sandbox import TemplateSandbox

CHAT = [{"role": "user", "content": "hello"}]
NESTED = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"


def sandbox(clock: Callable[[], float] = time.monotonic) -> TemplateSandbox:
    return TemplateSandbox(functions={}, clock=clock)


def growing(start: str, step: str) -> str:
    """A template that sets ``n.x`` to ``step`` again and again."""
    body = f"{{% for i in range(99) %}}{{% set n.x = {step} %}}{{% endfor %}}"
    return f"{{% set n = namespace(x={start}) %}}{body}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
        (
            "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
            "more than 200,000 steps",
        ),
        (
            "{% for i in range(90000) %}{% for j in range(90000) if false %}{% endfor %}{% endfor %}",
            "takes more than",
        ),
        (
            "{% macro f(n) %}{% for i in range(90000) %}{{ f(n) }}{% endfor %}{% endmacro %}{{ f(1) }}",
            "recursion",
        ),
        ("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", "recursion"),
        ("{{ 'a' * 10 ** 10 }}", "more than 16,777,216"),
        ("{{ 10 ** 10 * 'a' }}", "more than 16,777,216"),
        ("{{ [1] * 10 ** 10 }}", "more than 16,777,216"),
        ("{{ 10 ** (10 ** 8) }}", "more than 65,536 bits"),
        (growing("3", "n.x * n.x"), "bits"),
        (
            growing("'a'", "n.x ~ n.x"),
            "16,777,216",
        ),
        (
            growing("'a'", "n.x + n.x"),
            "16,777,216",
        ),
        (
            growing("[1]", "n.x + n.x"),
            "16,777,216",
        ),
        (
            growing("'a'", "n.x.replace('a', 'aa')"),
            "16,777,216",
        ),
        (
            growing("'a'", "n.x | replace('a', 'aa')"),
            "16,777,216",
        ),
        ("{{ 'a'.center(10 ** 9) }}", "pads to more than 1,000"),
        ("{{ 'a' | center(10 ** 9) }}", "pads to more than 1,000"),
        ("{{ ['a'] | map('center', 10 ** 9) | list }}", "pads to more than 1,000"),
        ("{{ 'a' | indent(width=10 ** 9) }}", "pads to more than 1,000"),
        ("{{ {} | tojson(indent=10 ** 9) }}", "pads to more than 1,000"),
        ("{{ '%1000000000d' % 1 }}", "formats to a width"),
        ("{{ '%*d' % (10 ** 9, 1) }}", "formats to a width"),
        ("{{ '%1000000000d' | format(1) }}", "formats to a width"),
        ("{{ '{:1000000000}'.format(1) }}", "formats to a width"),
        ("{{ '{:{w}}'.format(1, w=10 ** 9) }}", "formats to a width"),
        ("{{ ('a' * 9999).join(['b'] * 9999) }}", "more than 16,777,216"),
        ("{{ (['b'] * 9999) | join('a' * 9999) }}", "more than 16,777,216"),
        ("{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}", "makes more than 16,777,216 characters"),
        ("{{ lipsum() }}", "'lipsum' is undefined"),
    ],
)
def test_hostile_templates_are_stopped(source: str, expected: str) -> None:
    started = time.thread_time()
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate(source).render(CHAT)
    assert expected in caught.value.message
    assert time.thread_time() - started < 15


def test_time_is_bounded_too() -> None:
    seconds = itertools.count()
    template = sandbox(lambda: float(next(seconds))).compile_bounded("{% for i in range(9) %}{% endfor %}")
    with pytest.raises(TemplateLimitError, match="takes more than 5 s"):
        template.render()


def test_each_rendering_has_its_own_budget() -> None:
    template = sandbox().compile_bounded("{% for i in range(70000) %}{% endfor %}")
    for _ in range(4):
        assert template.render() == ""


def test_a_template_cannot_shadow_the_counter() -> None:
    source = "{% set take_step = 1 %}{% set concatenate = 1 %}{{ 1 ~ 2 }}" + NESTED
    with pytest.raises(TemplateLimitError, match="steps"):
        sandbox().compile_bounded(source).render()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ 'a' ~ 1 ~ none }}", "a1None"),
        ("{{ 'ab' * 3 }}{{ 2 ** 10 }}{{ 7 % 3 }}{{ '%s-%05.1f' % ('a', 2.5) }}", "ababab10241a-002.5"),
        ("{{ '{} {:>4}'.format('a', 1) }}", "a    1"),
        ("{{ 'in {{year}} 2024'.format() }}", "in {year} 2024"),
        ("{{ ', '.join(['a', 'b']) }}{{ [1, 2] | join('-') }}{{ 'abc' | join }}", "a, b1-2abc"),
        ("{{ 'a-b'.replace('-', '') }}{{ 'a' | replace('a', 'bc') }}", "abbc"),
        ("{{ 'a\nb' | indent(2) }}", "a\n  b"),
        ("{{ 'x'.center(5) }}|{{ 'x' | center(5) }}", "  x  |  x  "),
        ("{{ [3, 1] | sort | first }}{{ {'a': 1} | items | list }}", "1[('a', 1)]"),
        ("{% for i in range(3) if i %}{{ loop.index }}{{ i }}{% else %}none{% endfor %}", "1122"),
        ("{% for i in [] %}{{ i }}{% else %}none{% endfor %}", "none"),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(1) }}", "<1>"),
        (
            "{% set n = namespace(x=0) %}{% for i in range(3) %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}",
            "3",
        ),
        ("{{ 'a,b'.split(',') | length }}{{ '  x '.strip() }}{{ 'abc'[::-1] }}", "2xcba"),
    ],
)
def test_ordinary_templates_work(source: str, expected: str) -> None:
    assert sandbox().compile_bounded(source).render() == expected
