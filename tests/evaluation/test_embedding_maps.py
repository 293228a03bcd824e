"""Maps between the embeddings of two models: what is learnt, how it is chosen, and what a file may hold."""

import numpy as np
import pytest

from tfrank.common.checks import InputError
from tfrank.evaluation import embedding_maps
from tfrank.evaluation.array_checks import unit_rows
from tfrank.evaluation.embedding_maps import EmbeddingMap, Penalty, learn_map, load_map, save_map

DRAW = np.random.default_rng(0)
OLD = unit_rows(DRAW.normal(0.3, 1, [400, 12]))[0]
NEW = unit_rows(OLD @ DRAW.normal(size=[12, 7]) + 0.2 * DRAW.normal(size=[400, 7]))[0]


def by_loops(old, new, strength, target):
    """The linear map, by gradient descent on its definition."""
    mean, offset = old.mean(axis=0), new.mean(axis=0)
    variance = np.mean([np.var(old[:, place]) for place in range(old.shape[1])])
    linear = np.zeros([old.shape[1], new.shape[1]])
    for _ in range(20_000):
        slope = 2 * strength * variance * (linear - target)
        slope += 2 * (old - mean).T @ ((old - mean) @ linear - (new - offset)) / len(old)
        linear -= slope
    return linear


@pytest.mark.parametrize("towards", ["zero", "turn"])
def test_the_linear_map_minimises_what_it_says(towards):
    target = np.zeros([12, 7])
    if towards == "turn":
        target = learn_map(OLD, NEW, penalties=[Penalty("turn", np.inf)]).map.linear
    found = learn_map(OLD, NEW, penalties=[Penalty(towards, 0.5)]).map
    np.testing.assert_allclose(
        found.linear, by_loops(np.float64(OLD), np.float64(NEW), 0.5, target), atol=1e-5
    )


def test_an_infinite_pull_gives_a_turn_with_a_scale():
    linear = learn_map(OLD, NEW, penalties=[Penalty("turn", np.inf)]).map.linear
    product = linear.T @ linear
    np.testing.assert_allclose(product, product[0, 0] * np.eye(7), atol=1e-5)
    # No other of the same kind is nearer.
    centred, wanted = OLD - OLD.mean(axis=0), NEW - NEW.mean(axis=0)
    least = np.sum((centred @ linear - wanted) ** 2)
    for _ in range(20):
        other = np.linalg.qr(linear + 0.05 * DRAW.normal(size=linear.shape))[0]
        other *= np.sign(np.sum(other * linear, axis=0)) * product[0, 0] ** 0.5
        assert np.sum((centred @ other - wanted) ** 2) > least


def test_the_penalty_serves_images_that_the_map_was_not_learnt_on():
    noisy = unit_rows(NEW[:60] + DRAW.normal(size=[60, 7]))[0]
    learnt = learn_map(OLD[:60], noisy)
    rest = np.delete(np.arange(60), learnt.held_out)
    assert len(learnt.held_out) == 12
    nearness = {}
    for penalty in embedding_maps.PENALTIES:
        (one,) = embedding_maps._linear_maps(OLD[rest], noisy[rest], [penalty])
        nearness[penalty] = np.mean(np.sum(one(OLD[learnt.held_out]) * noisy[learnt.held_out], axis=1))
    assert learnt.penalty == max(nearness, key=nearness.get)
    assert np.mean(np.sum(learnt.mapped * noisy[learnt.held_out], axis=1)) == pytest.approx(
        nearness[learnt.penalty], abs=1e-6
    )


def test_an_mlp_learns_what_no_linear_map_can_and_is_left_out_where_it_does_not_help():
    bent = unit_rows(np.abs(OLD[:, :6]) - 0.2)[0]
    linear, with_mlp = learn_map(OLD, bent), learn_map(OLD, bent, hidden=64)
    near = [np.mean(np.sum(one.mapped * bent[one.held_out], axis=1)) for one in (linear, with_mlp)]
    assert near[1] > near[0] + 0.02
    random = unit_rows(DRAW.normal(size=[60, 6]))[0]
    left_out = learn_map(OLD[:60], random, hidden=64)
    near = np.mean(np.sum(left_out.mapped * random[left_out.held_out], axis=1))
    alone = learn_map(OLD[:60], random)
    assert near >= np.mean(np.sum(alone.mapped * random[alone.held_out], axis=1)) - 1e-6


def test_a_map_in_a_file_maps_as_before_to_unit_norm(tmp_path):
    learnt = learn_map(OLD, NEW, hidden=8).map._replace(models=np.array(["a", "b"]))
    save_map(str(tmp_path / "map"), learnt)
    found = load_map(str(tmp_path / "map"))
    np.testing.assert_array_equal(found(OLD), learnt(OLD))
    assert found.models.tolist() == ["a", "b"]
    np.testing.assert_allclose(np.linalg.norm(found(3 * OLD), axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(found(3 * OLD), found(OLD), atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"mean": np.zeros(3, np.float32)},
        {"linear": np.full([12, 7], np.nan, np.float32)},
        {"offset": np.zeros(7)},
        {"bias": np.zeros(2, np.float32)},
        {"models": np.array([1, 2])},
        {"models": np.array(["a"])},
        {"mean": np.array(["a"] * 12)},
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, change):
    arrays = learn_map(OLD, NEW).map._replace(**change)
    path = str(tmp_path / "map.npz")
    np.savez(path, **arrays._asdict())
    with pytest.raises(InputError, match="is no map, or is damaged") as caught:
        load_map(path)
    assert "\n" not in str(caught.value)


def test_bad_arguments_are_named():
    for arguments, expected in (
        ((OLD[:40], NEW[:40]), "at least 50 images"),
        ((OLD, NEW[:-1]), "400 images, and the new one 399"),
        ((OLD.astype(int), NEW), "`old`. Expected"),
        ((OLD, np.full_like(NEW, np.nan)), "not finite"),
        ((np.repeat(OLD[:1], 400, axis=0), NEW), "embeddings of the old model to learn a map from are equal"),
        ((np.zeros_like(OLD), NEW), "embeddings of the old model to learn a map from are equal"),
    ):
        with pytest.raises(InputError, match=expected):
            learn_map(*arguments)
    with pytest.raises(InputError, match=r"\[rows, 12\]"):
        learn_map(OLD, NEW).map(NEW)
    assert isinstance(learn_map(OLD, NEW).map, EmbeddingMap)
