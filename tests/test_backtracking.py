"""Backtracking: equal to brute force, bounds that hold, pruning that loses nothing, errors in one line."""

import itertools
import math

import numpy as np
import pytest
import torch
from benchmarks.backtracking import lifelike
from hypothesis import given
from hypothesis import strategies as st

from manymodes import checkpoint_search, pair_tables
from manymodes.backtracking import FLOOR, backtrack, can_still_win
from manymodes.bounds import linear_bounds, relax, tangent, undominated
from manymodes.errors import UserError
from tests.reference import backtracking as slow

KINDS = ("uniform", "coarse", "sharp", "copies")


@st.composite
def problems(draw, most_modes=4, most_checkpoints=6):
    """(probs, drifts, weight): per mode (E_i, S) and (E_i,), with ties, zeros, ones and repeated rows."""
    modes = draw(st.integers(1, most_modes))
    sizes = [draw(st.integers(1, most_checkpoints)) for _ in range(modes)]
    samples = draw(st.sampled_from([1, 2, 5, 23, 24, 60]))
    kind, weight = draw(st.sampled_from(KINDS)), draw(st.sampled_from([0.0, 0.1, 1.0]))
    random = np.random.default_rng(draw(st.integers(0, 2**31)))
    probs, drifts = [], []
    for size in sizes:
        rows, drift = random.random((size, samples)), random.random(size)
        if kind == "coarse":
            rows, drift = random.choice([0, 0.25, 0.5, 1], (size, samples)), random.choice([0, 0.5, 1], size)
        if kind == "sharp":  # networks that are sure, and sometimes wrong
            rows = 1 / (1 + np.exp(random.normal(0, 15, (size, samples))))
        if kind == "copies":  # equal checkpoints in one mode
            same = random.integers(0, 2, size)
            rows, drift = random.random((2, samples))[same], random.random(2)[same]
        probs.append(torch.from_numpy(rows))
        drifts.append(torch.from_numpy(drift))
    return probs, drifts, weight


def as_lists(tensors):
    return [t.tolist() for t in tensors]


def brute(probs, drifts, weight):
    return slow.best(as_lists(probs), as_lists(drifts), weight)


def agrees(choice, probs, drifts, weight):
    epochs, value = brute(probs, drifts, weight)
    assert choice.epochs == epochs
    assert choice.value == pytest.approx(value, abs=1e-11)
    assert choice.proven
    assert choice.lower_bound <= choice.value


# ---- the search --------------------------------------------------------------------------------------


@given(problems())
def test_the_choice_is_that_of_brute_force(problem):
    agrees(backtrack(*problem), *problem)


@given(problems())
def test_nodes_that_are_split_lead_to_the_same_choice(problem):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_search, "VISITS", 2)
        patch.setattr(checkpoint_search, "SIEVE_FROM", 1)
        patch.setattr(checkpoint_search, "CHUNK", 3)
        patch.setattr(checkpoint_search, "BLOCK", 50)
        patch.setattr(pair_tables, "CHUNK", 2)
        agrees(backtrack(*problem), *problem)


def test_a_node_really_is_split(monkeypatch):
    monkeypatch.setattr(checkpoint_search, "VISITS", 2)
    monkeypatch.setattr(pair_tables, "CHUNK", 2)
    random = np.random.default_rng(3)
    parts = [random.random((7, 40)) / 3 for _ in range(3)]
    search = checkpoint_search.Search(parts, [np.zeros(7)] * 3, math.inf)
    assert search.run() == search.value
    assert search.nodes > 1
    probs = [torch.from_numpy(part * 3) for part in parts]
    assert search.epochs == brute(probs, [torch.zeros(7)] * 3, 0.0)[0]


@given(problems())
def test_without_time_the_bound_still_holds(problem):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_tables, "CHUNK", 1)
        choice = backtrack(*problem, time_limit=0.0)
    least = brute(*problem)[1]
    probs, drifts, weight = problem
    assert choice.lower_bound <= least + 1e-12
    assert choice.value == pytest.approx(
        slow.value(as_lists(probs), as_lists(drifts), weight, choice.epochs), abs=1e-11
    )
    assert choice.proven == (choice.value - choice.lower_bound <= 1e-9 * max(1, choice.value))


