from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.compare import Settings, ratios, run_rounds
from bench.report import median_rows
from tests.bench.canned_process import canned_process

from bench import compare


def test_rounds_take_turns_and_are_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(
        num_rounds=2,
        concurrencies=(2,),
        requests_per_client=1,
        answer_tokens=5,
        num_long_prompts=2,
        contexts=(30,),
        has_neighbour=True,
    )
    rows = run_rounds(
        [lambda: canned_process("ours"), lambda: canned_process("theirs")],
        settings,
        tmp_path,
        lambda: {"read_gb_per_s": 30.0},
    )
    assert [row["server"] for row in rows] == [*["ours"] * 4, *["theirs"] * 4] * 2
    assert all(row["read_gb_per_s"] == 30.0 for row in rows)
    assert all(row["first_token_s"] > row["seconds_to_ready"] - 0.001 for row in rows)
    medians = median_rows(rows, ("server", "workload", "concurrency"))
    compared = ratios(medians, "ours", "theirs")
    assert [row["workload"] for row in compared] == [
        "answer", "prompt", "context 30", "neighbour",
    ]  # fmt: skip
    for row in compared:
        assert row["ratio"] == (row["ours"] / row["theirs"] if row["theirs"] else 0.0)


def test_the_whole_program_writes_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "_RESULTS", tmp_path)
    monkeypatch.setattr(compare, "triolet_server", lambda *_, **__: canned_process("triolet"))
    monkeypatch.setattr(
        compare, "machine_ceilings", lambda: {"read_gb_per_s": 30.0, "matmul_gflop_per_s": 400.0}
    )
    monkeypatch.setattr(compare, "llama_server", lambda *_, **__: canned_process("llama-server"))
    bench = tmp_path / "llama-bench"
    bench.write_text("#!/bin/sh\necho '[{\"avg_ts\": 283.5}]'\n")
    bench.chmod(0o755)
    arguments = ["--model", "m.gguf", "--llama-server", str(tmp_path / "llama-server"), "--name", "smoke"]
    monkeypatch.setattr(compare, "vllm_server", lambda *_, **__: canned_process("vllm"))
    arguments += ["--vllm", "python", "--vllm-model", "weights"]
    code = compare.main([*arguments, "--rounds", "1", "--concurrency", "1", "--requests-per-client", "1"])
    assert code == 0
    content = json.loads((tmp_path / "smoke.json").read_text())
    assert content["settings"]["llama_bench_pp512"] == 283.5
    assert {row["server"] for row in content["rows"]} == {
        "triolet",
        "llama-server",
        "vllm",
        "triolet, 1 thread",
    }
    assert {"llama-server", "vllm"} <= {name for row in content["settings"]["ratios"] for name in row}
    assert (tmp_path / "smoke.csv").exists()
    assert (tmp_path / "smoke.svg").exists()
    assert "283.5 tok/s" in capsys.readouterr().out


def test_vllm_without_its_weights_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare.main(["--model", "m.gguf", "--llama-server", "l", "--vllm", "python"])
    assert "go together" in capsys.readouterr().err
