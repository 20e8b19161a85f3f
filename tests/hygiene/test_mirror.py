"""Every module has its tests beside it: the tests mirror the sources."""

from __future__ import annotations

from pathlib import Path

from tests.hygiene.source_files import ROOT, modules_with_code

TEST_FOLDERS = {
    "src/server": "tests/server",
    "src/triolet": "tests/triolet",
    "kernels/triolet_kernels": "tests/kernels",
    "kernels": "tests/kernels",
    "bench": "tests/bench",
}

UNTESTED_ALONE = {
    "bench/gpu_cases.py": "tests/bench/test_gpu_compile.py",
    "bench/gpu_peer.py": "tests/bench/test_gpu_check.py",
    "kernels/triolet_kernels/gpu/attention_tile.py": "tests/kernels/gpu/test_attention.py",
    "kernels/triolet_kernels/gpu/decode_attention.py": "tests/kernels/gpu/test_attention.py",
    "kernels/triolet_kernels/gpu/prefill_attention.py": "tests/kernels/gpu/test_attention.py",
    "kernels/triolet_kernels/cpu/__init__.py": "tests/kernels/test_ops.py",
    "kernels/triolet_kernels/cpu/packed_weight.py": "tests/kernels/cpu/test_linear.py",
    "kernels/triolet_kernels/expert_ops.py": "tests/kernels/reference/test_experts.py",
    "kernels/triolet_kernels/gpu/__init__.py": "tests/kernels/test_ops.py",
    "kernels/triolet_kernels/gpu/code_rows.py": "tests/kernels/gpu/test_embedding.py",
    "kernels/triolet_kernels/gpu/drawing_kernels.py": "tests/kernels/gpu/test_drawing.py",
    "kernels/triolet_kernels/gpu/linear_kernels.py": "tests/kernels/gpu/test_linear.py",
    "kernels/triolet_kernels/gpu/logit_order.py": "tests/kernels/gpu/test_drawing.py",
    "kernels/triolet_kernels/gpu/row_scan.py": "tests/kernels/gpu/test_drawing.py",
    "kernels/triolet_kernels/reference/__init__.py": "tests/kernels/test_ops.py",
    "src/triolet/cluster/api_server_client.py": "tests/triolet/cluster/test_launcher.py",
    "src/triolet/cluster/api_server_process.py": "tests/triolet/cluster/test_launcher.py",
    "src/triolet/cluster/engine_process.py": "tests/integration/test_engine_process.py",
    "src/triolet/cluster/front_end_link.py": "tests/triolet/cluster/test_rank_server.py",
    "src/triolet/cluster/launcher_link.py": "tests/triolet/cluster/test_launcher.py",
    "src/triolet/cluster/supervised_rank.py": "tests/triolet/cluster/test_rank_supervisor.py",
    "src/triolet/models/decoder.py": "tests/triolet/models/test_parity.py",
    "src/triolet/models/experts.py": "tests/triolet/models/test_parity.py",
    "src/triolet/models/gemma.py": "tests/triolet/models/test_parity.py",
    "src/triolet/models/registry.py": "tests/triolet/models/test_loader.py",
    "src/triolet/models/weights.py": "tests/triolet/models/test_loader.py",
    "src/triolet/runtime/constraints.py": "tests/triolet/runtime/test_grammar_masks.py",
    "src/triolet/web/api_process.py": "tests/integration/test_shapes.py",
    "src/triolet/runtime/loading.py": "tests/triolet/runtime/test_runner.py",
    "src/triolet/web/app.py": "tests/triolet/web/test_lifespan.py",
    "src/triolet/web/serving_engine.py": "tests/triolet/web/fake_engine.py",
    "src/triolet/web/settings.py": "tests/triolet/web/test_auth.py",
}
"""Modules without a test file of their own, each with what tests it instead."""


def test_a_module_has_its_tests_beside_it() -> None:
    without = [str(path) for path in modules_with_code() if not has_tests(path)]
    assert sorted(set(without) - set(UNTESTED_ALONE)) == []


def has_tests(path: Path) -> bool:
    folder = next(folder for folder in TEST_FOLDERS if str(path).startswith(folder + "/"))
    stem = path.parent.name if path.name == "__init__.py" else path.stem.strip("_")
    place = ROOT / TEST_FOLDERS[folder] / path.relative_to(folder).parent
    return any(place.glob(f"test_{stem}.py")) or any(place.glob(f"test_{stem}_*.py"))


def test_the_list_of_exceptions_holds_only_what_exists_and_needs_it() -> None:
    for path, tested_by in UNTESTED_ALONE.items():
        assert (ROOT / path).exists()
        assert (ROOT / tested_by).exists(), f"{path} is tested by nothing"
        assert not has_tests(Path(path)), f"{path} has tests of its own now"
