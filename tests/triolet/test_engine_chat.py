"""Where a conversation is read: on the event loop, or beside it where any part of it is long."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import FakeRunner, fake_client, write_byte_model

from triolet import Engine, SamplingParams
from triolet.errors import PromptTooLongError
from triolet.frontend.preparation import LONG_PROMPT
from triolet.text.chat_template import ChatTemplate

pytestmark = pytest.mark.anyio
LONG = "x" * LONG_PROMPT
TEMPLATE = "{{ messages[0].content }}{{ tools }}{{ note }}{# tools <tool_call> #}"


@pytest.mark.parametrize(
    "rendering",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "description": LONG}}]},
        {"chat_template_kwargs": {"note": LONG}},
    ],
)
async def test_long_tools_and_variables_do_not_hold_up_the_loop(
    rendering: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    render = ChatTemplate.render

    def noted(self: ChatTemplate, *args: Any, **options: Any) -> str:
        threads.append(threading.get_ident())
        return render(self, *args, **options)

    monkeypatch.setattr(ChatTemplate, "render", noted)
    model = write_byte_model(tmp_path / "m", chat_template=TEMPLATE)
    async with Engine(model=str(model), client_factory=fake_client(FakeRunner())) as engine:
        messages = [{"role": "user", "content": "hi"}]
        await engine.submit_chat(messages, SamplingParams(max_tokens=1))
        with pytest.raises(PromptTooLongError):
            await engine.submit_chat(messages, SamplingParams(max_tokens=1), **rendering)
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [True, False]
