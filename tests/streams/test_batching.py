"""Batches written sample by sample, beside torch.stack."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manymodes.errors import UserError
from manymodes.streams.batching import Plan, shared_memory, stacked
from manymodes.streams.mapped import MappedData

DTYPES = [torch.uint8, torch.float32, torch.int64]


@given(st.data())
def test_any_samples_in_any_memory(data):
    shape = data.draw(st.lists(st.integers(0, 4), max_size=3))
    order = data.draw(st.permutations(range(len(shape))))
    dtypes = data.draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=5))
    samples = [torch.randint(0, 99, shape).to(dtype).permute(order) for dtype in dtypes]
    room = data.draw(st.sampled_from([None, 0, 64, 6400]))
    memory = None if room is None else torch.empty(room, dtype=torch.uint8)
    found = stacked(samples, list(range(len(samples))), memory)
    if isinstance(found, Plan):
        assert len(set(dtypes)) == 1
        assert found.size(len(samples)) <= room
        found = found.batch(len(samples), memory)
    else:
        mixed = len({sample.dtype for sample in samples}) > 1
        assert room is None or mixed or Plan.of(samples[0]).size(len(samples)) > room
    slow = torch.stack(samples)
    assert torch.equal(found, slow)
    assert found.dtype == slow.dtype


def test_pixels_stay_side_by_side():
    image = torch.zeros(5, 4, 3, dtype=torch.uint8).permute(2, 0, 1)
    assert stacked([image] * 2, [0, 1]).is_contiguous(memory_format=torch.channels_last)


def test_sizes_that_do_not_fit_name_the_samples():
    with pytest.raises(UserError, match=r"sample 7 has shape \(2,\), sample 9 \(3,\)"):
        stacked([torch.zeros(2), torch.zeros(3)], [7, 9])


def test_places_begin_where_any_number_may():
    places = shared_memory(3, 12)
    assert places.shape == (3, 64)
    assert shared_memory(2, 0).shape == (2, 0)


@pytest.mark.parametrize("transform", [None, lambda raw: raw, lambda raw: raw.flatten(1), torch.neg])
def test_batches_stay_when_their_place_is_used_again(transform):
    samples = [(torch.full((2, 3), float(i)), 0) for i in range(40)]
    order = list(torch.arange(40).split(3))
    alone, helped = (
        list(MappedData(samples, transform, workers=workers, prefetch=1).batches(order)) for workers in (0, 2)
    )
    for one, other in zip(alone, helped, strict=True):
        assert torch.equal(one.inputs, other.inputs)


def test_batches_larger_than_the_first_promised():
    """Samples of other sizes in later batches do not fit into the places, and come all the same."""
    samples = [(torch.full((1 + i // 4,), float(i)), 0) for i in range(12)]
    batches = MappedData(samples, workers=2).batches(list(torch.arange(12).split(2)))
    assert [batch.inputs.shape[1] for batch in batches] == [1, 1, 2, 2, 3, 3]
