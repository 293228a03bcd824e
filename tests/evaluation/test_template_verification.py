"""Templates of images and pairs of them against plain loops, by hand, and what cannot be compared."""

import tracemalloc

import numpy as np
import pytest

from tests import reference
from tests.evaluation import ROWS, every_rows, on_circle
from tests.reference import metrics as oracle
from tfrank.common.checks import InputError
from tfrank.evaluation import template_verification as module
from tfrank.evaluation.protocols import PROTOCOLS, TEMPLATE_PAIRS, TestSet, tasks_of, usual_protocol
from tfrank.evaluation.template_verification import TemplatePairs, template_embeddings, template_verification
from tfrank.evaluation.verification import note

RNG = np.random.default_rng(3)
# 60 images of 14 templates with numbers that leave gaps, mixed; a media is in several templates.
NAMES = np.sort(RNG.permutation(1000)[:14])
TEMPLATE = np.int32(RNG.permutation(np.append(NAMES, RNG.choice(NAMES, 46))))
MEDIA = np.int32(RNG.integers(1, 9, 60))


def pairs_of(count=400):
    chosen = RNG.choice(NAMES, (count, 2))
    return np.int32(np.column_stack([chosen, RNG.random(count) < 0.3]))


PAIRS = pairs_of()


@every_rows
def test_a_template_is_the_mean_of_its_media_in_plain_loops(rows):
    found = template_embeddings(rows, TemplatePairs(TEMPLATE, MEDIA, PAIRS))
    wanted = [reference.template_embedding(rows, TEMPLATE, MEDIA, name) for name in NAMES]
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert found.dtype == np.float32


def test_a_video_of_many_frames_weighs_as_much_as_a_photo_and_means_of_media_keep_their_length():
    """A photo at 0 degrees; a video at 90, three times, and at -90: half as long, and so half the weight."""
    rows = on_circle(90, 0, 90, 90, -90)
    found = template_embeddings(rows, TemplatePairs(np.full(5, 7), np.array([2, 1, 2, 2, 2]), None))
    np.testing.assert_allclose(found, [np.array([1, 0.5]) / np.hypot(1, 0.5)], atol=1e-6)


def test_the_images_of_a_media_in_two_templates_are_averaged_in_each():
    rows = on_circle(0, 90, 40)
    found = template_embeddings(rows, TemplatePairs(np.array([1, 2, 2]), np.array([5, 5, 5]), None))
    np.testing.assert_allclose(found, on_circle(0, 65), atol=1e-6)


def test_images_that_cancel_out_make_a_template_of_zeros():
    found = template_embeddings(on_circle(0, 180), TemplatePairs(np.array([1, 1]), np.array([1, 2]), None))
    assert found.tolist() == [[0, 0]]


@every_rows
@pytest.mark.parametrize("block_pairs", [module.BLOCK_PAIRS, 7])
def test_listed_pairs_are_verified_as_the_plain_loops_do(monkeypatch, tmp_path, rows, block_pairs):
    monkeypatch.setattr(module, "BLOCK_PAIRS", block_pairs)
    np.save(tmp_path / "pairs.npy", PAIRS)
    mapped = np.load(tmp_path / "pairs.npy", mmap_mode="r")
    embedded = {n: np.float32(reference.template_embedding(rows, TEMPLATE, MEDIA, n)) for n in NAMES}
    similarities = [float(np.vecdot(embedded[a], embedded[b])) for a, b, _ in PAIRS.tolist()]
    # What the plain loops round in another way is no other tie.
    similarities = np.round(similarities, 6)
    positives, negatives = similarities[PAIRS[:, 2] == 1], similarities[PAIRS[:, 2] == 0]
    monkeypatch.setattr(np, "vecdot", lambda a, b, dot=np.vecdot: np.round(dot(a, b), 6).astype(np.float64))
    fars = {far: int(round(far * len(negatives), 6)) for far in (0.5, 0.1, 0.01)}
    found = template_verification(rows, TemplatePairs(TEMPLATE, MEDIA, mapped), fars=tuple(fars))
    assert found == {
        "roc_auc": pytest.approx(oracle.roc_auc(positives, negatives)),
        **{f"tar_at_far_{far:g}": oracle.tar_at_far(positives, negatives, n) for far, n in fars.items()},
        "positive_pairs": len(positives),
        "negative_pairs": len(negatives),
        "templates": 14,
    }


