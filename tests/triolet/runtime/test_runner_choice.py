from __future__ import annotations

from typing import Any

import pytest
import torch

from triolet.args import EngineArgs
from triolet.models.source import ModelFiles
from triolet.runtime import runner_choice
from triolet.runtime.overlapped_runner import OverlappedRunner
from triolet.runtime.runner import ModelRunner

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("device", "speculation", "expected"),
    [
        (CPU, "off", ModelRunner),
        (GPU, "off", OverlappedRunner),
        (GPU, "ngram", OverlappedRunner),
        (GPU, "draft", ModelRunner),
    ],
)
def test_the_runner_is_that_of_the_device(
    device: torch.device, speculation: Any, expected: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = EngineArgs() if speculation != "draft" else EngineArgs(speculation="draft", draft_model="other")
    args = args if speculation in ("off", "draft") else EngineArgs(speculation=speculation)
    monkeypatch.setattr(runner_choice, "choose_device", lambda args: device)
    monkeypatch.setattr(ModelRunner, "load", classmethod(lambda cls, *arguments: cls))
    chosen: Any = runner_choice.load_runner(ModelFiles.__new__(ModelFiles), args, lambda phase: None)
    assert chosen is expected
