"""An index that learns from its labels: what it says, what it keeps, and the way back."""

import math
import os
import shutil

import numpy as np
import pytest

from tests.improve import write_groups, write_index
from tests.search import write_model
from tfrank.common.checks import InputError
from tfrank.evaluation.report.bootstrap import BootstrapInterval
from tfrank.export.saved_model import class_fingerprint
from tfrank.improve import improvement
from tfrank.improve.groups import read_groups
from tfrank.improve.training import Compared, compare, parts_of
from tfrank.search import labels
from tfrank.search.index import open_index
from tfrank.search.index_folder import IndexFolder
from tfrank.search.learnt import GROUPS
from tfrank.search.originals import originals


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Photos of six groups, and an index of them by random weights, which sees little."""
    place = tmp_path_factory.mktemp("made")
    group_of = write_groups(place / "photos", 6)
    model = write_model(place / "model")
    return place, group_of, write_index(place / "index", model, group_of, place / "photos")


@pytest.fixture
def copy(made, tmp_path):
    """The same, to be changed."""
    folder = str(tmp_path / "index")
    shutil.copytree(made[2], folder)
    return folder


def contents(folder):
    """The files of an index and what they hold."""
    return {
        os.path.join(place, name): open(os.path.join(place, name), "rb").read()
        for place, _, names in os.walk(folder)
        for name in names
        if name not in (".lock",) and improvement.WORK not in os.path.relpath(place, folder)
    }


def test_a_better_model_is_used_the_way_back_is_at_once_and_nothing_new_is_not_learnt(copy, capsys):
    before = open_index(copy)
    improvement.improve(copy)
    said = capsys.readouterr().out
    assert "Measured on 6 groups, each held out once: Recall@1 " in said and "is better and is used" in said
    after = open_index(copy)
    assert after.version.number == 2 and after.version.before == before.version.model
    assert sorted(after.ids) == sorted(before.ids) and after.labels.count("group 0") == 4
    assert not os.path.exists(os.path.join(copy, improvement.WORK))
    # Near copies are told by roots of the network's features, which are of unit norm and not negative.
    roots = originals(after.files.path("models", after.version.model))(after.embeddings)
    np.testing.assert_allclose(np.linalg.norm(roots, axis=1), 1, atol=1e-5)
    assert roots.min() > -1e-4 > after.embeddings.min()
    # What the server embeds is what the index has.
    path = after.metadata("3-1.png")["path"]
    row = after.embeddings[after.ids.tolist().index("3-1.png")]
    np.testing.assert_allclose(after.embed([path])[0], row, atol=1e-4)
    with pytest.raises(InputError, match="has learnt these groups already"):
        improvement.improve(copy)
    # It was trained on the photos of a group, whatever the group is called by now.
    said = labels.said(copy)
    wrens = {key: "wren" for key, label in said.labels.items() if label == "group 0"}
    labels.change(copy, wrens, said.version)
    assert class_fingerprint("wren") in open_index(copy)._trained()
    labels.undo(copy, labels.said(copy).version)
    improvement.back(copy)
    assert "24 photos, 0 embedded now" in capsys.readouterr().out
    again = open_index(copy)
    assert again.version.model == before.version.model and again.version.before == after.version.model
    place = [again.ids.tolist().index(key) for key in before.ids]
    np.testing.assert_array_equal(again.embeddings[place], before.embeddings)


def test_a_model_that_is_not_better_changes_nothing(copy, capsys, monkeypatch):
    monkeypatch.setattr(improvement, "is_better", lambda compared: False)
    before = contents(copy)
    improvement.improve(copy)
    assert "is not better, so the old one stays." in capsys.readouterr().out
    assert contents(copy) == before


def test_photos_that_vanished_are_left_out_and_stay_in_the_index(made, tmp_path, capsys):
    group_of = write_groups(tmp_path / "photos", 6)
    folder = write_index(tmp_path / "index", made[0] / "model", group_of, tmp_path / "photos")
    os.remove(tmp_path / "photos" / "0-0.png")
    labels.change(folder, {"gone.png": "group 1"}, labels.said(folder).version)
    improvement.improve(folder)
    said = capsys.readouterr().out
    assert "23 photos of 6 groups. 1 labelled photo cannot be read as indexed." in said
    assert "1 of them cannot be read now, and their thumbnails were embedded." in said
    assert len(open_index(folder)) == 24
    # Another time too, though its thumbnail is all that is known of it.
    improvement.back(folder)
    assert len(open_index(folder)) == 24
    assert labels.read(folder)["gone.png"] == "group 1"


@pytest.mark.parametrize("groups, are", [(1, "is 1 group"), (3, "are 3 groups")])
def test_it_takes_four_groups(groups, are, copy):
    said = labels.said(copy)
    few = {key: None for key, label in said.labels.items() if int(label.split()[1]) >= groups}
    labels.change(copy, few, said.version)
    before = contents(copy)
    with pytest.raises(InputError, match=f"It takes 4 groups .* There {are}"):
        improvement.improve(copy)
    assert contents(copy) == before


def test_what_is_no_index_or_has_no_model_before_is_said(copy, tmp_path):
    with pytest.raises(InputError, match="is not an index folder"):
        improvement.improve(str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    with pytest.raises(InputError, match="no way back"):
        improvement.back(copy)


def test_an_index_where_nothing_can_be_written_is_one_error(copy, monkeypatch):
    def refuse(folder):
        raise OSError(30, "Read-only file system", folder)

    monkeypatch.setattr(improvement.files, "make_folder", refuse)
    with pytest.raises(OSError, match="Read-only"):
        improvement.improve(copy)
    assert IndexFolder(copy).current().number == 1


def test_groups_have_what_the_model_has_learnt(copy, tmp_path):
    index = open_index(copy)
    with open(index.files.path("models", index.version.model, GROUPS), "w") as file:
        file.write("0-0.png,old\n0-1.png,old\n1-0.png,other\nnone.png,other\n")
    groups = read_groups(index, str(tmp_path / "shard"))
    former = dict(zip(groups.ids, groups.former.tolist()))
    assert (former["0-0.png"], former["0-1.png"], former["1-0.png"], former["5-1.png"]) == (0, 0, 1, -1)
    names = dict(zip(groups.ids, groups.records.label.tolist()))
    assert groups.names[names["5-1.png"]] == "group 5"
    row = index.ids.tolist().index("5-1.png")
    np.testing.assert_array_equal(groups.embeddings[groups.ids.index("5-1.png")], index.embeddings[row])


def test_each_group_is_tested_once_by_the_embeddings_that_have_not_learnt_it():
    """Against plain loops."""
    draw = np.random.default_rng(0)
    labels_, models = np.repeat(np.arange(5), 3), draw.normal(size=(2, 15, 4)).astype(np.float32)
    models /= np.linalg.norm(models, axis=2, keepdims=True)
    masks = [labels_ < 2, labels_ >= 2]
    found = compare([(models[0], np.ones(15, bool))], [*zip(models, masks)], labels_)
    precisions, hits = [], []
    for query in range(15):
        rows = models[0] if labels_[query] < 2 else models[1]
        order = sorted((-float(rows[query] @ rows[other]), other) for other in range(15) if other != query)
        right = [labels_[other] == labels_[query] for _, other in order]
        precisions.append(
            np.mean([sum(right[: place + 1]) / (place + 1) for place in range(14) if right[place]])
        )
        hits.append(right[0])
    np.testing.assert_allclose(found["ap"].after.mean, np.mean(precisions), atol=1e-6)
    np.testing.assert_allclose(found["recall_at_1"].after.mean, np.mean(hits), atol=1e-6)
    assert sorted(np.concatenate(parts_of(7)).tolist()) == [*range(7)]


def compared(mean, low, high, everywhere=False):
    one = BootstrapInterval(mean, low, high, 40)
    return Compared(one, one, one, everywhere)


@pytest.mark.parametrize(
    "ap, recall, better",
    [
        (compared(0.03, 0.01, 0.05), compared(0.02, -0.01, 0.05), True),
        (compared(0.03, -0.01, 0.05), compared(0.02, 0.01, 0.05), False),
        (compared(0.03, 0.01, 0.05), compared(-0.03, -0.05, -0.01), False),
        (compared(0.03, -math.inf, math.inf, True), compared(0.02, -math.inf, math.inf), True),
        (compared(0.03, -math.inf, math.inf, False), compared(0.02, -math.inf, math.inf), False),
    ],
)
def test_a_model_is_better_by_more_than_chance(ap, recall, better):
    assert improvement.is_better({"ap": ap, "recall_at_1": recall}) is better
