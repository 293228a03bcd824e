"""An index whose model is adapted to its images: when, what it serves, and what stays."""

import json
import shutil

import numpy as np
import pytest

from tests.search import updated, write_model, write_photos
from tfrank import search
from tfrank.common.checks import InputError
from tfrank.evaluation.postprocessing.neighbor_whitening import learn_neighbor_whitening
from tfrank.evaluation.postprocessing.whitening import load_whitening, whiten
from tfrank.export import joined
from tfrank.export.saved_model import CONTENTS, class_fingerprint
from tfrank.improve.improvement import back
from tfrank.search import adaptation, building, upgrading
from tfrank.search.adaptation import adapt
from tfrank.search.embedder import Embedder
from tfrank.search.images import listed_images
from tfrank.search.learnt import trained
from tfrank.search.updating import update_from


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("many"), classes=3, images=40)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A model that asks to be adapted, as that of a new index does."""
    path = write_model(tmp_path_factory.mktemp("start") / "model")
    (path / CONTENTS).write_text(json.dumps({"adapts": True}))
    return Embedder(str(path))


@pytest.fixture(scope="module")
def indexed(start, photos, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("indexed") / "index")
    updated(folder, start, photos)
    return folder


@pytest.fixture
def folder(indexed, tmp_path):
    return shutil.copytree(indexed, tmp_path / "index").as_posix()


def test_images_have_the_embedding_that_the_adapted_model_gives_and_none_is_embedded_again(
    folder, photos, start, monkeypatch
):
    before = search.open(folder)
    monkeypatch.setattr(building, "update", None)
    adapt(folder)
    after = search.open(folder)
    whitening = learn_neighbor_whitening(before.embeddings)
    np.testing.assert_allclose(after.embeddings, whiten(before.embeddings, whitening), atol=1e-6)
    paths = [str(photos / key) for key in after.ids]
    np.testing.assert_allclose(after.embed(paths), after.embeddings, atol=1e-5)
    assert after.mapped == 0 and after.labels == before.labels
    assert (after.version.number, after.version.before) == (2, start.fingerprint)
    stored = load_whitening(after.files.path("models", after.version.model, adaptation.WHITENING))
    np.testing.assert_array_equal(stored.projection, whitening.projection)


def test_it_is_adapted_once_and_new_photos_are_embedded_by_the_adapted_model(folder, photos, tmp_path):
    adapt(folder)
    model = search.open(folder).version.model
    adapt(folder, asked=True)
    more = shutil.copytree(photos, tmp_path / "more")
    shutil.copy(photos / "class 0" / "0.jpg", more / "class 0" / "again.jpg")
    update_from(folder, str(more))
    index = search.open(folder)
    assert index.version.model == model and len(index) == 121
    rows = dict(zip(index.ids.tolist(), index.embeddings))
    np.testing.assert_allclose(rows["class 0/again.jpg"], rows["class 0/0.jpg"], atol=1e-5)


def test_another_model_is_adapted_only_if_that_is_asked_for(photos, tmp_path):
    model = write_model(tmp_path / "model", seed=1, dim=6)
    for asked, number in ((False, 1), (True, 2)):
        folder = str(tmp_path / f"index {asked}")
        update_from(folder, str(photos), model=str(model), adapted=asked)
        index = search.open(folder)
        assert index.version.number == number
        # How it was adapted is kept of the network of a new index alone, whose features labels refine.
        assert not (
            tmp_path / f"index {asked}" / "models" / index.version.model / adaptation.WHITENING
        ).exists()


def test_the_same_command_again_keeps_what_the_index_has_made_of_the_model(photos, tmp_path, capsys):
    model, folder = str(write_model(tmp_path / "model", seed=1, dim=6)), str(tmp_path / "index")

    def again():
        update_from(folder, str(photos), model=model, adapted=True)
        return search.open(folder).version

    first = again()
    assert first.number == 2 and first.model != first.before == Embedder(model).fingerprint
    assert again() == first and ": 0 embedded, 120 unchanged, 0 removed." in capsys.readouterr().out
    # Who goes back keeps the model as it is.
    updated(folder, Embedder(model), photos)
    assert again().model == first.before and search.open(folder).version.number == 3


def test_a_model_that_was_adapted_or_cut_short_knows_the_classes_that_it_was_trained_on(tmp_path):
    robin = class_fingerprint("robin")
    models = [str(tmp_path / name) for name in ("model", "short", "adapted")]
    write_model(tmp_path / "model", seed=1, dim=6)
    (tmp_path / "model" / CONTENTS).write_text(json.dumps({"matches": {"trained": [robin]}}))
    joined.shorten(models[0], 4, models[1])
    joined.adapted(models[1], lambda rows: rows, models[2])
    assert [trained(model, [], []) for model in models] == [{robin}] * 3
    assert joined.origin_of(models[2]) == joined.origin_of(models[1]) == Embedder(models[1]).fingerprint


def test_who_went_back_to_the_model_as_it_is_keeps_it(folder, start, photos):
    adapt(folder)
    updated(folder, start, photos)
    adapt(folder)
    assert search.open(folder).version.model == start.fingerprint


def test_few_images_are_left_as_they_are(start, photos, tmp_path, capsys):
    folder = str(tmp_path / "index")
    some = listed_images(str(photos))[: adaptation.FEWEST - 1]
    building.update(folder, start, some, root=str(photos), quiet=True)
    adapt(folder)
    assert search.open(folder).version.number == 1 and not capsys.readouterr().out
    adapt(folder, asked=True)
    assert search.open(folder).version.number == 1
    assert capsys.readouterr().out == "The model was not adapted: that takes 50 images.\n"


def test_an_index_that_got_another_model_meanwhile_is_not_spoilt(folder, tmp_path, monkeypatch):
    other = Embedder(str(write_model(tmp_path / "other", seed=1)))
    learn = adaptation.learn_neighbor_whitening

    def late(rows, **options):
        building.update(folder, other, None, quiet=True)
        return learn(rows, **options)

    monkeypatch.setattr(adaptation, "learn_neighbor_whitening", late)
    with pytest.raises(InputError, match="learnt for another model than the index"):
        adapt(folder)
    assert search.open(folder).version.model == other.fingerprint


def test_killed_before_the_switch_the_next_update_adapts(folder, photos, monkeypatch):
    def killed(*args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(adaptation, "map_rows", killed)
        adapt(folder)
    update_from(folder, str(photos))
    assert search.open(folder).version.number == 2
    assert upgrading.map_rows is adaptation.map_rows


def test_near_copies_are_those_that_were_before(folder):
    before = search.open(folder)
    adapt(folder)
    after = search.open(folder)
    # Random weights see many photos of one colour as copies.
    assert 0 < len(before.duplicates()) < len(before.ids) / 2
    assert after.duplicates() == before.duplicates()
    assert after.duplicates(0.999) == before.duplicates(0.999) != after.duplicates()
    for query in before.ids[:20].tolist():
        found, wanted = (
            one.search(query, len(one), exclude_duplicates=True)[0].ids for one in (after, before)
        )
        assert 0 < len(found) < len(before) and set(found) == set(wanted)


def test_an_adapted_model_is_not_cut_short_but_the_one_that_it_was_made_of_is(folder, photos, start):
    adapt(folder)
    version = search.open(folder).version
    origin = f"{folder}/models/{start.fingerprint}"
    with pytest.raises(InputError, match=f"Leave out --dim, or cut .*: --model={origin} --dim=4 --adapt$"):
        update_from(folder, str(photos), dim=4)
    assert search.open(folder).version == version
    update_from(folder, str(photos), model=origin, dim=4, adapted=True)
    after = search.open(folder)
    assert after.version.dim == 4 and after._originals is not None


def test_who_goes_back_is_told_to_which_model(folder, capsys):
    adapt(folder)
    for model in ("as it is, not adapted", "that was adapted to the photos"):
        back(folder)
        assert capsys.readouterr().out.splitlines()[-1] == f"It is back at the model {model}."
