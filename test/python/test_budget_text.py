"""How a budget is written: bytes, SI and binary units, a share of the device."""

from __future__ import annotations

import os

import pytest
import torch.cuda.remat

parse_bytes = torch.cuda.remat.parse_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1),
        ("123456", 123456),
        ("12B", 12),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("500MB", 500_000_000),
        ("512MiB", 512 << 20),
        ("8GB", 8_000_000_000),
        ("8GiB", 8 << 30),
        ("2TB", 2_000_000_000_000),
        ("1TiB", 1 << 40),
        ("1.5GiB", 3 << 29),
        ("0.5KB", 500),
        ("8 GiB", 8 << 30),
        (" 8GiB ", 8 << 30),
    ],
)
def test_size_is_read(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "8G", "8gb", "8 gigabytes", "1e9", "0x10", "8GiBs", "--8", "1,5GB"],
)
def test_other_spelling_is_refused_with_what_is_accepted(text):
    with pytest.raises(ValueError, match="GiB") as refused:
        parse_bytes(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    "size", [2**63, 2**70, "9" * 19, "99999999999TiB", "9" * 400, "9" * 400 + "TiB"]
)
def test_size_beyond_any_memory_is_refused(size):
    with pytest.raises(ValueError, match="no device has"):
        parse_bytes(size)


def test_share_is_of_the_total_memory(remat_off, device):
    if device != "cpu":
        pytest.skip("the total of other devices is what their driver says")
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    remat_off.enable("50%", device=device)
    found = remat_off.stats(device).budget_bytes
    # A container's own limit may be lower than the machine's memory.
    assert 0 < found <= total // 2 + 1


def test_share_scales(remat_off, device):
    remat_off.enable("80%", device=device)
    high = remat_off.stats(device).budget_bytes
    remat_off.enable("20%", device=device)
    low = remat_off.stats(device).budget_bytes
    assert abs(high - 4 * low) <= 8


def test_infinity_means_no_limit(remat_off, device):
    remat_off.enable(float("inf"), device=device)
    assert remat_off.stats(device).budget_bytes is None