def test_template_verification_by_hand():
    """Of one person: 10 and 50 degrees apart. Of two: 30, 60, 90 and 80."""
    rows = on_circle(0, 10, 60, 90)
    pairs = np.array([[1, 2, 1], [2, 3, 1], [1, 3, 0], [3, 4, 0], [1, 4, 0], [4, 2, 0]])
    templates = TemplatePairs(np.arange(1, 5), np.array([9, 9, 8, 8]), pairs)
    found = template_verification(rows, templates, fars=(0.25, 0.5, 0.1))
    assert found == {
        # 10 is above all four, 50 above 60, 80 and 90.
        "roc_auc": pytest.approx(7 / 8),
        # Pair 3 4, at 30 degrees, is accepted; the next is at 60.
        **{"tar_at_far_0.25": 1.0, "tar_at_far_0.5": 1.0},
        **{"positive_pairs": 2, "negative_pairs": 4, "templates": 4},
    }
    assert note(found, (0.25, 0.5, 0.1)) == "FAR 0.1 left out: 4 negative pairs are too few for such a rate."


def test_the_rates_are_those_of_the_tables_of_ijb_c():
    """A million pairs of two persons, one of them as near as most of one person: it is accepted at 1e-6."""
    pairs = np.tile(np.int32([1, 2, 0]), [10**6 + 10, 1])
    pairs[:10] = [[1, 3, 1]] * 9 + [[2, 3, 1]]
    pairs[10] = [3, 4, 0]
    rows = on_circle(0, 90, 10, 12)
    found = template_verification(rows, TemplatePairs(np.arange(1, 5), np.ones(4, int), pairs))
    assert {name: value for name, value in found.items() if name.startswith("tar")} == {
        **{f"tar_at_far_{far}": 1.0 for far in ("0.1", "0.01", "0.001", "0.0001", "1e-05", "1e-06")},
    }
    assert note(found, module.TEMPLATE_FARS) == ""


def test_memory_does_not_grow_with_the_pairs_beyond_their_similarities(tmp_path):
    np.save(tmp_path / "pairs.npy", np.tile(PAIRS, [1000, 1]))
    mapped = np.load(tmp_path / "pairs.npy", mmap_mode="r")
    tracemalloc.start()
    template_verification(ROWS["distinct"], TemplatePairs(TEMPLATE, MEDIA, mapped))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # 24 bytes a pair for the check of its templates, which is over before there are similarities.
    assert peak < 40 * len(mapped)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([[1, 2, 1], [1, 5, 0], [6, 5, 0]], r"^The pairs name template 5, but .* \(2 such templates\)"),
        (
            [[1, 2, 1], [1, 2, 1]],
            "pairs of one person and pairs of two. 2 of 2 pairs of templates are of one",
        ),
        ([[1, 2, 0]], "0 of 1 pairs of templates are of one person"),
    ],
)
def test_pairs_that_cannot_be_compared_are_refused_in_one_line(pairs, message):
    templates = TemplatePairs(np.array([1, 2]), np.array([1, 1]), np.int32(pairs))
    with pytest.raises(InputError, match=message) as error:
        template_verification(on_circle(0, 90), templates)
    assert "\n" not in str(error.value)


def test_a_test_set_of_templates_is_measured_by_them_and_has_no_splits():
    nothing = np.array([""] * 60)
    plain = TestSet(np.full(60, -1), np.arange(60), nothing, np.full(60, -1))
    assert TEMPLATE_PAIRS in PROTOCOLS and usual_protocol(plain) == "leave_one_out"
    test = TestSet(
        *(plain.labels, plain.ids, nothing, plain.group), templates=TemplatePairs(TEMPLATE, MEDIA, PAIRS)
    )
    assert usual_protocol(test) == TEMPLATE_PAIRS
    with pytest.raises(InputError, match=r"`protocol`\. Expected one of"):
        tasks_of(test, TEMPLATE_PAIRS)
