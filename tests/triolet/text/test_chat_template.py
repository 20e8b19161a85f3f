"""Chats become the text their model's template writes; bad ones are refused with the template's words."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from triolet.errors import InvalidRequestError, ModelFileError
from triolet.text.chat_template import ChatTemplate
from triolet.text.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "hello"}]
ECHO = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"

LLAMA_2 = """
{%- if messages[0].role == 'system' %}{% set offset = 1 %}{% else %}{% set offset = 0 %}{% endif %}
{{- bos_token }}
{%- for message in messages[offset:] %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + message.content | trim + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""


def refusal(template: ChatTemplate, messages: Any, **variables: Any) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        template.render(messages, **variables)
    assert caught.value.param == "messages"
    assert caught.value.status == 400
    return caught.value.message


@pytest.mark.model
def test_smollm2_s_template_writes_what_transformers_writes(smollm2: Tokenizer) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    assert smollm2.chat_template is not None
    template = ChatTemplate(smollm2.chat_template, bos_token=smollm2.bos_token, eos_token=smollm2.eos_token)
    for chat in (
        HELLO,
        [{"role": "system", "content": "Be brief."}, *HELLO],
        [*HELLO, {"role": "assistant", "content": "Hi! 👋"}, {"role": "user", "content": "  <b>\n"}],
    ):
        for add in (True, False):
            rendered = render_jinja_template(
                conversations=[chat], chat_template=template.source, add_generation_prompt=add
            )[0]
            assert [template.render(chat, add_generation_prompt=add)] == rendered
    assert template.render(HELLO).endswith("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")


def test_special_tokens_and_the_template_s_own_refusal() -> None:
    template = ChatTemplate(LLAMA_2, bos_token="<s>", eos_token="</s>")
    chat = [*HELLO, {"role": "assistant", "content": "hi"}, *HELLO]
    assert template.render(chat) == "<s>[INST] hello [/INST] hi</s>[INST] hello [/INST]"
    assert refusal(template, HELLO * 2) == "messages: roles must alternate user/assistant"


def test_a_model_without_such_tokens_has_empty_ones() -> None:
    assert ChatTemplate("[{{ bos_token }}{{ eos_token }}]").render(HELLO) == "[]"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("plain", "plain"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "one"}], "one"),
        ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "one\ntwo"),
        (["one", "two"], "one\ntwo"),
    ],
)
def test_content_is_a_string_or_parts(content: Any, expected: str) -> None:
    assert ChatTemplate(ECHO).render([{"role": "user", "content": content}]) == f"user:{expected};"


def test_a_message_may_have_no_content() -> None:
    assert ChatTemplate(ECHO).render([{"role": "assistant", "tool_calls": []}]) == "assistant:;"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], "messages: must have at least one message"),
        (["hi"], "messages[0]: must be an object, got str"),
        ([*HELLO, {"content": "x"}], "messages[1].role: must be a non-empty string, got None"),
        ([{"role": ""}], "messages[0].role: must be a non-empty string, got ''"),
        (
            [{"role": "user", "content": 3}],
            "messages[0].content: must be a string or a list of parts",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0]: parts of type 'image_url' are not supported by this model; send text",
        ),
        ([{"role": "user", "content": [3]}], "messages[0].content[0]: parts of type 'int' are not supported"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text: must be a string"),
    ],
)
def test_malformed_messages_are_refused_by_place(messages: Any, expected: str) -> None:
    assert refusal(ChatTemplate(ECHO), messages).startswith(expected)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages[0].content + 1 }}", "cannot write them: can only concatenate str"),
        ("{{ messages[5].content.x }}", "cannot write them: list object has no element 5"),
        ("{{ 1 / 0 }}", "cannot write them: "),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages[0].update({}) }}", "unsafe"),
    ],
)
def test_a_failing_template_is_the_request_s_error(source: str, expected: str) -> None:
    assert expected in refusal(ChatTemplate(source), HELLO)


def test_messages_are_not_changed_by_a_template() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "x"}]}]
    ChatTemplate(ECHO).render(messages)
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "x"}]}]


def test_whitespace_around_blocks_is_trimmed() -> None:
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n"
    assert ChatTemplate(source).render(HELLO) == "hello\n"


def test_what_templates_expect_of_jinja() -> None:
    def render(source: str, **variables: Any) -> str:
        template = ChatTemplate(source, now=lambda: datetime(2024, 7, 26))
        return template.render(HELLO, chat_template_kwargs=variables)

    assert render("{{ strftime_now('%d %b %Y') }}") == "26 Jul 2024"
    assert render("{{ {'a': '<é>', 'b': 1} | tojson }}") == '{"a": "<é>", "b": 1}'
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"
    assert render("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "1"
    assert (
        render("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}") == "13"
    )
    assert render("a{% generation %}{{ 'b' }}{% endgeneration %}c") == "abc"
    assert render("{{ tools is none }} {{ missing is defined }}[{{ missing }}]") == "True False[]"
    with_tools = ChatTemplate("{{ tools[0].name }}<tool_call>")
    assert with_tools.render(HELLO, tools=[{"name": "f"}]) == "f<tool_call>"
    assert render("{{ enable_thinking }}", enable_thinking=False) == "False"
    assert render("{{ '<b>' }}") == "<b>"
    assert render("{{ add_generation_prompt }}") == "True"


def test_variables_cannot_replace_the_messages() -> None:
    for name in ("bos_token", "messages", "tools", "continue_final_message", "raise_exception"):
        with pytest.raises(InvalidRequestError, match=f"{name}: cannot be given") as caught:
            ChatTemplate(ECHO).render(HELLO, chat_template_kwargs={name: "x"})
        assert caught.value.param == f"chat_template_kwargs.{name}"


def test_a_variable_may_have_any_other_name() -> None:
    names = (
        "self",
        "params",
        "options",
        "request_id",
        "variables",
        "chat_template_kwargs",
        "class",
        "not a name",
        "",
    )
    variables = dict.fromkeys(names, "x")
    assert ChatTemplate("{{ params }}{{ options }}").render(HELLO, chat_template_kwargs=variables) == "xx"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for %}", "is not valid Jinja, line 1"),
        ("a\n{{ x | nofilter }}", "line 2: No filter named 'nofilter'"),
        ("{% include 'other' %}", "uses include (line 1), but must stand alone"),
        ("{% block a %}{% endblock %}", "uses block (line 1)"),
        ("x" * (2**17 + 1), "131,073 characters, more than 131,072"),
        ("{{ " + "(" * 50_000 + ")" * 50_000 + " }}", "cannot be compiled"),
    ],
)
def test_a_template_that_is_no_template_is_the_model_s_error(source: str, expected: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        ChatTemplate(source)
    assert expected in caught.value.message
