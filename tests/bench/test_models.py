from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import models


def test_each_model_is_measured_in_its_own_number_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def run(command: Sequence[str], **_options: object) -> None:
        commands.append(list(command[3:]))
        path = Path(command[command.index("--json") + 1])
        path.write_text(json.dumps({"rows": [{"batch": 1, "decode_tokens_per_s": 80.0}]}))

    monkeypatch.setattr(subprocess, "run", run)
    path = tmp_path / "models.csv"
    names = ["llama-1b-int4", "smollm2-135m-float32", "folder/gemma.gguf"]
    assert models.main(["--models", *names, "--csv", str(path), "--batch", "1", "--max-tokens", "4"]) == 0
    assert [command[: command.index("--limit")] for command in commands] == [
        ["--random", "llama-1b-int4"],
        ["--random", "smollm2-135m-float32", "--dtype", "float32"],
        ["--model", "folder/gemma.gguf"],
    ]
    assert all(command[-4:] == ["--batch", "1", "--max-tokens", "4"] for command in commands)
    with path.open() as file:
        assert [row["model"] for row in csv.DictReader(file)] == [*names[:2], "gemma"]
    assert "llama-1b-int4" in capsys.readouterr().out
