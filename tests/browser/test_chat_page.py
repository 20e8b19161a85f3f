"""The chat: what is sent, what is shown, and what ends it."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys
from tests.browser.conftest import ToldEngine
from tests.browser.page import Page

from triolet.errors import OverloadedError
from triolet.sampling_params import SamplingParams
from triolet.text.reasoning import ReasoningFormat

pytestmark = pytest.mark.slow

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def asked(engine: ToldEngine) -> list[dict[str, Any]]:
    """The messages of the last request."""
    messages: list[dict[str, Any]] = engine.submitted[-1][0]
    return messages


def test_an_answer_is_shown_while_it_is_made(page: Page, engine: ToldEngine) -> None:
    engine.hold_at = 5
    page.ask("Hi")
    page.wait(lambda: page.messages == [("You", "Hi"), ("Model", "Hello")])
    assert page.is_answering
    assert page.find("#prompt").get_attribute("value") == ""
    engine.let_go()
    page.wait(lambda: not page.is_answering)
    assert page.messages[-1] == ("Model", "Hello, wörld 🙂 and more")
    assert asked(engine) == [{"role": "user", "content": "Hi"}]
    assert "2 prompt tokens · 27 tokens" in page.find(".message.assistant .summary").text
    assert page.ask_and_wait("And?") == "Hello, wörld 🙂 and more"
    assert [message["role"] for message in asked(engine)] == ["user", "assistant", "user"]


@pytest.mark.parametrize("how", ["button", "escape", "another conversation"])
def test_stopping_ends_the_request_in_the_engine(page: Page, engine: ToldEngine, how: str) -> None:
    engine.hold_at = 5
    page.ask("Hi")
    page.wait(lambda: page.messages[-1][1] == "Hello")
    if how == "button":
        page.click("Stop")
    elif how == "escape":
        page.press(Keys.ESCAPE)
    else:
        page.click("New conversation")
    engine.wait_for(num_open=0)
    assert len(engine.aborted) == 1
    page.wait(lambda: not page.is_answering)
    if how == "another conversation":
        page.click("Hi", within="#conversation-list")
    assert page.messages[-1] == ("Model", "Hello")
    assert page.find(".message.assistant .summary").text.endswith("stopped")
    engine.let_go()
    page.ask_and_wait("Go on")
    assert [message["content"] for message in asked(engine)] == ["Hi", "Hello", "Go on"]


def test_settings_reach_the_engine(page: Page, engine: ToldEngine) -> None:
    numbers = {
        "temperature": 0.65, "top_p": 0.9, "top_k": 12, "min_p": 0.05, "max_completion_tokens": 7, "seed": 3,
        "repetition_penalty": 1.1, "presence_penalty": -0.5, "frequency_penalty": 0.5,
    }  # fmt: skip
    for name, value in numbers.items():
        page.set(name, str(value))
    page.set("system", "Be brief.")
    page.set("stop", "END\n###")
    page.set("extra", '{"min_tokens": 2}')
    page.ask_and_wait("Hi")
    params = engine.submitted[-1][1]
    assert isinstance(params, SamplingParams)
    for name, value in numbers.items():
        assert getattr(params, "max_tokens" if name == "max_completion_tokens" else name) == value, name
    assert (list(params.stop), params.min_tokens) == (["END", "###"], 2)
    assert asked(engine)[0] == {"role": "system", "content": "Be brief."}
    page.click("Back to defaults")
    page.ask_and_wait("Again")
    defaults = engine.submitted[-1][1]
    assert isinstance(defaults, SamplingParams)
    assert (defaults.temperature, defaults.seed) == (1.0, None)


def test_the_request_is_shown_as_it_was_sent_and_the_command_does_the_same(
    page: Page, engine: ToldEngine
) -> None:
    page.set("temperature", "0.5")
    page.ask_and_wait('It\'s "quoted", `so`\nand $HOME 🙂'.replace("\n", Keys.SHIFT + Keys.ENTER + Keys.NULL))
    [sent] = page.sent_bodies()
    page.click("Request")
    assert page.text("raw-json") == sent
    assert page.text("raw-when") == "As it was sent last."
    assert json.loads(sent)["messages"][0]["content"] == 'It\'s "quoted", `so`\nand $HOME 🙂'
    command = page.text("raw-curl")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.rstrip().endswith("data: [DONE]")
    first, second = engine.submitted
    assert first[:2] == second[:2]
    page.press(Keys.ESCAPE)
    assert not page.find("#raw").is_displayed()


def test_before_anything_is_sent_the_request_is_what_would_be(page: Page) -> None:
    page.set("system", "Be brief.")
    page.click("Request")
    assert page.text("raw-when") == "As it would be sent now."
    assert json.loads(page.text("raw-json"))["messages"] == [{"role": "system", "content": "Be brief."}]
    assert page.sent_bodies() == []


def test_reasoning_is_shown_apart(page: Page, engine: ToldEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        engine.chat_template, "reasoning_format", ReasoningFormat("think", "<think>", "</think>")
    )
    engine.reset("<think>Let me see.</think>It is **4**.")
    engine.hold_at = 15
    page.ask("2 + 2?")
    page.wait(lambda: "Let me" in page.find(".assistant .reasoning .text").text)
    engine.let_go()
    page.wait(lambda: not page.is_answering)
    assert page.messages[-1][1] == "It is 4."
    assert not page.find(".assistant .reasoning .text").is_displayed(), "folded once there is an answer"
    page.find(".assistant .reasoning summary").click()
    assert page.find(".assistant .reasoning .text").text == "Let me see."


def test_calls_of_tools_are_shown_and_their_results_go_back(page: Page, engine: ToldEngine) -> None:
    engine.reply = CALL
    page.set("tools", json.dumps(TOOLS))
    page.ask("How warm is it in Oslo?")
    page.wait(lambda: not page.is_answering)
    assert page.find(".call h4").text == "Calls weather"
    assert json.loads(page.find(".call pre").text) == {"city": "Oslo"}
    assert "waits for the tools' results" in page.find(".message.assistant .summary").text
    engine.reply = "It is warm."
    page.find(".call textarea").send_keys("21 degrees")
    page.click("Send results")
    page.wait(lambda: page.messages[-1] == ("Model", "It is warm."))
    page.wait(lambda: not page.is_answering)
    _, call, result = asked(engine)
    assert call["tool_calls"][0]["function"]["name"] == "weather"
    assert (result["role"], result["content"]) == ("tool", "21 degrees")
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]
    assert page.all(".call textarea") == []


def test_an_answer_can_be_made_anew_and_a_question_changed(page: Page, engine: ToldEngine) -> None:
    page.ask_and_wait("One")
    page.ask_and_wait("Two")
    engine.reply = "Otherwise"
    page.click("Regenerate")
    page.wait(lambda: page.messages[-1] == ("Model", "Otherwise"))
    page.wait(lambda: not page.is_answering)
    assert [message["content"] for message in asked(engine)] == ["One", "Hello, wörld 🙂 and more", "Two"]
    page.click("Edit", within=".message.user:first-child")
    page.press(Keys.CONTROL, "a")
    page.press("Three")
    page.press(Keys.CONTROL, Keys.ENTER)
    page.wait(lambda: page.messages == [("You", "Three"), ("Model", "Otherwise")])
    assert asked(engine) == [{"role": "user", "content": "Three"}]


def test_conversations_are_kept_by_the_browser(page: Page, engine: ToldEngine) -> None:
    page.set("seed", "5")
    page.ask_and_wait("First things")
    page.click("New conversation")
    assert page.messages == []
    page.ask_and_wait("Second things" + ", told at length" * 5)
    before = page.messages
    page.open()
    assert page.messages == before
    list_width = page.run(
        "const { scrollWidth, clientWidth } = arguments[0]; return [scrollWidth, clientWidth]",
        page.find("#conversations"),
    )
    assert list_width[0] == list_width[1]
    titles = [button.text for button in page.all("#conversation-list .title")]
    assert [title[:13] for title in titles] == ["Second things", "First things"]
    page.click("First things")
    assert page.messages[0] == ("You", "First things")
    assert page.find('[name="seed"]').get_attribute("value") == "5"
    for label in ("×", "Delete?"):
        page.click(label, within="#conversation-list li:has([aria-current])")
    assert [button.text[:13] for button in page.all("#conversation-list .title")] == ["Second things"]
    page.open()
    assert page.messages == before


def test_what_is_refused_says_why(page: Page, engine: ToldEngine) -> None:
    engine.refusal = OverloadedError("the queue is full", retry_after=7)
    page.ask("Hi")
    page.wait(lambda: not page.is_answering)
    assert page.find(".message.assistant .problem").text == "the queue is full Try again in 7 s."
    engine.refusal = None
    page.set("temperature", "9")
    page.click("Regenerate")
    page.wait(lambda: "temperature" in page.find(".message.assistant .problem").text)
    page.sent_bodies()
    page.set("tools", "{not json")
    page.click("Regenerate")
    assert page.find("#chat-problem").text.startswith("Tools: not JSON")
    assert page.sent_bodies() == []
    page.click("Back to defaults")
    page.click("Regenerate")
    page.wait(lambda: page.messages[-1] == ("Model", "Hello, wörld 🙂 and more"))


def test_a_server_that_is_started_anew_may_have_another_model(
    page: Page, engine: ToldEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert page.run("return document.getElementById('model').value") == "fake/model"
    monkeypatch.setattr(engine, "model_names", ("another/model",))
    page.read_again()
    assert page.run("return document.getElementById('model').value") == "another/model"
    assert page.ask_and_wait("Hi") == "Hello, wörld 🙂 and more"


def test_a_failure_in_the_middle_keeps_what_there_was(page: Page, engine: ToldEngine) -> None:
    engine.hold_at = 5
    page.ask("Hi")
    page.wait(lambda: page.messages[-1][1] == "Hello")
    engine.portal.call(engine.fail_all, OverloadedError("out of blocks"))
    page.wait(lambda: not page.is_answering)
    assert page.messages[-1] == ("Model", "Hello")
    assert "out of blocks" in page.find(".message.assistant .problem").text
