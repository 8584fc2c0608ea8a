"""Valid outputs: restricting, renumbering, going back to full width."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import log_softmax

from manymodes.errors import UserError
from manymodes.flat import FlatModel
from manymodes.outputs import Valid, allowed_outputs, grown, log_probabilities, of_targets
from manymodes.task import TensorData
from tests.toys import net

CLASSES = st.sets(st.integers(0, 9), min_size=1)


@given(CLASSES, st.integers(10, 13), st.integers(0, 2**31))
def test_restricting_and_widening_are_a_loop_over_classes(classes, outputs, seed):
    generator = torch.Generator().manual_seed(seed)
    valid, ordered = Valid(tuple(classes), outputs), sorted(classes)
    logits = torch.randn(5, outputs, generator=generator)
    picked = valid.logits(logits)
    assert picked.shape == (5, len(valid)) == (5, len(ordered))
    targets = torch.tensor([ordered[i % len(ordered)] for i in range(5)])
    renumbered = valid.targets(targets)
    wide = valid.widen(picked)
    for s in range(5):
        for position, c in enumerate(ordered):
            assert picked[s, position] == logits[s, c] == wide[s, c]
        assert ordered[renumbered[s]] == targets[s]
        assert all(wide[s, c] == 0 for c in range(outputs) if c not in classes)


@pytest.mark.parametrize(
    ("classes", "view"), [((2, 3, 4), True), ((4, 3, 2), True), ((0,), True), ((1, 3), False)]
)
def test_neighbouring_outputs_are_a_view(classes, view):
    logits = torch.randn(2, 6)
    picked = Valid(classes, 6).logits(logits)
    assert (picked.untyped_storage().data_ptr() == logits.untyped_storage().data_ptr()) == view


@pytest.mark.parametrize("classes", [(0, 1), (0, 2)])
def test_gradients_reach_the_valid_logits_only(classes):
    logits = torch.randn(3, 4, requires_grad=True)
    log_softmax(Valid(classes, 4).logits(logits), dim=1)[:, 0].sum().backward()
    touched = logits.grad.abs().sum(dim=0) > 0
    assert [c for c in range(4) if touched[c]] == list(classes)


@pytest.mark.parametrize("classes", [(), (-1, 0), (0, 4), (7,), ("cat",), (0.5,)])
def test_strange_classes_are_refused(classes):
    with pytest.raises(UserError, match="0 to 3"):
        Valid(classes, 4)


def test_classes_may_be_numbers_of_any_kind():
    assert Valid(torch.tensor([3, 1]), 4).classes == (1, 3)
    assert Valid((1, 1, 0), 4).classes == (0, 1)


@given(st.lists(CLASSES, min_size=1, max_size=5))
def test_grown_takes_the_largest_group_that_contains_it(groups):
    for group, found in zip(groups, grown([tuple(g) for g in groups]), strict=True):
        around = [g for g in groups if group <= g]
        assert set(found) in around
        assert len(found) == max(map(len, around))


def test_allowed_outputs_by_hand():
    assert allowed_outputs([(1,), (0, 1), (3,)], 4).int().tolist() == [
        [1, 1, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 0, 1],
    ]


@pytest.mark.parametrize("classes", [(1, 2), (0, 3)])
def test_log_probabilities_are_the_eval_modes_own_in_order(classes):
    model = FlatModel(net(norm=True))
    model.module.train()
    buffers = model.buffers.clone()
    data = TensorData(torch.randn(700, 6), torch.zeros(700), augment=lambda raw, g: raw * 0)
    found = log_probabilities(model, data, Valid(classes, 4), model.module)
    assert model.module.training
    assert torch.equal(model.buffers, buffers)
    model.module.eval()
    rows = [log_softmax(model.module(x[None])[0, list(classes)], dim=0) for x in data.inputs[:520]]
    torch.testing.assert_close(found[:520], torch.stack(rows), rtol=1e-5, atol=1e-6)
    assert not found.requires_grad


def test_log_probabilities_of_nothing():
    model = FlatModel(net())
    data = TensorData(torch.zeros(0, 6), torch.zeros(0))
    assert log_probabilities(model, data, Valid((1, 2), 4), model.module).shape == (0, 2)


def test_of_targets():
    assert of_targets(torch.tensor([[0.1, 0.2], [0.3, 0.4]]), torch.tensor([1, 0])).tolist() == pytest.approx(
        [0.2, 0.3]
    )
