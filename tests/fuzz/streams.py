"""Random requests asked twice over a real socket: what is streamed must add up to the whole answer.

    python -m tests.fuzz.streams --iterations 500

That takes half a minute on two cores, and as long with ``--backend trio``.

Behind the routes is a whole engine with a tiny model of random weights whose tokens are bytes, so that nearly
every stop string, name of a tool and character that is not ASCII lies across the borders of tokens. Both
are asked at the same time as often as one after the other: neither the batch nor the prefix cache shows.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import httpx
from tests.byte_llama import write_byte_llama
from tests.conftest import CHAT_TEMPLATE
from tests.fuzz.progress import Progress, silent, spoken
from tests.triolet.web.serving import events_of, serving

from triolet import Engine

__all__ = ["compare", "main", "write_model"]

_TEMPLATE = "{% for tool in tools or () %}<{{ tool.function.name }}>{% endfor %}" + CHAT_TEMPLATE
_ARGUMENTS = {
    "type": "object", "properties": {"a": {"enum": ["é", "🙂", 1]}}, "required": ["a"],
    "additionalProperties": False,
}  # fmt: skip
_TOOLS = [{"type": "function", "function": {"name": name, "parameters": _ARGUMENTS}} for name in ("f", "g")]
_FORCED: tuple[Mapping[str, Any], ...] = (
    {"choice": ["été 🙂🙃", "été €", "日本語"]},
    {"regex": "(é|€|🙂|日本){1,6}"},
    {"json": {"type": "object", "properties": {"ü": {"enum": ["🙂", "ß", 1]}}, "required": ["ü"]}},
)
_LETTERS = "abcxyz é€🙂"


def write_model(folder: Path) -> Path:
    """The model that is asked, with a chat template that tells of tools."""
    return write_byte_llama(folder, chat_template=_TEMPLATE)


async def compare(
    model: Path, iterations: int, *, seed: int, backend: str, progress: Progress = silent
) -> Counter[str]:
    """How many choices of each kind of request ended for which reason. Raises AssertionError."""
    source = random.Random(seed)
    outcomes: Counter[str] = Counter()
    engine = Engine(model=str(model), tool_call_parser="hermes", num_threads=1, num_kv_blocks=64)
    async with serving(engine, backend) as running:
        for number in range(iterations):
            progress(number)
            path, body, kind = random_request(source)
            if kind == "stops":
                body |= _stops(source, await _whole(running.client, path, body))
            plain, events = await _ask_twice(running.client, path, body, at_once=source.random() < 0.5)
            assert folded(events[:-1]) == normal(plain["choices"]), (path, body)
            assert _counts(events[-2]["usage"]) == _counts(plain["usage"]), (path, body)
            for choice in plain["choices"]:
                outcomes[f"{kind}: {choice['finish_reason']}"] += 1
    return outcomes


def random_request(source: random.Random) -> tuple[str, dict[str, Any], str]:
    """A path, a body, and what is special about it."""
    is_chat = source.random() < 0.5
    text = "".join(source.choices(_LETTERS, k=source.randint(1, 12)))
    body: dict[str, Any] = {
        "max_tokens": source.randint(1, 24), "seed": source.randrange(1000),
        "temperature": source.choice((0, 1, 1.5)), "n": source.choice((1, 1, 2, 3)),
    }  # fmt: skip
    body |= {"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}
    if source.random() < 0.4:
        body |= {"logprobs": True, "top_logprobs": source.randrange(4)} if is_chat else {"logprobs": 2}
    kind = source.choice(("stops", "forced", "tools" if is_chat else "echo", "penalties", "plain"))
    return (
        ("/v1/chat/completions" if is_chat else "/v1/completions"),
        body | _special(source, kind, text),
        kind,
    )


def _special(source: random.Random, kind: str, text: str) -> dict[str, Any]:
    if kind == "stops":
        return {"max_tokens": 40}
    if kind == "forced":
        return {"structured_outputs": source.choice(_FORCED), "max_tokens": source.choice((2, 5, 40))}
    if kind == "tools":
        return {
            "tools": _TOOLS, "tool_choice": source.choice(("auto", "required")), "n": 1,
            "max_tokens": source.choice((20, 90)), "parallel_tool_calls": False,
        }  # fmt: skip
    if kind == "echo":
        return {"echo": True, "prompt": [text, text[:1]]}
    if kind == "penalties":
        return {"repetition_penalty": 1.3, "logit_bias": {"70": 5}, "min_tokens": 1, "bad_words": ["b"]}
    return {}


def _stops(source: random.Random, answer: dict[str, Any]) -> dict[str, Any]:
    """Stop strings of which the answers to the same body, asked before, have one if they have any text."""
    text = source.choice(normal(answer["choices"]))["text"] or "never"
    start = source.randrange(len(text))
    found = text[start : start + source.randint(1, 4)]
    return {
        "stop": [found + "never", "\N{EURO SIGN}", found],
        "include_stop_str_in_output": source.random() < 0.5,
    }


async def _ask_twice(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], *, at_once: bool
) -> tuple[Any, list[Any]]:
    """The whole answer, and the events of the stream."""
    answers: dict[str, Any] = {}

    async def ask_whole() -> None:
        answers["whole"] = await _whole(client, path, body)

    async def ask_stream() -> None:
        streaming = body | {"stream": True, "stream_options": {"include_usage": True}}
        answers["events"] = events_of((await client.post(path, json=streaming)).text)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask_stream)
        if at_once:
            tasks.start_soon(ask_whole)
    if not at_once:
        await ask_whole()
    events = answers["events"]
    assert events.count("[DONE]") == 1, (path, body, events)
    assert events[-1] == "[DONE]", (path, body, events)
    return answers["whole"], events


async def _whole(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    answer = (await client.post(path, json=body)).json()
    assert "choices" in answer, (path, body, answer)
    return answer


def folded(chunks: list[Any]) -> list[Any]:
    """The choices that the chunks of a stream add up to."""
    choices: dict[int, Any] = {}
    for piece in (choice for chunk in chunks for choice in chunk["choices"]):
        whole = choices.setdefault(piece["index"], {"text": "", "calls": {}, "logprobs": []})
        delta = piece.get("delta", {"content": piece.get("text")})
        whole["text"] += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            known = whole["calls"].setdefault(call["index"], {"name": None, "arguments": ""})
            known["name"] = known["name"] or call["function"].get("name")
            known["arguments"] += call["function"]["arguments"]
        whole["logprobs"] += _listed(piece["logprobs"])
        whole |= {name: piece.get(name) for name in ("finish_reason", "stop_reason", "seed")}
    return [choice | {"calls": list(choice["calls"].values())} for _, choice in sorted(choices.items())]


def normal(choices: list[Any]) -> list[Any]:
    """The choices of a whole answer, in the same form."""
    return [
        {
            "text": (choice["message"]["content"] if "message" in choice else choice["text"]) or "",
            "calls": [call["function"] for call in choice.get("message", {}).get("tool_calls", ())],
            "logprobs": _listed(choice["logprobs"]),
            **{name: choice.get(name) for name in ("finish_reason", "stop_reason", "seed")},
        }
        for choice in choices
    ]


def _listed(logprobs: dict[str, Any] | None) -> list[Any]:
    """One entry for each token, in either API's shape."""
    if logprobs is None:
        return []
    if "content" in logprobs:
        return list(logprobs["content"])
    return [list(entry) for entry in zip(*(logprobs[name] for name in sorted(logprobs)), strict=True)]


def _counts(usage: dict[str, Any]) -> dict[str, Any]:
    """The usage but for what was found in the prefix cache, which depends on what was asked before."""
    return {name: count for name, count in usage.items() if name != "prompt_tokens_details"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "bytes")
        outcomes = anyio.run(
            lambda: compare(
                model, options.iterations, seed=options.seed, backend=options.backend, progress=spoken(100)
            ),
            backend=options.backend,
        )
    print(json.dumps(dict(sorted(outcomes.items())), indent=1))
    print(f"{options.iterations} requests in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
