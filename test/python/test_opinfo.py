"""A sample of PyTorch's own op table under chaos; ``ci/opinfo_full.sh`` runs all."""

from __future__ import annotations

import pytest

import opinfo_sweep


@pytest.mark.slow
def test_every_nth_opinfo_entry_is_bit_equal_under_chaos(request, device):
    reports = opinfo_sweep.sweep(
        every=request.config.getoption("--opinfo-every"), most_samples=6
    )
    print(opinfo_sweep.summarize(reports))
    assert len(reports) > 100
    assert not opinfo_sweep.failures(reports), opinfo_sweep.summarize(
        opinfo_sweep.failures(reports)
    )
