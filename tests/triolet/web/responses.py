"""What tests of responses have in common: events of a stream, and what they add up to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

__all__ = ["PATH", "events_of_stream", "fold"]

PATH = "/v1/responses"


def events_of_stream(text: str) -> list[dict[str, Any]]:
    """The events, each of which is named in the stream as in itself; comments are left out."""
    events = []
    for block in text.strip().split("\n\n"):
        if block.startswith(":"):
            continue
        head, _, data = block.partition("\n")
        event = json.loads(data.removeprefix("data: "))
        assert head == f"event: {event['type']}"
        events.append(event)
    return events


def fold(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items that the events build, from the small ones alone; each larger one is checked on the way."""
    items: list[dict[str, Any]] = []
    for event in events:
        item = items[event["output_index"]] if event.get("output_index", len(items)) < len(items) else {}
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] == len(items)
                items.append(event["item"])
            case "response.content_part.added":
                item["content"].append(event["part"])
            case "response.output_text.delta":
                part = item["content"][event["content_index"]]
                part["text"] += event["delta"]
                if "logprobs" in part:
                    part["logprobs"] += event["logprobs"]
            case "response.reasoning_text.delta":
                item["content"][event["content_index"]]["text"] += event["delta"]
            case "response.function_call_arguments.delta":
                item["arguments"] += event["delta"]
            case "response.output_text.done" | "response.reasoning_text.done":
                part = item["content"][event["content_index"]]
                assert (part["text"], part.get("logprobs")) == (
                    event["text"],
                    event.get("logprobs") or part.get("logprobs"),
                )
            case "response.content_part.done":
                assert item["content"][event["content_index"]] == event["part"]
            case "response.function_call_arguments.done":
                assert (item["name"], item["arguments"]) == (event["name"], event["arguments"])
            case "response.output_item.done":
                item["status"] = event["item"]["status"]
                assert item == event["item"]
    return items