def test_when_time_is_over_the_gap_is_small_but_open():
    random = np.random.default_rng(0)  # uniform noise: nothing to prune by
    probs, drifts = torch.from_numpy(random.random((3, 60, 40))), torch.full((3, 60), 7.0)
    stopped, finished = backtrack(probs, drifts, 1.0, time_limit=0.0), backtrack(probs, drifts, 1.0)
    assert finished.proven
    assert not stopped.proven
    assert 0 < stopped.value - stopped.lower_bound < 0.2 * (stopped.value - 3 * 7.0)
    assert stopped.lower_bound < finished.value <= stopped.value


def test_few_choices_are_evaluated():
    probs, drifts = lifelike(3, 21, 200, noise=1.0)
    choice = backtrack(probs, drifts, 0.02)
    parts = probs.double().clamp(FLOOR, 1) / 3
    joint = parts[0, :, None, None] + parts[1, None, :, None] + parts[2, None, None, :]
    costs = 0.02 * drifts
    penalty = costs[0, :, None, None] + costs[1, None, :, None] + costs[2, None, None, :]
    values = penalty - joint.log().mean(-1)
    assert choice.epochs == tuple(int(i) for i in torch.unravel_index(values.argmin(), values.shape))
    assert choice.value == pytest.approx(values.min().item(), abs=1e-12)
    assert choice.evaluated < 0.1 * values.numel()


def test_six_modes_are_proven_with_few_evaluations():
    choice = backtrack(*lifelike(6, 51, 500, noise=1.0), 0.02, time_limit=60)
    assert choice.proven
    assert choice.evaluated < 20_000  # of 1.8e10


def test_one_mode_takes_its_own_best():
    probs, drifts = lifelike(1, 30, 100)
    values = 0.02 * drifts[0] - probs[0].double().log().mean(1)
    assert backtrack(probs, drifts, 0.02).epochs == (int(values.argmin()),)


def test_equal_choices_give_the_smallest_epochs():
    row = torch.tensor([[0.2, 0.9, 0.9, 0.1]]).T
    assert backtrack([row, row], torch.zeros(2, 4), 0.0).epochs == (1, 1)
    swapped = torch.tensor([[0.3, 0.9], [0.9, 0.3]])  # (0, 1) and (1, 0) are equal and best
    assert backtrack([swapped, swapped], torch.zeros(2, 2), 1.0).epochs == (0, 1)


def test_many_equal_checkpoints_are_no_work():
    choice = backtrack(torch.full((6, 51, 30), 0.5), torch.zeros(6, 51), 1.0)
    assert choice.epochs == (0,) * 6
    assert choice.evaluated < 2_000


def test_a_large_drift_weight_chooses_no_update():
    probs, drifts = lifelike(3, 20, 50)
    drifts[:, 0] = 0
    assert backtrack(probs, drifts, 1e9).epochs == (0, 0, 0)


