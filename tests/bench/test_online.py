from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from bench.online import Load, main, run_level, served_model
from tests.openai_server import canned_server


def test_a_run_writes_rows_and_a_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = {kind: tmp_path / f"rows.{kind}" for kind in ("json", "csv", "svg")}
    with canned_server() as server:
        code = main(
            ["--url", server.url, "--concurrency", "1", "4", "--requests-per-client", "2",
             "--max-tokens", "12", "--json", str(outputs["json"]),
             "--csv", str(outputs["csv"]), "--plot", str(outputs["svg"])]
        )  # fmt: skip
    assert code == 0
    content = json.loads(outputs["json"].read_text())
    assert [row["concurrency"] for row in content["rows"]] == [1, 4]
    assert [row["output_tokens"] for row in content["rows"]] == [2 * 12, 8 * 12]
    assert all(row["output_tokens_per_s"] > 0 and row["num_errors"] == 0 for row in content["rows"])
    assert content["machine"]["cores"] >= 1
    assert len(list(csv.DictReader(outputs["csv"].read_text().splitlines()))) == 2
    assert outputs["svg"].read_text().startswith("<?xml")
    assert "output_tokens_per_s" in capsys.readouterr().out


def test_prompts_never_repeat_and_the_body_is_as_asked() -> None:
    with canned_server() as server:
        load = Load(url=server.url, model=served_model(server.url), endpoint="chat", max_tokens=3)
        run_level(load, concurrency=3, num_requests=6, prompt_index=50, server="canned")
        bodies = [body for path, body, _ in server.requests if path == "/v1/chat/completions"]
    prompts = [body["messages"][0]["content"] for body in bodies]
    assert len(set(prompts)) == len(prompts) == 3 + 6
    assert all(len(prompt.split()) == 100 for prompt in prompts)
    assert {(body["model"], body["ignore_eos"], body["temperature"]) for body in bodies} == {
        ("canned", True, 0)
    }


def test_answers_that_stop_early_are_counted_as_they_are() -> None:
    with canned_server(max_words=5) as server:
        load = Load(url=server.url, model="canned", max_tokens=128)
        row = run_level(load, concurrency=2, num_requests=4, prompt_index=0, server="canned")
    assert row["output_tokens"] == 4 * 5


def test_errors_are_counted_and_the_exit_code_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with canned_server(error=(503, {"error": {"message": "loading"}})) as server:
        assert main(["--url", server.url, "--concurrency", "2", "--requests-per-client", "1"]) == 1
    captured = capsys.readouterr()
    assert "loading" in captured.err
