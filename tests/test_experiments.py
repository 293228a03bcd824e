"""Runs of experiments are kept and not repeated, and their intervals hold what they should."""

import numpy as np
import pytest
from scipy import stats

from experiments import runs
from experiments.intervals import over_seeds, over_seeds_and_classes

RUNS = [runs.Run("omniglot.py:pnp", {"train.steps": steps}, seed) for steps in (1, 2) for seed in (0, 1)]


@pytest.fixture
def trained(monkeypatch):
    """Takes the place of training; the keys of the runs that it was called for."""
    keys = []

    def train(run, fields, threads):
        keys.append(run.key)
        config, changes, seed = run.key
        metrics = dict.fromkeys(runs.METRICS, 0.25)
        classes = {"recall_at_1_of_classes": "0.5 1.0", "ap_of_classes": f"0.25 {run.seed}"}
        about = {"seconds": 1.5, "commit": "abc", "date": "2026-01-01"}
        return {"config": config, "changes": changes, "seed": seed, **metrics, **classes, **about}

    monkeypatch.setattr(runs, "_train", train)
    return keys


def test_a_run_in_the_file_is_not_run_again(trained, tmp_path):
    path = str(tmp_path / "runs.csv")
    runs.run_all(RUNS[:2], path, {})
    results = runs.run_all([*RUNS, RUNS[0]], path, {}, jobs=2)
    assert sorted(trained) == sorted(run.key for run in RUNS)
    assert [result.ap.tolist() for result in results] == [[0.25, seed] for seed in (0, 1, 0, 1, 0)]
    assert results[0].metrics["map"] == 0.25 and results[0].seconds == 1.5


@pytest.mark.slow
def test_a_run_that_fails_ends_with_its_message_and_keeps_the_others(monkeypatch, trained, tmp_path):
    path = str(tmp_path / "runs.csv")
    runs.run_all(RUNS[:1], path, {})
    monkeypatch.undo()
    with pytest.raises(SystemExit, match=r"(?s)A run failed: .*The source does not exist: /nowhere"):
        runs.run_all([RUNS[0], RUNS[3]], path, {"data.source": "/nowhere"})
    assert list(runs.read(path)) == [RUNS[0].key]


def test_the_interval_is_students_where_only_seeds_or_only_classes_differ():
    values = np.random.default_rng(0).normal(size=40)
    wanted = stats.t.interval(0.95, 39, np.mean(values), stats.sem(values))
    for grid in (np.tile(values[:, None], 3), np.tile(values, (3, 1))):
        found = over_seeds_and_classes(grid)
        np.testing.assert_allclose(found[0], np.mean(values))
        np.testing.assert_allclose(found[1:], wanted, atol=0.05)
    np.testing.assert_allclose(over_seeds(values)[1:], wanted)


def test_one_seed_claims_nothing():
    assert not over_seeds_and_classes(np.ones([1, 5])).significant and not over_seeds(np.ones(1)).significant
