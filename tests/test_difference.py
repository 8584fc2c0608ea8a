"""Differences: the same bits again, whatever the numbers, in less room where little has moved."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manymodes import difference
from manymodes.difference import packed, unpacked


def bits(tensor):
    return tensor.contiguous().view(torch.uint8).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@given(st.integers(1, 40), st.floats(0, 1), st.sampled_from([7, 8, 1000]), st.integers(0, 2**31))
def test_the_same_bits_come_back(dtype, size, share, block, seed):
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(size, generator=generator).to(dtype)
    values = torch.where(torch.rand(size, generator=generator) < share, base * 1.001, base)
    before = bits(base)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(difference, "BLOCK", block)
        again = unpacked(packed(values, base), base)
    assert bits(again) == bits(values)
    assert bits(base) == before


def test_numbers_that_are_none_come_back_too():
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 0.0, 1e-45])
    for base in (torch.zeros(5), odd, torch.ones(5)):
        assert bits(unpacked(packed(odd, base), base)) == bits(odd)
        assert bits(unpacked(packed(base, odd), odd)) == bits(base)


def test_what_has_not_moved_takes_no_room():
    base = torch.randn(400_000)
    assert packed(base, base).numel() < 0.01 * 4 * 400_000
    some = base.clone()
    some[:100_000] += 1e-5 * torch.randn(100_000)
    assert packed(some, base).numel() < 0.2 * 4 * 400_000
    assert packed(torch.randn(400_000), base).numel() < 1.05 * 4 * 400_000
