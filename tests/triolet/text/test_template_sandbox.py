"""Hostile templates are stopped, quickly and by name."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from triolet.errors import InvalidRequestError
from triolet.text.chat_template import ChatTemplate
from triolet.text.template_limits import TemplateLimitError
from triolet.text.template_sandbox import TemplateSandbox

CHAT = [{"role": "user", "content": "hello"}]
NESTED = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"


def sandbox(clock: Callable[[], float] = time.thread_time) -> TemplateSandbox:
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
        ("{{ 'a' * 10 ** 10 }}", "more than 4,194,304"),
        ("{{ 10 ** 10 * 'a' }}", "more than 4,194,304"),
        ("{{ [1] * 10 ** 10 }}", "more than 4,194,304"),
        ("{{ 10 ** (10 ** 8) }}", "more than 4,096 bits"),
        (growing("3", "n.x * n.x"), "bits"),
        (
            growing("'a'", "n.x ~ n.x"),
            "4,194,304",
        ),
        (
            growing("'a'", "n.x + n.x"),
            "4,194,304",
        ),
        (
            growing("[1]", "n.x + n.x"),
            "33,554,432 characters in all",
        ),
        (
            growing("'a'", "n.x.replace('a', 'aa')"),
            "4,194,304",
        ),
        (
            growing("'a'", "n.x | replace('a', 'aa')"),
            "4,194,304",
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
        ("{{ ('a' * 9999).join(['b'] * 9999) }}", "more than 4,194,304"),
        ("{{ (['b'] * 9999) | join('a' * 9999) }}", "more than 4,194,304"),
        ("{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}", "writes more than 4,194,304 characters"),
        ("{{ lipsum() }}", "'lipsum' is undefined"),
    ],
)
def test_hostile_templates_are_stopped(source: str, expected: str) -> None:
    started = time.thread_time()
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate(source, clock=time.thread_time).render(CHAT)
    assert expected in caught.value.message
    assert time.thread_time() - started < 15


ENDLESS = "{%% set n = namespace(x=[]) %%}{%% for i in range(90000) %%}{%% set n.x = %s %%}{%% endfor %%}"
FILLING = [
    "{{ range(99999) | join('x' * 60000) }}",
    "{{ range(99999) | map('string') | join('x' * 60000) }}",
    "{{ ('x' * 60000).join(range(99999) | map('string')) }}",
    "{{ ([{'a': 'x' * 60000}] * 9999) | join(attribute='a') }}",
    "{{ ('é' * 9999) | join('x' * 60000) }}",
    "{% set xs = [] %}{% for i in range(90000) %}{% set _ = xs.append('x' * 60000 ~ i) %}{% endfor %}",
    ENDLESS % "[n.x, 'x' * 60000 ~ i]",
    ENDLESS % "n.x + ['x' * 60000 ~ i]",
    ENDLESS % "{i: n.x, 'x': 'x' * 60000 ~ i}",
    ENDLESS % "dict(a=n.x, b='x' * 60000 ~ i)",
    ENDLESS % "namespace(a=n.x, b='x' * 60000 ~ i)",
    ENDLESS % "[n.x, '%s' % ('x' * 60000)]",
    ENDLESS % "'%999d' % i",
    ENDLESS % "[n.x, ('x' * 999999)[i:]]",
    ENDLESS % "[n.x, range(99999) | list]",
    ENDLESS % "[n.x, range(99999) | batch(999) | list]",
    ENDLESS % "[n.x, range(99999) | slice(9) | list]",
    ENDLESS % "[n.x, range(99999) | groupby('real') | list]",
    ENDLESS % "[n.x, range(99999) | map('string') | list]",
    ENDLESS % "[n.x, range(99999) | select | sort]",
    ENDLESS % "[n.x, ('x' * 60000) | center(999) | upper]",
    ENDLESS % ("[" + "0, " * 9_999 + "0]"),
    ENDLESS % ("(" + "0, " * 9_999 + "0)[:9998]"),
    ENDLESS % "[n.x, n.x]",
    ENDLESS % "n.x | select" + "{{ n.x | first }}",
    "{% set n = namespace(x=[]) %}{% for i in range(90000) %}{% for j in range(99999) | select %}"
    "{% set n.x = [n.x, loop, loop.length] %}{% break %}{% endfor %}{% endfor %}",
    "{% macro f() %}{{ f(*varargs) }}{% endmacro %}{{ f(*range(99999)) }}",
    "{% set x %}{% for i in range(90000) %}" + "x" * 60_000 + "{% endfor %}{% endset %}",
    "{% filter upper %}{% for i in range(90000) %}{{ 'x' * 60000 }}{% endfor %}{% endfilter %}",
    "{{ [['x' * 60000] * 9999] * 9999 }}",
    "{{ ('x' * 9999).replace('x', 'x' * 60000) }}",
    "{{ ('x' * 9999) | replace(new='x' * 60000, old='x') }}",
    "{{ ('\\r' * 99999) | indent('x' * 60000, blank=true) }}",
    "{{ ('%s' * 9999) % (('x' * 60000,) * 9999) }}",
    "{{ ('%(a)s' * 9999) | format(a='x' * 60000) }}",
    "{{ ('{0}' * 9999).format('x' * 60000) }}",
    "{% set n = namespace(x='x' * 60000) %}{{ ('{0.x}' * 9999).format(n) }}",
    "{{ ('{0:999}' * 999999).format(1) }}",
    "{{ ('x' * 9999).translate({120: 'x' * 60000}) }}",
    "{{ ('x'.encode() * 10 ** 10) | length }}",
    "{{ (1).to_bytes(10 ** 10) }}",
    "{{ ('\\t' * 999999).expandtabs(9999) }}",
    "{{ 1.5 | round(10 ** 9, 'floor') }}",
    "{{ ([[1] * 999] * 999) | sum(start=[]) }}",
    "{{ ([0] * 99999) | tojson(indent='x' * 60000) }}",
    "{{ ([0] * 99999) | tojson(separators=('x' * 60000, ':')) }}",
    "{{ strftime_now('%c' * 999999) }}",
]


REFUSAL = """
import json, resource, sys, time, jinja2
resource.setrlimit(resource.RLIMIT_AS, (1_500_000_000, 1_500_000_000))
from triolet.errors import InvalidRequestError
from triolet.text.chat_template import ChatTemplate
from triolet.text.template_limits import TemplateLimitError
REFUSALS = (TemplateLimitError, RecursionError, jinja2.exceptions.SecurityError)
for source in json.load(sys.stdin):
    started = time.thread_time()
    template = ChatTemplate(source)
    try:
        template.render([{"role": "user", "content": "hello"}])
    except InvalidRequestError as error:
        is_refused = isinstance(error.__cause__, REFUSALS)
    else:
        is_refused = False
    seconds = time.thread_time() - started
    if not is_refused or seconds > 10:
        print(source[:200], f"{is_refused=}, {seconds:.1f} s")