def test_zero_probabilities_cost_a_finite_number():
    choice = backtrack(torch.zeros(2, 3, 4), torch.zeros(2, 3), 1.0)
    assert choice.value == pytest.approx(-math.log(FLOOR))
    assert choice.epochs == (0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_any_float_type_and_inputs_stay_as_they_are(dtype):
    probs, drifts = (t.to(dtype) for t in lifelike(2, 6, 30))
    before = probs.clone(), drifts.clone()
    choice = backtrack(probs.requires_grad_(), drifts, 0.05)
    agrees(choice, list(probs.double()), list(drifts.double()), 0.05)
    assert torch.equal(probs, before[0])
    assert torch.equal(drifts, before[1])


def test_the_same_twice():
    problem = lifelike(4, 25, 150, noise=3.0)
    first, second = backtrack(*problem, 0.02), backtrack(*problem, 0.02)
    assert first == second
    assert first.evaluated == second.evaluated


# ---- the bounds --------------------------------------------------------------------------------------


@st.composite
def relaxed(draw):
    """A problem as the search sees it: parts, costs, some mixture, and f of every choice."""
    probs, drifts, weight = draw(problems(most_modes=3, most_checkpoints=5))
    random = np.random.default_rng(draw(st.integers(0, 2**31)))
    parts = [np.clip(p.numpy(), FLOOR, 1) / len(probs) for p in probs]
    costs = [weight * d.numpy() for d in drifts]
    mixture = [random.dirichlet(np.full(len(c), 0.3)) + 1e-12 for c in costs]
    return parts, costs, mixture, slow.all_values(as_lists(probs), as_lists(drifts), weight)


def table_value(tables, epochs):
    pairs = itertools.combinations(range(len(epochs)), 2)
    value = sum(single[e] for single, e in zip(tables.unary, epochs, strict=True))
    return value + sum(tables.pair[i][j][epochs[i], epochs[j]] for i, j in pairs)


@given(relaxed())
def test_linear_bounds_are_below_every_choice(problem):
    parts, costs, mixture, values = problem
    bounds = linear_bounds(parts, costs, tangent(parts, mixture))
    for epochs, value in values.items():
        assert all(bound[e] <= value + 1e-9 for bound, e in zip(bounds, epochs, strict=True))


@given(relaxed())
def test_tables_and_their_bounds_are_below_every_choice(problem):
    parts, costs, mixture, values = problem
    tables = pair_tables.quadratic_tables(parts, costs, mixture)
    bounds = pair_tables.pair_bounds(tables)
    choices = np.array(list(values))
    gains = pair_tables.Sieve(parts, tables, choices).gain(choices)
    for (epochs, value), gain in zip(values.items(), gains, strict=True):
        below = table_value(tables, epochs)
        assert below <= value + 1e-9
        assert gain >= -1e-9
        assert below + gain <= value + 1e-9
        assert all(bound[e] <= below + 1e-9 for bound, e in zip(bounds, epochs, strict=True))


@given(relaxed())
def test_a_sieve_over_all_samples_is_exact(problem):
    parts, costs, mixture, values = problem
    tables = pair_tables.quadratic_tables(parts, costs, mixture)
    choices = np.array(list(values))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_tables, "SIEVED", 1)
        gains = pair_tables.Sieve(parts, tables, choices).gain(choices)
    for (epochs, value), gain in zip(values.items(), gains, strict=True):
        assert table_value(tables, epochs) + gain == pytest.approx(value, abs=1e-9)


@given(relaxed(), st.floats(0, 1), st.sampled_from([1, 2, 1000]))
def test_the_enumeration_finds_each_choice_under_the_cutoff_once(problem, quantile, chunk):
    parts, costs, mixture, values = problem
    tables = pair_tables.quadratic_tables(parts, costs, mixture)
    below = {epochs: table_value(tables, epochs) for epochs in values}
    cutoff = float(np.quantile(list(below.values()), quantile)) + 1e-7
    found, remaining = [], set(below)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_tables, "CHUNK", chunk)
        for batch in pair_tables.completions(tables, lambda: cutoff):
            for row, value in zip(batch.choices.tolist(), batch.values, strict=True):
                assert value == pytest.approx(below[tuple(row)], abs=1e-9)
                found.append(tuple(row))
                remaining.discard(tuple(row))
            assert all(below[e] >= min(batch.open_bound, cutoff) - 1e-9 for e in remaining)
    assert sorted(found) == sorted(epochs for epochs, value in below.items() if value <= cutoff)


@given(st.integers(1, 4), st.integers(0, 2**31), st.sampled_from([-1.0, 0.0, 1.0]))
def test_bounds_and_enumeration_hold_for_any_tables(modes, seed, shift):
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 6, modes)
    pair = [[random.normal(shift, 1, (a, b)) for b in sizes] for a in sizes]
    for i, j in itertools.combinations(range(modes), 2):
        pair[j][i] = pair[i][j].T
    tables = pair_tables.Tables([random.normal(0, 1, size) for size in sizes], pair, np.ones(1), np.ones(1))
    values = {e: table_value(tables, e) for e in itertools.product(*map(range, sizes))}
    for epochs, value in values.items():
        bounds = pair_tables.pair_bounds(tables)
        assert all(bound[e] <= value + 1e-9 for bound, e in zip(bounds, epochs, strict=True))
    cutoff = float(np.median(list(values.values()))) + 1e-7
    batches = pair_tables.completions(tables, lambda: cutoff)
    found = [tuple(row) for batch in batches for row in batch.choices.tolist()]
    assert sorted(found) == sorted(epochs for epochs, value in values.items() if value <= cutoff)


