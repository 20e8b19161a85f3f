"""A tokenizer from a Hugging Face directory.

``tokenizer.json`` is the tokenizer; ``tokenizer_config.json``, ``special_tokens_map.json``,
``generation_config.json`` and ``config.json`` say which tokens are special and which end a generation,
``chat_template.jinja`` how a chat is written. Without ``tokenizer.json``, a SentencePiece
``tokenizer.model`` is converted.

This module knows nothing of the model but its tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from triolet.errors import ModelFileError
from triolet.models.json_file import read_json_object
from triolet.text.gguf_tokenizer import gguf_tokenizer
from triolet.text.sentencepiece_model import sentencepiece_metadata
from triolet.text.tokenizer_parts import TokenizerParts, end_of_turn_ids

__all__ = ["read_huggingface_tokenizer"]

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TOKEN_LISTS = ("additional_special_tokens", "extra_special_tokens")


def read_huggingface_tokenizer(directory: Path) -> TokenizerParts:
    """The tokenizer in ``directory``; raises :class:`ModelFileError` if a file is missing or malformed."""
    try:
        return _read_parts(directory)
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{directory}: the files of the tokenizer are not of the form that they must have: {error!r}"
        ) from error


def _read_parts(directory: Path) -> TokenizerParts:
    config = {
        **_read_json(directory / "special_tokens_map.json"),
        **_read_json(directory / "tokenizer_config.json"),
    }
    backend = _read_backend(directory, config)
    _add_configured_tokens(backend, config)
    template = _read_template(directory, config)
    eos_token_id = _id_of(backend, config.get("eos_token"))
    ends = _configured_ends(directory, eos_token_id)
    return TokenizerParts(
        backend=backend,
        bos_token_id=_id_of(backend, config.get("bos_token")),
        eos_token_id=eos_token_id,
        end_token_ids=ends | end_of_turn_ids(backend, template),
        chat_template=template,
    )


def _read_backend(directory: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    path, model = directory / "tokenizer.json", directory / "tokenizer.model"
    if not path.is_file():
        if model.is_file():
            return gguf_tokenizer(sentencepiece_metadata(model, config)).backend
        raise ModelFileError(
            f"{directory}: has neither tokenizer.json nor tokenizer.model; "
            "add the tokenizer.json of the model"
        )
    try:
        backend = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the tokenizers library raises bare Exception
        raise ModelFileError(f"{path}: is not a usable tokenizer: {error}") from error
    backend.no_padding()
    backend.no_truncation()
    return backend


def _add_configured_tokens(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Add what ``tokenizer.json`` lacks of the configuration's tokens, and mark the special ones."""
    declared: Mapping[str, Any] = config.get("added_tokens_decoder") or {}
    present = backend.get_added_tokens_decoder()
    for token_id, entry in sorted((int(key), entry) for key, entry in declared.items()):
        if token_id not in present:
            _add_token(backend, token_id, entry)
    names = [config.get(name) for name in _NAMED_TOKENS]
    for name in _TOKEN_LISTS:
        listed = config.get(name) or ()
        names += listed.values() if isinstance(listed, Mapping) else listed
    known = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    special = [_special(content, known) for content in map(_content, names) if content]
    backend.add_special_tokens([token for token in special if backend.token_to_id(token.content) is not None])


def _add_token(backend: tokenizers.Tokenizer, token_id: int, entry: Mapping[str, Any]) -> None:
    flags = {k: bool(entry[k]) for k in ("single_word", "lstrip", "rstrip", "normalized") if k in entry}
    token = tokenizers.AddedToken(entry["content"], special=bool(entry.get("special")), **flags)
    (backend.add_special_tokens if token.special else backend.add_tokens)([token])
    if backend.token_to_id(token.content) != token_id:
        raise ModelFileError(
            f"tokenizer_config.json gives the token {token.content!r} the id {token_id}, "
            f"tokenizer.json makes it {backend.token_to_id(token.content)}"
        )


def _special(content: str, known: Mapping[str, tokenizers.AddedToken]) -> tokenizers.AddedToken:
    """``content`` as a special token; where it is known already, its way of matching stays."""
    old = known.get(content)
    if old is None:
        return tokenizers.AddedToken(content, special=True, normalized=False)
    return tokenizers.AddedToken(
        content,
        single_word=old.single_word,
        lstrip=old.lstrip,
        rstrip=old.rstrip,
        normalized=old.normalized,
        special=True,
    )


def _configured_ends(directory: Path, eos_token_id: int | None) -> frozenset[int]:
    ends: set[int] = set() if eos_token_id is None else {eos_token_id}
    for name in ("generation_config.json", "config.json"):
        value = _read_json(directory / name).get("eos_token_id")
        values: Iterable[Any] = value if isinstance(value, list) else [value]
        ends.update(i for i in values if isinstance(i, int) and not isinstance(i, bool))
    return frozenset(ends)


def _read_template(directory: Path, config: Mapping[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if template is None:
        template = _read_json(directory / "chat_template.json").get("chat_template")
    if isinstance(template, list):  # several, by name
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty if there is no such file."""
    return read_json_object(path) if path.is_file() else {}


def _id_of(backend: tokenizers.Tokenizer, token: Any) -> int | None:
    content = _content(token)
    return backend.token_to_id(content) if content else None


def _content(token: Any) -> str | None:
    """A token is written as its text, or as an object that holds it."""
    content = token.get("content") if isinstance(token, Mapping) else token
    return content if isinstance(content, str) else None
