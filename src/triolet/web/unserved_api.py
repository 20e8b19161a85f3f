"""Routes of the OpenAI API and its relatives that cannot be served here: each says what is missing.

A 404 would look like a wrong base URL.
"""

from __future__ import annotations

from collections.abc import Mapping

from quart import Blueprint, Response

from triolet.errors import NotServedError

__all__ = ["UNSERVED", "add_unserved_routes"]

_EMBEDDING = "an embedding model; send these requests to a server that has one"
_RERANKING = "a reranking model; send these requests to a server that has one, or ask /v1/chat/completions"
_CLASSIFYING = (
    "a classification model; ask /v1/chat/completions with structured_outputs.choice set to the classes"
)
_HEARING = "a speech recognition model; transcribe elsewhere and send the text to /v1/chat/completions"
_SPEAKING = "a speech synthesis model; send the text of an answer to a server that has one"

UNSERVED: Mapping[str, str] = {
    "/v1/embeddings": _EMBEDDING,
    "/pooling": _EMBEDDING,
    "/classify": _CLASSIFYING,
    "/score": _RERANKING,
    "/v1/score": _RERANKING,
    "/rerank": _RERANKING,
    "/v1/rerank": _RERANKING,
    "/v2/rerank": _RERANKING,
    "/v1/audio/transcriptions": _HEARING,
    "/v1/audio/translations": _HEARING,
    "/v1/audio/speech": _SPEAKING,
}
"""What each of them needs, and the way out."""


def add_unserved_routes(blueprint: Blueprint) -> None:
    """Add the routes to a blueprint."""
    for path, needed in UNSERVED.items():
        _add(blueprint, path, needed)


def _add(blueprint: Blueprint, path: str, needed: str) -> None:
    async def unserved() -> Response:
        raise NotServedError(f"POST {path} is not served here: it needs {needed}.")

    endpoint = "unserved" + path.replace("/", "_")
    blueprint.add_url_rule(path, endpoint, unserved, methods=["POST"])
