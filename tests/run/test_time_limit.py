"""A run is as long as there is time for."""

import dataclasses
import functools
import time

import pytest

from tests.data import image_records, write_records
from tfrank.configs import own_images
from tfrank.run import settings, time_limit
from tfrank.run.datasets import Data
from tfrank.run.time_limit import Costs, Length, fit_into, within_minutes
from tfrank.run.workdir import as_begun, check_config_of, save_config


def seconds(length):
    return 100 + 10 * length.views + 0.1 * length.steps


@pytest.mark.parametrize(
    ("limit", "is_open", "expected"),
    [
        (190, (True, True), Length(5, 400)),
        (189, (True, True), Length(4, 400)),
        (160, (True, True), Length(3, 300)),
        (125, (True, True), Length(1, 150)),
        (119, (True, True), Length(1, 100)),
        (160, (True, False), Length(2, 400)),
        (170, (False, True), Length(5, 200)),
        (0, (False, True), Length(5, 100)),
        (0, (True, False), Length(1, 400)),
    ],
)
def test_the_length_is_the_longest_that_fits_and_else_the_shortest(limit, is_open, expected):
    views, steps = is_open
    assert fit_into(limit, seconds, Length(5, 400), views_open=views, steps_open=steps) == expected


@pytest.fixture
def data(tmp_path):
    """Eight training and eight test images of two classes."""
    index = write_records(image_records([0, 1] * 4), str(tmp_path), "train")
    return Data(index, None, index, None, index.label)


def limited(config, data, monkeypatch, costs):
    """The config of a run with these costs on this machine."""
    monkeypatch.setattr(time_limit, "measured", lambda fitted, data: costs)
    limit = functools.partial(within_minutes, config, data=data, started=time.monotonic())
    return settings.fitted(config, data.train.label, limit=limit)


def test_a_run_says_what_there_is_time_for_and_when_all_would_be_done(data, monkeypatch, capsys):
    config = settings.resolved(own_images.get_config())
    whole = limited(config, data, monkeypatch, Costs(0, 0, 0)).train
    assert (whole.feature_views, whole.steps) == (5, 100)
    assert "minutes" not in capsys.readouterr().out
    # 30 s, and 8 x 15 s a view.
    short = limited(config, data, monkeypatch, Costs(0, 15, 0)).train
    assert (short.feature_views, short.steps) == (4, 100)
    assert "In 10 minutes there is time for 4 of 5 views of each training image." in (
        said := capsys.readouterr().out
    )
    assert "--config.train.minutes=11 has time for all." in said
    shortest = limited(config, data, monkeypatch, Costs(100, 0, 0)).train
    assert (shortest.feature_views, shortest.steps) == (1, 100)
    assert "Note: 10 minutes do not suffice. The run takes about 28 minutes." in capsys.readouterr().out


def test_a_length_that_is_given_is_kept(data, monkeypatch):
    config = settings.resolved(own_images.get_config())
    config.train.update(feature_views=3, steps=7)
    train = limited(config, data, monkeypatch, Costs(1000, 1000, 1000)).train
    assert (train.feature_views, train.steps) == (3, 7)


def test_a_resumed_run_has_the_length_that_was_chosen(tmp_path):
    config = settings.resolved(own_images.get_config())
    check_config_of(str(tmp_path), config)
    assert as_begun(str(tmp_path), config).train.steps == -1
    chosen = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=70, feature_views=2))
    save_config(str(tmp_path), chosen, 70)
    begun = as_begun(str(tmp_path), config).train
    assert (begun.feature_views, begun.steps) == (2, 70)
