"""The stored table."""

from __future__ import annotations

import pytest

from triolet_kernels.gpu.configurations import ARCHITECTURES, Configurations


@pytest.mark.parametrize(
    ("architecture", "nearest"),
    [
        ("sm_80", "sm_80"),
        ("sm_86", "sm_80"),
        ("sm_87", "sm_80"),
        ("sm_89", "sm_89"),
        ("sm_90", "sm_90"),
        ("sm_100", "sm_90"),
        ("sm_120", "sm_89"),
        ("gfx90a", "gfx942"),
    ],
)
def test_every_architecture_has_a_table(architecture: str, nearest: str) -> None:
    assert Configurations.load(architecture).architecture == nearest


def test_all_tables_have_the_same_kernels() -> None:
    kernels = [{kernel for kernel, _ in Configurations.load(name)} for name in ARCHITECTURES]
    assert all(found == kernels[0] for found in kernels)


def test_what_is_not_in_the_table_is_not_made_up() -> None:
    table = Configurations.load("sm_90")
    assert table.find("norm", "size 3") is None
    configuration = table.find("norm", "size 1024")
    assert configuration is not None
    assert configuration.constants == {"BLOCK": 1024}


def test_a_table_may_say_only_what_it_has_besides_another() -> None:
    base, more = Configurations.load("sm_80"), Configurations.load("sm_89")
    assert set(more) - set(base) == {("scaled_linear", "fp8")}
    assert [key for key in base if more.find(*key) != base.find(*key)] == [
        ("prefill_attention", "head 256, 16 bits")
    ]
