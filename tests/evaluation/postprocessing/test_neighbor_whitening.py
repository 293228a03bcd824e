"""Whitening within neighbours against a plain loop, and what it does to embeddings of kinds that spread."""

import numpy as np
import pytest

from tests import reference
from tfrank.common.checks import InputError
from tfrank.evaluation import evaluate
from tfrank.evaluation.postprocessing import neighbor_whitening
from tfrank.evaluation.postprocessing.neighbor_whitening import learn_neighbor_whitening, mutual_neighbors
from tfrank.evaluation.postprocessing.whitening import whiten

RNG = np.random.default_rng(0)
ROWS = reference.unit(0.2 + RNG.normal(size=[40, 6]) * np.linspace(0.1, 1, 6))


def pairs_by_loops(rows, neighbors):
    nearest = []
    for i, row in enumerate(rows):
        others = sorted((j for j in range(len(rows)) if j != i), key=lambda j: -float(row @ rows[j]))
        nearest.append(others[:neighbors])
    return [
        (i, j, 1 + max(nearest[i].index(j), nearest[j].index(i)))
        for i in range(len(rows))
        for j in range(i + 1, len(rows))
        if j in nearest[i] and i in nearest[j]
    ]


@pytest.mark.parametrize("block_rows", [neighbor_whitening.BLOCK_ROWS, 7])
def test_it_is_that_of_plain_loops_in_any_blocks(monkeypatch, block_rows):
    monkeypatch.setattr(neighbor_whitening, "BLOCK_ROWS", block_rows)
    x = ROWS - ROWS.mean(axis=0)
    pairs = pairs_by_loops(reference.unit(x), 3)
    length = {(i, j): np.linalg.norm(ROWS[i] - ROWS[j]) for i, j, _ in pairs}
    typical = np.median([*length.values()])
    weight = {(i, j): min(1, 2 * length[i, j] / typical) ** 2 / rank**2 for i, j, rank in pairs}
    assert min(length.values()) < typical / 2  # So that some pairs are near copies.
    whole, within = sum(weight.values()), np.zeros([6, 6])
    for (i, j), c in weight.items():
        difference = (ROWS[i] - ROWS[j]) / length[i, j]
        within += c / whole * np.outer(difference, difference)
    # Of 40 images a is 0.9.
    variances, directions = np.linalg.eigh(0.1 * within + 0.9 / 6 * np.eye(6))
    whitening = directions / np.sqrt(variances)
    z = x @ whitening
    metric = np.zeros([6, 6])
    for variance, direction in zip(*map(np.transpose, np.linalg.eigh(np.cov(z.T, bias=True)))):
        along = z @ direction
        noise = sum(c / whole * (along[i] - along[j]) ** 2 / 2 for (i, j), c in weight.items())
        column = whitening @ direction * max(0.2, 1 - noise / variance)
        metric += np.outer(column, column)
    learnt = learn_neighbor_whitening(ROWS, neighbors=3, shrinkage=0.3)
    # A metric, as projections differ by signs.
    np.testing.assert_allclose(learnt.projection @ learnt.projection.T, metric, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(learnt.mean, ROWS.mean(axis=0), atol=1e-6)
    found = list(zip(*map(np.ndarray.tolist, mutual_neighbors(reference.unit(x).astype(np.float32), 3))))
    assert sorted(found) == pairs


def test_kinds_that_spread_in_some_directions_are_found_better_without_labels():
    """Of 30 kinds, all of which spread in the same ten directions."""
    kinds = np.repeat(np.arange(30), 10)
    rows = RNG.normal(size=[30, 64])[kinds] * 0.5
    rows[:, :10] += 1.5 * RNG.normal(size=[300, 10])
    rows = reference.unit(rows)
    after = whiten(rows, learn_neighbor_whitening(rows))
    before, found = (evaluate(each.astype(np.float32), kinds).metrics["map"] for each in (rows, after))
    assert found > before + 0.1


def test_directions_in_which_neighbours_differ_as_much_as_all_count_for_little():
    """Of 30 kinds that differ in 20 directions of 64."""
    kinds = np.repeat(np.arange(30), 10)
    rows = 0.1 * RNG.normal(size=[300, 64])
    rows[:, :20] += RNG.normal(size=[30, 20])[kinds]
    scales = np.linalg.norm(learn_neighbor_whitening(reference.unit(rows)).projection, axis=1)
    assert scales[20:].max() < 0.5 * scales[:20].min()


def test_near_copies_do_not_drown_what_others_tell():
    """Each row has a copy that differs by a trifle, in another direction than kinds spread."""
    kinds = np.repeat(np.arange(30), 10)
    rows = RNG.normal(size=[30, 64])[kinds] * 0.5
    rows[:, :10] += 1.5 * RNG.normal(size=[300, 10])
    copies = np.concatenate([rows, rows + 1e-3 * RNG.normal(size=rows.shape)])
    alone, both = (learn_neighbor_whitening(reference.unit(each)) for each in (rows, copies))
    found = [evaluate(whiten(reference.unit(rows), one), kinds).metrics["map"] for one in (alone, both)]
    assert found[1] > found[0] - 0.1


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        (ROWS, {"neighbors": 0}, "neighbors"),
        (ROWS, {"shrinkage": 0}, "shrinkage"),
        (np.ones([9, 4]), {}, "No two embeddings differ"),
        (np.ones([1, 4]), {}, "No two embeddings differ"),
        (np.full([9, 4], np.nan), {}, "finite"),
    ],
)
def test_bad_input_is_named(rows, options, words):
    with pytest.raises(InputError, match=words):
        learn_neighbor_whitening(rows, **options)