def test_the_enumeration_obeys_a_cutoff_that_falls(monkeypatch):
    monkeypatch.setattr(pair_tables, "CHUNK", 5)
    unary = [np.linspace(0, 1, 6)] * 3
    tables = pair_tables.Tables(unary, [[np.zeros((6, 6))] * 3] * 3, np.ones(1), np.ones(1))
    cutoff, found = [10.0], 0
    for batch in pair_tables.completions(tables, lambda: cutoff[0]):
        assert (batch.values <= cutoff[0]).all()
        found += len(batch.choices)
        if found:
            cutoff[0] = 0.0  # only the choice of all firsts reaches this, and it came first
    assert found == 1


def test_the_nodes_of_a_split_cover_it_without_overlap():
    labels = [np.array([1, 4]), np.array([0, 2, 3]), np.array([5])]
    box = checkpoint_search._Box(labels, [], [], [])
    bounds = [np.array([0.1, 0.2]), np.array([0.3, 0.5, 0.2]), np.array([0.9])]
    children = checkpoint_search._split(box, bounds, 0.25)
    assert [bound for bound, _ in children] == [0.3, 0.5, 0.25]
    choices = [choice for _, kept in children for choice in itertools.product(*(k.tolist() for k in kept))]
    assert sorted(choices) == sorted(itertools.product(*(kept.tolist() for kept in labels)))


def test_the_relaxation_reaches_its_minimum():
    probs, drifts = lifelike(3, 20, 200, noise=2.0)
    parts = [p.numpy() / 3 for p in probs]
    costs = [0.02 * d.numpy() for d in drifts]
    start = [np.full(20, 1 / 20)] * 3
    exact = [p.astype(np.float64) for p in parts]
    bounds = []
    for iterations in (0, 400):
        mixture = relax(parts, costs, start, iterations, 1e-5)
        bounds.append(linear_bounds(exact, costs, tangent(exact, mixture))[0].min())
    mean = np.sum([x / x.sum() @ p for x, p in zip(mixture, exact, strict=True)], axis=0)
    value = sum(x @ c for x, c in zip(mixture, costs, strict=True)) - np.log(mean).mean()
    assert bounds[1] <= value <= bounds[1] + 2e-5
    assert bounds[0] < bounds[1] < backtrack(probs, drifts, 0.02).value


# ---- pruning while training --------------------------------------------------------------------------


@given(problems(most_modes=1), st.integers(1, 4))
def test_pruning_follows_its_formula(problem, num_modes):
    (probs,), (drifts,), weight = problem
    flags = can_still_win(probs, drifts, num_modes, weight)
    assert flags.dtype == torch.bool
    assert flags.any()
    fewest, most = (  # a tie may fall on either side by rounding
        slow.can_still_win(probs.tolist(), drifts.tolist(), num_modes, weight, margin)
        for margin in (-1e-13, 1e-13)
    )
    assert all(low <= flag <= high for low, flag, high in zip(fewest, flags.tolist(), most, strict=True))


def test_of_equal_checkpoints_the_first_is_left():
    rows = torch.rand(3, 50, generator=torch.Generator().manual_seed(1))[[0, 1, 0, 2, 1, 0]]
    assert can_still_win(rows, torch.ones(6), 4, 1.0).tolist() == [True, True, False, True, False, False]


@given(problems(most_modes=3))
def test_pruning_every_mode_loses_neither_the_value_nor_the_choice(problem):
    probs, drifts, weight = problem
    wins = [can_still_win(p, d, len(probs), weight) for p, d in zip(probs, drifts, strict=True)]
    epochs, value = brute(probs, drifts, weight)
    assert all(win[e] for win, e in zip(wins, epochs, strict=True))
    left = [p[w] for p, w in zip(probs, wins, strict=True)], [d[w] for d, w in zip(drifts, wins, strict=True)]
    choice = backtrack(*left, weight)
    assert choice.value == pytest.approx(value, abs=1e-11)
    kept = [w.nonzero()[:, 0].tolist() for w in wins]
    assert tuple(k[e] for k, e in zip(kept, choice.epochs, strict=True)) == epochs


def pruned_after_every_epoch(probs, drifts, num_modes, weight):
    kept = []
    for epoch in range(len(probs)):
        rows = [*kept, epoch]
        wins = can_still_win(probs[rows], drifts[rows], num_modes, weight).tolist()
        quick = can_still_win(probs[rows], drifts[rows], num_modes, weight, only_last_is_new=True)
        assert quick.tolist() == wins
        kept = [row for row, win in zip(rows, wins, strict=True) if win]
    return kept


