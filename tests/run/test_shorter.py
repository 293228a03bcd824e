"""What the first dimensions of embeddings and their PCA are measured to keep."""

import numpy as np
import pytest

from tests import reference
from tests.run.test_report_writer import LABELS, records, rows_of, write
from tfrank.common.checks import InputError
from tfrank.configs import digits
from tfrank.evaluation.ranking_results import leave_one_out
from tfrank.evaluation.report.result_files import load_metrics
from tfrank.run.evaluation_results import test_set_of as set_of
from tfrank.run.shorter import measure_shorter, shorter_dims

__all__ = ["records"]
PROTOCOLS = ("leave_one_out",)


def config_of(dims=(), matryoshka=(), **evaluation):
    config = digits.get_config()
    config.evaluation.update(dims=dims, protocols=PROTOCOLS, **evaluation)
    config.train.matryoshka = matryoshka
    return config


def test_dims_are_those_of_the_evaluation_or_of_training_below_the_whole():
    assert shorter_dims(config_of(), 8) == ()
    assert shorter_dims(config_of(dims=(2, 4)), 8) == (4, 2)
    assert shorter_dims(config_of(matryoshka=(8, 2, 4)), 8) == (4, 2)
    assert shorter_dims(config_of(matryoshka=(8, 2, 4)), 4) == (2,)


@pytest.mark.parametrize("dims", [(8,), (9, 2), (2, 4, 2)])
def test_dims_that_are_not_shorter_or_repeat_are_refused(dims):
    with pytest.raises(InputError, match=r"`config.evaluation.dims`\. Expected different numbers below 8"):
        shorter_dims(config_of(dims=dims), 8)


def test_first_dimensions_and_pca_of_training_embeddings_are_measured(records):
    test, rows, train = set_of(records, None), rows_of(1.0), rows_of(0.5)[:20]
    found = measure_shorter(config_of(dims=(3,)), rows, test, lambda: train)
    assert list(found) == ["first 3 dimensions", "PCA to 3 dimensions"]
    centered = train.astype(np.float64) - train.mean(axis=0)
    directions = np.linalg.svd(centered, full_matrices=False)[2][:3]
    by_hand = [rows[:, :3], (rows - train.mean(axis=0)) @ directions.T]
    for one, cut in zip(found.values(), by_hand):
        expected = leave_one_out(reference.unit(cut).astype("float32"), LABELS, [1])
        for metric in ("recall_at_1", "map"):
            np.testing.assert_allclose(one.main.metrics[metric], expected[metric], rtol=1e-5)


def test_without_training_images_there_is_no_pca_and_with_whitening_nothing(records):
    test, rows = set_of(records, None), rows_of(1.0)
    assert list(measure_shorter(config_of(dims=(3,)), rows, test, None)) == ["first 3 dimensions"]
    assert measure_shorter(config_of(dims=(3,), whitening=0.5), rows, test, None) == {}


def test_the_report_sets_them_and_other_evaluations_beside_the_whole(records, tmp_path, monkeypatch):
    test = set_of(records, None)
    write(tmp_path / "other", test, records, quality=0.5, protocols=PROTOCOLS)
    shorter = measure_shorter(config_of(dims=(3,)), rows_of(1.0), test, lambda: rows_of(0.5)[:20])
    other = str(tmp_path / "other")
    options = {"more": {"shorter": shorter}, "beside": (other, "trained"), "protocols": PROTOCOLS}
    # A folder may be called like a model.
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "trained", test, records, quality=0.5, protocols=PROTOCOLS)
    *_, page = write(tmp_path / "this", test, records, **options)
    models = load_metrics(str(tmp_path / "this"))["models"]["leave_one_out"]
    for metric in ("recall_at_1", "map"):
        expected = ["first 3 dimensions", "PCA to 3 dimensions", other, "./trained", "trained"]
        assert list(models[metric]) == expected
        for name, one in shorter.items():
            assert models[metric][name][0] == pytest.approx(one.main.metrics[metric])
    assert "PCA to 3 dimensions" in page
