"""Distances within and between classes against all pairs, and NMI."""

import math
import os

import numpy as np
import pytest

from tests.command_lines import run_alone
from tests.evaluation import LABELS, ROWS, every_rows
from tests.reference import metrics as oracle
from tfrank.common.checks import InputError
from tfrank.evaluation import clusters
from tfrank.evaluation.clusters import class_distances, cluster_agreement


def nmi(*inputs, **options):
    return cluster_agreement(*inputs, **options)["nmi"]


CORNER = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], np.float32)


@every_rows
@pytest.mark.parametrize("block_rows", [clusters.BLOCK_ROWS, 7, 1])
def test_distances_are_those_of_all_pairs_in_any_blocks(monkeypatch, rows, block_rows):
    monkeypatch.setattr(clusters, "BLOCK_ROWS", block_rows)
    intra, inter = oracle.class_distances(rows, LABELS)
    wanted = {"dists_intra": pytest.approx(intra, abs=1e-12), "dists_inter": pytest.approx(inter, abs=1e-12)}
    assert class_distances(rows, LABELS) == wanted
    # Cosines do not ask for unit norm.
    lengths = np.linspace(0.5, 20, 60)[:, None]
    intra, inter = oracle.class_distances(rows * lengths, LABELS)
    assert class_distances(rows * lengths, LABELS)["dists_intra"] == pytest.approx(intra)


def test_distances_by_hand():
    """Class 5 is east, north and west, its mean north; class 2 east alone; class 9 south twice."""
    rows = CORNER[[0, 1, 2, 0, 3, 3]]
    got = class_distances(rows, np.array([5, 5, 5, 2, 9, 9]))
    assert got == {
        "dists_intra": pytest.approx((4 / 3 + 0) / 2),
        "dists_inter": pytest.approx((1 + 2 + 1) / 3),
    }


def test_distances_that_no_pair_has_are_left_out():
    assert class_distances(CORNER, np.arange(4)) == {"dists_inter": pytest.approx(8 / 6)}
    assert class_distances(CORNER, np.zeros(4, int)) == {"dists_intra": pytest.approx(8 / 6)}
    assert class_distances(CORNER[:1], np.array([3])) == {}


def test_rows_and_means_of_zeros_have_distance_one_to_everything():
    """Class 0 has east and next to nothing; class 1 west and nearly east, with a sum next to nothing."""
    rows = np.array([[1, 0], [-1e-8, 0], [-1, 0], [1, 1e-8]], np.float32)
    got = class_distances(rows, np.array([0, 0, 1, 1]))
    assert got == {"dists_intra": pytest.approx((1 + 2) / 2), "dists_inter": pytest.approx(1)}


def test_distances_of_a_memory_map_are_those_of_the_array(tmp_path, monkeypatch):
    monkeypatch.setattr(clusters, "BLOCK_ROWS", 16)
    np.save(tmp_path / "rows.npy", ROWS["distinct"])
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert class_distances(mapped, LABELS) == class_distances(ROWS["distinct"], LABELS)


def test_nmi_by_hand():
    """Two classes of three images; the third image stands with the other class."""
    rows = np.array([[1, 0], [1, 0.01], [0, 1], [0.01, 1], [0.02, 1], [0, 1]], np.float32)
    labels, found = [0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1]
    information = 2 / 6 * math.log(2) + 1 / 6 * math.log(1 / 2) + 3 / 6 * math.log(3 / 2)
    third = -1 / 3 * math.log(1 / 3) - 2 / 3 * math.log(2 / 3)
    wanted = 2 * information / (math.log(2) + third)
    # 2/6 / (1/2 1/3) = 2, 1/6 / (1/2 2/3) = 1/2, 3/6 / (1/2 2/3) = 3/2.
    assert oracle.mutual_information(labels, found) == pytest.approx(wanted)
    assert nmi(rows, np.array(labels)) == pytest.approx(wanted)
    adjusted = cluster_agreement(rows, np.array(labels))["ami"]
    assert adjusted == pytest.approx(oracle.adjusted_mutual_information(labels, found))
    assert adjusted < wanted


def test_nmi_is_that_of_the_clusters_of_k_means():
    """Far directions, of which k-means finds each: NMI tells how much labels that mix them know of them."""
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(3), [10, 20, 30])
    rows = np.eye(3, 8)[truth] + rng.normal(scale=0.02, size=(60, 8))
    # From three images of two directions k-means ends elsewhere; some seed starts in all three.
    assert pytest.approx(1) in [nmi(rows, truth - 2**40, seed=seed) for seed in range(8)]
    mixed = np.where(rng.random(60) < 0.3, rng.integers(3, size=60), truth)
    wanted = oracle.mutual_information(mixed.tolist(), truth.tolist())
    assert 0 < wanted < 1
    assert pytest.approx(wanted) in [nmi(rows, mixed, seed=seed) for seed in range(8)]


def test_nmi_is_one_number_for_one_seed():
    numbers = [nmi(ROWS["distinct"], LABELS, seed=seed) for seed in (3, 3, 4)]
    assert numbers[0] == numbers[1] != numbers[2]


@pytest.mark.filterwarnings("error")
def test_nmi_of_one_class_of_classes_of_one_image_and_of_images_all_alike():
    rows = ROWS["distinct"]
    assert nmi(rows, np.zeros(60, int)) == 1
    assert nmi(rows, np.arange(60)) == pytest.approx(1)
    assert nmi(np.ones([60, 1], np.float32), LABELS) == 0
    assert nmi(np.ones([60, 1], np.float32), np.arange(60)) == 0


def test_iterations_move_the_clusters():
    once, often = ([nmi(ROWS["distinct"], LABELS, seed=s, iterations=i) for s in range(4)] for i in (1, 20))
    assert once != often


@pytest.mark.parametrize("argument", [{"iterations": 0}, {"seed": -1}])
def test_bad_arguments_are_named(argument):
    with pytest.raises(InputError, match=f"`{next(iter(argument))}`. Expected an integer of at least"):
        nmi(ROWS["distinct"], LABELS, **argument)


@pytest.mark.parametrize(
    "code",
    [
        "clusters.cluster_agreement(rows, np.arange(40) % 3)",
        "curves.map_2d(rows)",
        "from tfrank.search import class_review; class_review.double_classes(rows, np.arange(40) % 3)",
    ],
)
def test_nothing_is_printed_where_cores_cannot_be_counted(tmp_path, code):
    """As in a container that has neither lscpu nor the number in /proc/cpuinfo."""
    imports = "import numpy as np; from tfrank.evaluation import clusters"
    more = "from tfrank.evaluation.report import curves"
    rows = "rows = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)"
    # scikit-learn does not count where the number of threads is set.
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = run_alone("-c", f"{imports}; {more}; {rows}; {code}", env={**environment, "PATH": str(tmp_path)})
    assert done == (0, "", "")
