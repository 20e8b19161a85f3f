"""Models from the hub, through ``huggingface_hub``, which keeps its own cache and progress bars.

This module does not know what is in the files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triolet.errors import ModelFetchError

__all__ = ["HubName", "fetch_from_hub"]

_PATTERNS = (
    "config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json",
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository, and the GGUF file in it where one is named."""

    repository: str
    file: str | None

    def __str__(self) -> str:
        return self.repository if self.file is None else f"{self.repository}/{self.file}"


def fetch_from_hub(name: HubName, *, revision: str | None, cache_dir: Path | None) -> Path:
    """The GGUF file, or the folder with config, tokenizer and safetensors; only what is missing is fetched.

    ``cache_dir`` takes the place of the hub's own cache folder. Raises :class:`ModelFetchError`.
    """
    import huggingface_hub

    download: Callable[..., Any]
    options: dict[str, Any] = {"repo_id": name.repository, "revision": revision, "cache_dir": cache_dir}
    if name.file is None:
        download, options["allow_patterns"] = huggingface_hub.snapshot_download, list(_PATTERNS)
    else:
        download, options["filename"] = huggingface_hub.hf_hub_download, name.file
    try:
        return Path(download(**options))
    except Exception as error:  # the client lets errors of several HTTP libraries through
        raise ModelFetchError(_explain(name, revision, error)) from error


def _explain(name: HubName, revision: str | None, error: Exception) -> str:
    from huggingface_hub import errors

    what = f"{name}" if revision is None else f"{name} at revision {revision}"
    if isinstance(error, errors.GatedRepoError | errors.RepositoryNotFoundError):
        cause = "it does not exist, or it is private or gated; for the latter, run `hf auth login`"
    elif isinstance(error, errors.RevisionNotFoundError):
        cause = "there is no such revision"
    elif isinstance(error, errors.EntryNotFoundError) and not isinstance(
        error, errors.LocalEntryNotFoundError
    ):
        cause = f"there is no file {name.file} in it"
    else:
        cause = f"{type(error).__name__}: {error}"[:400].rstrip(".")
    target = "model" if name.file is None else f"model --include {name.file}"
    return (
        f"{what} could not be had from the hub: {cause}.\n"
        "By hand, on any machine with network:\n"
        f"    hf download {name.repository} --local-dir {target}\n"
        f"then bring the folder here and give {'it' if name.file is None else 'the file in it'} as the model."
    )