@given(problems(most_modes=1, most_checkpoints=10), st.integers(1, 3))
def test_pruning_after_every_epoch_loses_no_more_than_pruning_at_the_end(problem, num_modes):
    (probs,), (drifts,), weight = problem
    kept = pruned_after_every_epoch(probs, drifts, num_modes, weight)
    assert set(can_still_win(probs, drifts, num_modes, weight).nonzero()[:, 0].tolist()) <= set(kept)


def test_pruning_after_every_epoch_equals_pruning_at_the_end():
    probs, drifts = lifelike(1, 40, 100, noise=0.3)
    kept = pruned_after_every_epoch(probs[0], drifts[0], 2, 0.1)
    assert kept == can_still_win(probs[0], drifts[0], 2, 0.1).nonzero()[:, 0].tolist()
    assert len(kept) < 40


def test_pruning_drops_what_it_should():
    better, worse = torch.full((1, 40), 0.6), torch.full((1, 40), 0.5)
    assert can_still_win(torch.cat([worse, better]), torch.zeros(2), 3, 1.0).tolist() == [False, True]
    drifts = torch.tensor([0.0, 1.0])  # the better one drifts further
    assert can_still_win(torch.cat([worse, better]), drifts, 3, 0.1).tolist() == [True, True]
    assert can_still_win(torch.cat([worse, better]), drifts, 3, 10.0).tolist() == [True, False]
    alone = lifelike(1, 30, 100)
    assert can_still_win(alone[0][0], alone[1][0], 1, 0.02).sum() == 1  # one mode: only the best is left


def test_what_the_other_modes_bring_sharpens_pruning():
    part = np.array([[0.5, 0.1], [0.1, 0.45]])
    wide, none = np.ones(2), np.zeros(2)
    assert undominated(part, none, none, wide).tolist() == [True, True]
    sure = np.array([0.0, 9.0])  # the rest knows the second sample: only the first one counts
    assert undominated(part, none, sure, sure).tolist() == [True, False]


# ---- mistakes ----------------------------------------------------------------------------------------

GOOD, NONE = torch.full((2, 3, 4), 0.5), torch.zeros(2, 3)


def changed(tensor, value):
    copy = tensor.clone()
    copy.view(-1)[1] = value
    return copy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], 1.0), "is empty"),
        ((GOOD, NONE[:1], 1.0), "2 modes but drifts has 1"),
        ((GOOD, NONE[:, :2], 1.0), "3 rows of true_class_probs but 2 drifts"),
        ((GOOD[0], NONE[0], 1.0), r"true_class_probs\[0\] has shape"),
        (([GOOD[0], GOOD[1, :, :3]], NONE, 1.0), "has 3 samples but"),
        ((GOOD[:, :0], NONE[:, :0], 1.0), "none of them 0"),
        ((GOOD[:, :, :0], NONE, 1.0), "none of them 0"),
        ((changed(GOOD, math.nan), NONE, 1.0), "NaN"),
        ((changed(GOOD, math.inf), NONE, 1.0), "infinity"),
        ((changed(GOOD, -0.1), NONE, 1.0), "goes from -0.1"),
        ((changed(GOOD, 1.1), NONE, 1.0), "to 1.1"),
        ((GOOD, changed(NONE, math.nan), 1.0), r"drifts\[0\] contains NaN"),
        ((GOOD, changed(NONE, -1.0), 1.0), "a drift is 0 or more"),
        ((GOOD, NONE, -1.0), "weight is -1.0"),
        ((GOOD, NONE, math.inf), "weight is inf"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        backtrack(*arguments)
    assert "\n" not in str(caught.value)


def test_time_and_number_of_modes_are_checked():
    for limit in (-1.0, math.nan):
        with pytest.raises(UserError, match="time_limit"):
            backtrack(GOOD, NONE, 1.0, time_limit=limit)
    with pytest.raises(UserError, match="num_modes is 0"):
        can_still_win(GOOD[0], NONE[0], 0, 1.0)
    with pytest.raises(UserError, match="weight"):
        can_still_win(GOOD[0], NONE[0], 2, -1.0)


def test_a_probability_just_above_one_is_rounding():
    assert backtrack(changed(GOOD, 1.00001), NONE, 1.0).value == pytest.approx(
        backtrack(changed(GOOD, 1.0), NONE, 1.0).value
    )
