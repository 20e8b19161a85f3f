"""What each engine of a machine gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from triolet.args import EngineArgs
from triolet.cluster.resources import RankResources, divide_resources


def divide(
    num_ranks: int,
    root: Path,
    *,
    num_cores: int = 8,
    num_workers: int = 1,
    environment: dict[str, str] | None = None,
    **options: object,
) -> tuple[RankResources, ...]:
    args = EngineArgs(**options)  # type: ignore[arg-type]
    return divide_resources(
        args,
        num_ranks,
        num_workers=num_workers,
        num_cores=num_cores,
        environment=environment or {},
        root=root,
    )


def nvidia(root: Path, num_gpus: int) -> Path:
    for index in range(num_gpus):
        (root / f"proc/driver/nvidia/gpus/0000:0{index}:00.0").mkdir(parents=True)
    return root


def amd(root: Path, *simd_counts: int) -> Path:
    for index, count in enumerate(simd_counts):
        node = root / f"sys/class/kfd/kfd/topology/nodes/{index}"
        node.mkdir(parents=True)
        (node / "properties").write_text(f"cpu_cores_count 0\nsimd_count {count}\nmem_banks_count 1\n")
    return root


def test_cores_and_memory_of_a_machine_without_gpus_are_shared_out(tmp_path: Path) -> None:
    assert divide(3, tmp_path) == (RankResources(2, 3, {"OMP_NUM_THREADS": "2"}),) * 3
    assert divide(3, tmp_path, num_cores=2)[0].num_threads == 1
    assert divide(2, tmp_path, num_threads=7)[1].num_threads == 7
    assert divide(2, tmp_path, environment={"OMP_NUM_THREADS": "1"})[1].environment == {}


@pytest.mark.parametrize("driver", ["nvidia", "amd"])
def test_each_engine_has_its_gpu(driver: str, tmp_path: Path) -> None:
    root = nvidia(tmp_path, 2) if driver == "nvidia" else amd(tmp_path, 0, 256, 256)
    parts = divide(2, root)
    assert [part.environment["CUDA_VISIBLE_DEVICES"] for part in parts] == ["0", "1"]
    assert {part.num_sharing for part in parts} == {1}
    assert "CUDA_VISIBLE_DEVICES" not in divide(2, root, device="cpu")[0].environment


def test_only_gpus_that_may_be_used_are(tmp_path: Path) -> None:
    parts = divide(2, nvidia(tmp_path, 8), environment={"CUDA_VISIBLE_DEVICES": "GPU-5f, 3"})
    assert [part.environment["CUDA_VISIBLE_DEVICES"] for part in parts] == ["GPU-5f", "3"]
    assert (
        divide(2, nvidia(tmp_path / "none", 8), environment={"CUDA_VISIBLE_DEVICES": ""})[0].num_sharing == 2
    )


def test_engines_share_gpus_where_there_are_too_few(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parts = divide(3, nvidia(tmp_path, 2))
    assert [part.environment["CUDA_VISIBLE_DEVICES"] for part in parts] == ["0", "1", "0"]
    assert [part.num_sharing for part in parts] == [2, 1, 2]
    assert "3 engines of 1 processes share 2 GPUs" in caplog.text


def test_an_engine_of_several_processes_has_a_gpu_for_each(tmp_path: Path) -> None:
    root = nvidia(tmp_path, 5)
    parts = divide(2, root, num_workers=2)
    assert [part.environment["CUDA_VISIBLE_DEVICES"] for part in parts] == ["0,1", "2,3"]
    assert {(part.num_threads, part.num_sharing) for part in parts} == {(2, 1)}
    assert divide(1, root, num_workers=8)[0].environment["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4"
    assert divide(2, tmp_path / "none", num_workers=2)[0].num_sharing == 4
