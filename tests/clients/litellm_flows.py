"""The ordinary flows of ``litellm`` against three servers: a real one, one with keys, one that still loads.

    python litellm_flows.py REAL_URL GUARDED_URL LOADING_URL

Writes what came of each as one JSON object; any failure is the exit code. A process of its own, as importing
the library takes seconds and changes settings of logging for all.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else importing it asks the network
import litellm
import pydantic

REAL, GUARDED, LOADING = sys.argv[1:]
MESSAGES = [{"role": "user", "content": "Name three colours."}]
LONG = [{"role": "user", "content": "one " * 9000}]
ASKED: dict[str, Any] = {
    "model": "openai/smollm2", "api_base": f"{REAL}/v1", "api_key": "unused", "messages": MESSAGES,
    "temperature": 0, "max_tokens": 16, "max_retries": 0,
}  # fmt: skip
FAKE = ASKED | {"model": "openai/alias", "api_base": f"{GUARDED}/v1", "api_key": "one"}
CITY = {"type": "string", "enum": ["Oslo", "Rome"]}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": CITY}, "required": ["city"]},
    },
}


class Place(pydantic.BaseModel):
    is_city: bool


def chat() -> Any:
    answer = litellm.completion(**ASKED)
    return {"text": answer.choices[0].message.content, "tokens": answer.usage.completion_tokens}


def stream() -> Any:
    chunks = list(litellm.completion(**ASKED, stream=True, stream_options={"include_usage": True}))
    whole = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    return {"text": whole.choices[0].message.content, "tokens": whole.usage.completion_tokens}


def asynchronous() -> Any:
    async def ask() -> str:
        text = ""
        async for chunk in await litellm.acompletion(**ASKED, stream=True):
            text += chunk.choices[0].delta.content or ""
        return text

    return {"text": asyncio.run(ask())}


def other_providers() -> Any:
    """The same server as what gateways call a vLLM server, and over the text completion route."""
    same = litellm.completion(**ASKED | {"model": "hosted_vllm/smollm2"})
    prompt = {name: value for name, value in ASKED.items() if name != "messages"} | {"prompt": "Red, green,"}
    completed = litellm.text_completion(**prompt | {"model": "text-completion-openai/smollm2"})
    return {"text": same.choices[0].message.content, "completed": completed.choices[0].text}


def tools() -> Any:
    asked = ASKED | {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    plain = litellm.completion(**asked | {"max_tokens": 60})
    chunks = list(litellm.completion(**asked | {"max_tokens": 60, "stream": True}))
    streamed = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    first, second = (answer.choices[0].message.tool_calls[0].function for answer in (plain, streamed))
    return {
        "name": first.name,
        "arguments": json.loads(first.arguments),
        "streamed": json.loads(second.arguments),
    }


def parse() -> Any:
    answer = litellm.completion(**ASKED, response_format=Place)
    return Place.model_validate_json(answer.choices[0].message.content).model_dump()


def responses() -> Any:
    asked = {name: ASKED[name] for name in ("model", "api_base", "api_key", "temperature")}
    answer = litellm.responses(input=MESSAGES[0]["content"], max_output_tokens=16, **asked)
    return {"text": answer.output[0].content[0].text, "status": answer.status}


def router() -> Any:
    """A gateway with two servers, the first of which still loads: the other one answers."""
    servers = {"loading": f"{LOADING}/v1", "real": f"{REAL}/v1"}
    models = [
        {
            "model_name": name,
            "litellm_params": {"model": "openai/smollm2", "api_base": url, "api_key": "unused"},
        }
        for name, url in servers.items()
    ]
    gateway = litellm.Router(models, fallbacks=[{"loading": ["real"]}], num_retries=0)
    answer = gateway.completion(model="loading", messages=MESSAGES, temperature=0, max_tokens=16)
    return {"text": answer.choices[0].message.content}


def errors() -> Any:
    return {
        "wrong": _refusal(lambda: litellm.completion(**FAKE | {"temperature": 9})),
        "too long": _refusal(lambda: litellm.completion(**ASKED | {"messages": LONG})),
        "too much": _refusal(lambda: litellm.completion(**ASKED | {"max_tokens": 8192})),
        "no key": _refusal(lambda: litellm.completion(**FAKE | {"api_key": "other"})),
        "no model": _refusal(lambda: litellm.completion(**FAKE | {"model": "openai/other"})),
        "too often": _refusal(lambda: [litellm.completion(**FAKE | {"api_key": "two"}) for _ in range(2)]),
        "loading": _refusal(lambda: litellm.completion(**ASKED | {"api_base": f"{LOADING}/v1"})),
        "embedding": _refusal(
            lambda: litellm.embedding(
                model="openai/alias", input=["a"], api_base=f"{GUARDED}/v1", api_key="one", max_retries=0
            )
        ),
    }


def _refusal(ask: Callable[[], object]) -> Any:
    try:
        ask()
    except Exception as error:
        return [type(error).__name__, getattr(error, "status_code", None), str(error)]
    return None


def main() -> None:
    litellm.suppress_debug_info = True
    flows = (chat, stream, asynchronous, other_providers, tools, parse, responses, router, errors)
    json.dump({flow.__name__: flow() for flow in flows}, sys.stdout)


if __name__ == "__main__":
    main()
