"""Memory that processes share, tried with threads, which see everything and can be watched."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manymodes import neighbours

pytestmark = pytest.mark.skipif(not neighbours.SHARED.is_dir(), reason="needs /dev/shm")
FEW = 40  # bytes in a block, so that a few numbers need many


class Talk:
    """`everyone` of threads."""

    def __init__(self, count):
        self.told, self.barrier = [None] * count, Barrier(count)

    def everyone(self, number, value):
        self.told[number] = value
        self.barrier.wait(30)
        told = list(self.told)
        self.barrier.wait(30)
        return told


def each(count, what, block=FEW):
    """what(number, neighbours) by as many threads that have met."""
    talk = Talk(count)

    def one(number):
        near = neighbours.met(number, count, lambda value: talk.everyone(number, value))
        try:
            return what(number, near)
        finally:
            if near is not None:
                near.close()

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(count) as pool:
        patch.setattr(neighbours, "BLOCK", block)
        return list(pool.map(one, range(count)))


DTYPES = st.sampled_from([torch.float32, torch.float64, torch.int64])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.lists(st.integers(0, 40), min_size=1, max_size=6), DTYPES, st.booleans())
def test_sums_and_rows_are_everybodys(count, sizes, dtype, flag):
    """Sums and rows of any length in any order, beside the obvious ones."""
    tensors = [[(torch.randn(count, size) * 9).to(dtype) for size in sizes] for _ in range(2)]
    divisor = torch.tensor(3.0) if flag and dtype.is_floating_point else None

    def what(number, near):
        found = []
        for summed, rows in zip(*tensors, strict=True):
            found.append(near.sum_(summed[number].clone(), divisor))
            found.append(near.gather(rows[number]))
        return found

    answers = each(count, what)
    for number, (summed, rows) in enumerate(zip(*tensors, strict=True)):
        slow = sum(summed[1:], summed[0].clone()) / (1 if divisor is None else divisor)
        for found in answers:
            torch.testing.assert_close(found[2 * number], slow.to(dtype))
            assert torch.equal(found[2 * number], answers[0][2 * number])
            assert torch.equal(found[2 * number + 1], rows)


def test_shapes_and_kinds():
    def what(number, near):
        number_alone = near.sum_(torch.tensor(number + 1))
        flags = near.gather(torch.tensor([[number == 1, True]]))
        return int(number_alone), flags.tolist(), near.gather(torch.zeros(2, 3).t()).shape

    for answer in each(2, what, neighbours.BLOCK):
        assert answer == (3, [[[False, True]], [[True, True]]], (2, 3, 2))


def test_who_is_gone_is_missed_at_once():
    def what(number, near):
        if number == 1:
            return None
        with pytest.raises(OSError, match=r"closed|Broken"):
            near.sum_(torch.zeros(100))
        return None

    each(3, what)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(neighbours, "SHARED", tmp_path)
    return tmp_path


def test_nothing_is_left_while_they_work(place):
    def what(number, near):
        near.sum_(torch.zeros(1))  # all have met
        return list(place.iterdir())

    assert each(2, what)[0] == []


@pytest.mark.parametrize("why", ["no such place", "no room", "another machine"])
def test_without_shared_memory_there_is_none(why, monkeypatch, place):
    if why == "no such place":
        monkeypatch.setattr(neighbours, "SHARED", place / "none")
    elif why == "no room":
        monkeypatch.setattr("os.posix_fallocate", _no_room)
    else:
        opened = neighbours._opened
        monkeypatch.setattr(
            neighbours, "_opened", lambda path, how: -1 if "/1-" in path else opened(path, how)
        )
    assert each(2, lambda number, near: near) == [None, None]
    assert list(place.iterdir()) == []


def _no_room(*arguments):
    raise OSError(28, "No space left on device")