"""


def test_no_template_fills_the_memory() -> None:
    """The process may take 1.5 GB in all, and its allocations fail beyond."""
    process = subprocess.run(
        [sys.executable, "-c", REFUSAL],
        input=json.dumps(FILLING),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (process.stdout, process.stderr, process.returncode) == ("", "", 0)


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
        ("{{ 'a' | replace(new='b', old='a') }}{{ [{'x': 1}] | join('-', attribute='x') }}", "b1"),
        ("{{ [{'a': 1}, {'a': 2}] | groupby('a') | map('first') | join(',') }}", "1,2"),
        (
            "{{ [1, 2, 3] | batch(2) | list }}{{ [1, 2] | sum }}{{ [1, 2] | reverse | list }}",
            "[[1, 2], [3]]3[2, 1]",
        ),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x }}{% filter upper %}b{% endfilter %}", "a1B"),
        ("{{ {'join': 1, 'encode': 2}.encode }}{{ (1, 2)[1:] }}{{ namespace(x=1) }}", "2(2,)<Namespace>"),
        ("{{ {'a': [1]} | tojson(separators=(',', ':')) }}", '{"a":[1]}'),
        ("{{ 'a,b'.split(',') | length }}{{ '  x '.strip() }}{{ 'abc'[::-1] }}", "2xcba"),
    ],
)
def test_ordinary_templates_work(source: str, expected: str) -> None:
    assert sandbox().compile_bounded(source).render() == expected
