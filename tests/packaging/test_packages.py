"""What gets into the wheel, the sdist and the editable install, with and without a compiler.

Nothing is installed and nothing fetched: packages are built by hatchling from a copy of the tree and used
from where they are unpacked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = "triolet_kernels/cpu/libtriolet_cpu.so"
SAY_OPS = (
    "import torch; from triolet_kernels.ops import select_ops; print(select_ops(torch.device('cpu')).name)"
)

pytestmark = pytest.mark.slow


def environment(**changes: str) -> dict[str, str]:
    """Unoptimised, for the compiler's sake: what is tested is what gets where."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRIOLET_", "PYTHON"))}
    return {**kept, "CXXFLAGS": "-O0", **changes}


def run(*command: str, cwd: Path, env: dict[str, str]) -> str:
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def build(tree: Path, target: str, output: Path, **changes: str) -> tuple[Path, str]:
    """The package hatchling makes of ``tree``, and what it said."""
    command = (sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(output))
    said = run(*command, cwd=tree, env=environment(**changes))
    (package,) = output.iterdir()
    return package, said


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def ops_name(*paths: Path, tmp_path: Path) -> str:
    """The kernels a fresh interpreter picks with only ``paths`` added."""
    env = environment(PYTHONPATH=os.pathsep.join(map(str, paths)))
    return run(sys.executable, "-W", "error", "-c", SAY_OPS, cwd=tmp_path, env=env).strip()


def check_native_wheel(wheel: Path, tmp_path: Path) -> None:
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert "linux" in wheel.name
    names = names_in(wheel)
    assert {LIBRARY, "triolet_kernels/ops.py", "triolet/__init__.py", "server/__main__.py"} <= names
    assert {f"triolet/web/page/{path.name}" for path in (ROOT / "src/triolet/web/page").iterdir()} <= names
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    assert ops_name(site, tmp_path=tmp_path).startswith("cpu-")
    assert ops_name(site, tmp_path=tmp_path) != "cpu-torch"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what git knows, so that nothing built or ignored here gets in."""
    listing = run(
        "git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT, env=dict(os.environ)
    )
    copy = tmp_path / "tree"
    for name in listing.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    return copy


def test_wheel_from_the_tree(tree: Path, tmp_path: Path) -> None:
    wheel, said = build(tree, "wheel", tmp_path / "dist")
    assert "WITHOUT" not in said
    check_native_wheel(wheel, tmp_path)


def test_wheel_from_the_sdist(tree: Path, tmp_path: Path) -> None:
    # A library left over from work in the tree must not travel.
    (tree / "kernels" / LIBRARY).write_bytes(b"stale")
    sdist, _ = build(tree, "sdist", tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        assert not [name for name in archive.getnames() if name.endswith(".so")]
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    wheel, _ = build(unpacked, "wheel", tmp_path / "dist")
    check_native_wheel(wheel, tmp_path)


def test_editable(tree: Path, tmp_path: Path) -> None:
    code = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"
    output = tmp_path / "dist"
    output.mkdir()
    run(sys.executable, "-c", code, str(output), cwd=tree, env=environment())
    (wheel,) = output.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        (link,) = (name for name in archive.namelist() if name.endswith(".pth"))
        paths = [Path(line) for line in archive.read(link).decode().splitlines()]
    assert {tree / "src", tree / "kernels"} == set(paths)
    assert (tree / "kernels" / LIBRARY).exists()
    assert ops_name(*paths, tmp_path=tmp_path) not in ("", "cpu-torch")


def test_without_a_compiler_the_wheel_is_pure_and_says_so(tree: Path, tmp_path: Path) -> None:
    wheel, said = build(tree, "wheel", tmp_path / "dist", CXX="/nonexistent")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert LIBRARY not in names_in(wheel)
    assert "WITHOUT the native CPU kernels" in said
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    warning = "the native CPU kernels were not built"
    said_at_start = ops_name(site, tmp_path=tmp_path)
    assert said_at_start.startswith("cpu-torch\n")
    assert said_at_start.count(warning) == 1


def test_a_compiler_that_fails_is_like_none(tree: Path, tmp_path: Path) -> None:
    (tree / "kernels/triolet_kernels/cpu/broken.cpp").write_text("this is not C++\n")
    wheel, said = build(tree, "wheel", tmp_path / "dist")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "broken.cpp" in said
