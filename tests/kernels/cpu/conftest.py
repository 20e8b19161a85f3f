"""The compiled kernels, one variant after the other."""

from __future__ import annotations

import pytest
from tests.kernels.cpu.variants import ISAS, build_if_missing, make_ops

from triolet_kernels.cpu import CpuOps


@pytest.fixture(scope="session", params=ISAS)
def ops(request: pytest.FixtureRequest) -> CpuOps:
    build_if_missing()
    return make_ops(request.param)
