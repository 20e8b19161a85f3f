"""Lines for the user."""

from __future__ import annotations

import logging
import sys

import pytest

from triolet.web import console


def test_the_loss_of_the_standard_output_ends_no_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with caplog.at_level(logging.WARNING):
            console.write_line("ready")
        assert "No space left" in caplog.text
        console.write_line("try it")
