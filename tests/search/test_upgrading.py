"""An index gets another model by a map: at once, then image by image, and is whole at any moment."""

import contextlib
import os
import shutil
import signal
import time

import numpy as np
import pytest

from tests.command_lines import CommandLine, run
from tests.search import updated, write_model, write_photo, write_photos
from tfrank import search
from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.evaluation.embedding_maps import learn_map, load_map, save_map
from tfrank.search import building, earlier, labels, pairs, times_found, upgrading
from tfrank.search.embedder import Embedder
from tfrank.search.images import listed_images
from tfrank.search.index_folder import MAPPED, IndexFolder
from tfrank.search.maps import check_output, learn_from
from tfrank.search.pairs import pairs_of


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("many"), classes=3, images=20)


@pytest.fixture(scope="module")
def better(tmp_path_factory):
    return Embedder(str(write_model(tmp_path_factory.mktemp("better") / "model", seed=1, dim=6)))


@pytest.fixture(scope="module")
def indexed(embedder, photos, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("indexed") / "index")
    updated(folder, embedder, photos)
    return folder


@pytest.fixture
def folder(indexed, tmp_path):
    return shutil.copytree(indexed, tmp_path / "index").as_posix()


@pytest.fixture(scope="module")
def mapping(indexed, better):
    return learn_from(indexed, better.folder)


def own_rows(folder, better, photos):
    """Which rows have the embedding that the model computes now."""
    index = search.open(folder)
    wanted = better.embed([(photos / key).read_bytes() for key in index.ids])
    return np.abs(index.embeddings - wanted).max(axis=1) < 1e-5


def test_all_rows_are_mapped_at_once_marked_and_searched_by_the_new_model(
    folder, embedder, better, mapping, photos
):
    before = search.open(folder)
    version = upgrading.map_rows(folder, better, mapping)
    index = search.open(folder)
    assert (version.number, version.model, version.dim) == (2, better.fingerprint, 6)
    np.testing.assert_allclose(index.embeddings, mapping(before.embeddings), atol=1e-6)
    assert index.mapped == 60 and set(index.table.column(MAPPED).to_pylist()) == {embedder.fingerprint}
    (found,) = index.search(str(photos / "class 0" / "0.jpg"), k=60)
    assert len(found.ids) == 60 and set(found.matches) == {""}
    assert "Of 60 of 60 images the embeddings are mapped" in found.searched and "mapped" in found.promise
    # The former model and its labels stay.
    assert version.before == embedder.fingerprint and index.labels == before.labels


def test_images_are_embedded_part_by_part_and_answers_are_whole_in_between(
    folder, better, mapping, photos, monkeypatch, capsys
):
    monkeypatch.setattr(upgrading, "PART_ROWS", 25)
    upgrading.map_rows(folder, better, mapping)
    seen, update = [], building.update

    def watched(*arguments, **options):
        index = search.open(folder)
        assert sorted(index.search(index.ids[0], k=60)[0].ids) == sorted(index.ids[1:])
        seen.append((index.mapped, int(own_rows(folder, better, photos).sum())))
        return update(*arguments, **options)

    monkeypatch.setattr(building, "update", watched)
    upgrading.embed_mapped(folder, better)
    assert seen == [(60, 0), (35, 25), (10, 50)]
    assert own_rows(folder, better, photos).all() and search.open(folder).mapped == 0
    assert MAPPED not in search.open(folder).table.column_names
    assert "Version 5: 60 of 60 images are embedded." in capsys.readouterr().out


def test_the_images_that_were_found_most_are_embedded_first(folder, better, mapping, monkeypatch):
    monkeypatch.setattr(upgrading, "PART_ROWS", 25)
    upgrading.map_rows(folder, better, mapping)
    ids = search.open(folder).ids.tolist()
    times_found.add(folder, dict.fromkeys(ids[40:], 1))
    times_found.add(folder, dict.fromkeys(ids[55:], 2))
    assert times_found.counts_of(folder)[ids[59]] == 3
    embedded, update = [], building.update

    def watched(folder, embedder, images, **options):
        embedded.append([image.id for image in images])
        return update(folder, embedder, images, **options)

    monkeypatch.setattr(building, "update", watched)
    upgrading.embed_mapped(folder, better)
    first = embedded[0]
    assert (first[:5], set(first[5:20]), first[20:]) == (ids[55:], set(ids[40:55]), ids[:5])


def test_images_that_are_gone_stay_mapped_and_the_others_are_embedded(
    embedder, better, mapping, tmp_path, capsys
):
    photos, folder = write_photos(tmp_path / "photos", images=20), str(tmp_path / "index")
    updated(folder, embedder, photos)
    shutil.rmtree(photos / "class 1")
    upgrading.map_rows(folder, better, mapping)
    upgrading.embed_mapped(folder, better)
    index = search.open(folder)
    gone = [key.startswith("class 1/") for key in index.ids]
    assert [mark is not None for mark in index.table.column(MAPPED).to_pylist()] == gone
    assert index.mapped == sum(gone) == 20
    assert "20 images cannot be read and stay mapped; the first: class 1/" in capsys.readouterr().out
    # So they do when the index is brought up to date with its own images.
    building.update(folder, better, None, quiet=True)
    assert search.open(folder).mapped == 20


def test_an_update_embeds_mapped_images_too(folder, better, mapping, photos):
    upgrading.map_rows(folder, better, mapping)
    done = updated(folder, better, photos)
    assert done.embedded == 60 and own_rows(folder, better, photos).all()


@pytest.mark.parametrize("storage", ["int8", "binary"])
def test_codes_follow_images_that_are_embedded_again(folder, better, mapping, photos, storage):
    version = IndexFolder(folder).existing()
    old = Embedder(IndexFolder(folder).path("models", version.model))
    building.update(folder, old, None, storage=storage, quiet=True)
    upgrading.map_rows(folder, better, mapping)
    some = listed_images(str(photos))[:3]
    building.update(folder, better, some, root=version.root, remove_others=False, quiet=True)
    index = search.open(folder)
    for image in some:
        (found,) = index.search(str(photos / image.id), k=1)
        assert found.ids == [image.id] and found.similarities[0] == pytest.approx(1, abs=1e-5)


def test_what_was_removed_or_embedded_while_the_mapped_images_were_listed_is_left_as_it_is(
    folder, better, mapping, photos, monkeypatch, capsys
):
    upgrading.map_rows(folder, better, mapping)
    listed, embedded = earlier.mapped, []

    def raced(index, version):
        found = listed(index, version)
        if len(found) == 60:
            building.remove(folder, ["class 0/0.jpg"])
            some = [image for image in listed_images(str(photos)) if image.id == "class 1/1.jpg"]
            building.update(folder, better, some, root=version.root, remove_others=False, quiet=True)
        return found

    embed = Embedder.embed
    monkeypatch.setattr(earlier, "mapped", raced)
    monkeypatch.setattr(Embedder, "embed", lambda *given: embedded.extend(given[1]) or embed(*given))
    upgrading.embed_mapped(folder, better)
    assert len(embedded) == 59
    index = search.open(folder)
    assert len(index) == 59 and "class 0/0.jpg" not in index and index.mapped == 0
    assert "59 of 59 images are embedded." in capsys.readouterr().out


def test_an_upgrade_waits_for_another_that_writes(folder, better, mapping, tmp_path, monkeypatch, capsys):
    save_map(str(tmp_path / "map.npz"), mapping)
    with contextlib.ExitStack() as other:
        other.enter_context(files.locked(folder))
        monkeypatch.setattr(upgrading.time, "sleep", lambda _: other.close())
        upgrading.upgrade(folder, better.folder, str(tmp_path / "map.npz"), embed=False)
    assert search.open(folder).mapped == 60
    assert f"Another process writes to {folder}. This one waits for it.\n" in capsys.readouterr().out


def test_a_map_that_is_not_used_is_named(folder, better, mapping, tmp_path, capsys):
    upgrading.map_rows(folder, better, mapping)
    for model in (better.folder, ""):
        upgrading.upgrade(folder, model, "other.npz", embed=False)
        assert "has this model already, so the map other.npz is not used." in capsys.readouterr().out


def test_a_mapped_index_can_be_mapped_again_and_keeps_who_embedded_it(folder, embedder, better, mapping):
    upgrading.map_rows(folder, better, mapping)
    rows = np.random.default_rng(0).normal(size=(80, 6))
    back = learn_map(rows, rows[:, :5]).map._replace(models=np.array([better.fingerprint, ""]))
    third = Embedder(better.folder)
    third.fingerprint, third.dim = "third", 5
    upgrading.map_rows(folder, third, back)
    parts = IndexFolder(folder).existing().parts
    marks = IndexFolder(folder).read_part(parts[0]).column(MAPPED).to_pylist()
    assert set(marks) == {embedder.fingerprint}


def test_the_command_learns_a_map_upgrades_and_goes_on(folder, better, photos, tmp_path, capsys):
    upgrading.upgrade(folder, better.folder, embed=False)
    printed = capsys.readouterr().out
    assert "60 photos: 0 embedded now by the old model, 60 by the new one." in printed
    assert "Recall@1: old in old" in printed and "60 embeddings were mapped in" in printed
    assert search.open(folder).mapped == 60
    upgrading.upgrade(folder)
    assert own_rows(folder, better, photos).all()


def test_a_model_of_the_same_space_needs_no_map(folder, embedder, tmp_path):
    before, same = search.open(folder), str(write_model(tmp_path / "same", seed=5))
    upgrading.upgrade(folder, same, "identity", embed=False)
    index = search.open(folder)
    np.testing.assert_allclose(index.embeddings, before.embeddings, atol=1e-6)
    assert index.mapped == 60 and index.version.model != embedder.fingerprint


def test_pairs_come_from_what_an_index_knows_by_the_files(
    folder, indexed, embedder, better, photos, tmp_path
):
    moved = shutil.copytree(photos, tmp_path / "elsewhere")
    (moved / "class 0" / "0.jpg").write_bytes((photos / "class 1" / "1.jpg").read_bytes() + b" ")
    found = pairs_of(folder, better.folder, str(moved))
    assert found.embedded == (1, 60) and len(found.old) == 60
    shutil.copy(moved / "class 1" / "1.jpg", moved / "class 1" / "copy.jpg")
    (moved / "class 1" / "bad.jpg").write_bytes(b"\xff\xd8 no image")
    found = pairs_of(folder, better.folder, str(moved))
    assert (found.unread, len(found.old)) == (1, 60)
    upgrading.upgrade(folder, better.folder)
    # Two indexes of the same photos: nothing is embedded.
    found = pairs_of(indexed, folder)
    assert found.embedded == (0, 0) and found.models == (embedder.fingerprint, better.fingerprint)
    known = {tuple(row) for row in search.open(indexed).embeddings.tolist()}
    assert {tuple(row) for row in found.old.tolist()} == known


def test_pairs_have_the_labels_that_people_gave(folder, better):
    labels.change(folder, {"class 0/0.jpg": "wren", "class 1/1.jpg": ""}, labels.said(folder).version)
    found = pairs_of(folder, better.folder).labels
    assert [found.count(name) for name in ("wren", "", "class 0", "class 1", "class 2")] == [1, 1, 19, 19, 20]


@pytest.mark.parametrize("given", [False, True])
def test_photos_that_leave_an_index_while_others_are_embedded_still_count(
    folder, better, photos, monkeypatch, given
):
    before, embed = search.open(folder), pairs._Side.embed

    def raced(self, some):
        embed(self, some)
        if len(search.open(folder)) == 60:
            for name in ("class 0/0.jpg", "class 0/3.jpg"):
                building.remove(folder, [name])

    monkeypatch.setattr(pairs._Side, "embed", raced)
    found = pairs_of(folder, better.folder, str(photos) if given else "")
    assert found.embedded == (0, 60)
    wanted = {tuple(row) for row in before.embeddings.tolist()}
    assert {tuple(row) for row in found.old.tolist()} == wanted


def test_an_index_that_gets_another_model_while_pairs_are_read_is_refused(
    folder, better, mapping, photos, tmp_path
):
    side = pairs._Side(folder, trusted=False)
    upgrading.map_rows(folder, better, mapping)
    with pytest.raises(InputError, match=r"has another model by now\. Run the same command again"):
        side.take([])


def test_where_a_map_cannot_be_written_is_said_before_it_is_learnt(tmp_path):
    check_output(str(tmp_path / "new" / "folder" / "map.npz"))
    assert (tmp_path / "new" / "folder").is_dir()
    (tmp_path / "file").write_text("")
    for path, message in (
        (tmp_path / "file" / "map.npz", "Cannot write to .*file "),
        (tmp_path, "is a folder. Give a file in it"),
    ):
        with pytest.raises(InputError, match=message):
            check_output(str(path))


def test_what_is_advised_can_be_done(folder, embedder, better, photos, mapping, tmp_path):
    few, other = str(tmp_path / "few"), str(tmp_path / "other")
    building.update(few, embedder, listed_images(str(photos))[:10], root=str(photos), quiet=True)
    updated(other, better, photos)
    model = f"{other}/models/{better.fingerprint}"
    flags = [f"--old={few}", f"--new={other}", f"--images={photos}", f"--output={tmp_path / 'map.npz'}"]
    assert f"--index_dir=INDEX --model={model} --map=" in run("-m", "tfrank", "compat", *flags).output
    wanted = f"at least 50 images, and there are 10. .*: tfrank index --model={model} --images=FOLDER"
    with pytest.raises(InputError, match=wanted):
        learn_from(few, other)
    upgrading.map_rows(folder, better, mapping)
    again = Embedder(str(write_model(tmp_path / "again", seed=2, dim=6)))
    with pytest.raises(InputError, match=f"Embed them first: tfrank index upgrade --index_dir={folder}$"):
        upgrading.upgrade(folder, again.folder)
    upgrading.upgrade(folder)
    upgrading.upgrade(folder, again.folder)
    assert own_rows(folder, again, photos).all()


def test_bad_input_is_one_line(folder, indexed, embedder, better, mapping, tmp_path):
    few = str(tmp_path / "few")
    others = tmp_path / "others"
    for number in range(3):
        write_photo(others / f"{number}.jpg", 1000 + number)
    updated(few, better, others)
    shutil.rmtree(others)
    wrong = mapping._replace(models=np.array(["another", better.fingerprint]))
    save_map(str(tmp_path / "map.npz"), mapping)
    (tmp_path / "text.npz").write_text("no map")
    old = Embedder(IndexFolder(indexed).path("models", embedder.fingerprint))
    for action, expected in (
        (lambda: upgrading.map_rows(folder, better, wrong), "learnt for another model than the index's"),
        (lambda: upgrading.map_rows(few, better, mapping), "takes embeddings of 8 dimensions to 6. Those of"),
        (lambda: upgrading.map_rows(str(tmp_path / "none"), better, mapping), "is not an index folder"),
        (lambda: upgrading.upgrade(folder, better.folder, str(tmp_path / "no.npz")), "There is no map"),
        (lambda: upgrading.upgrade(folder, better.folder, str(tmp_path / "text.npz")), "is no map, or is"),
        (
            lambda: upgrading.upgrade(folder, better.folder, "identity"),
            "6 dimensions to 6. Those of the index",
        ),
        (lambda: pairs_of(folder, indexed), "have the same model"),
        (lambda: pairs_of(old.folder, better.folder), "Give the images to learn on"),
        (lambda: pairs_of(folder, few), "have no photo in common"),
        (lambda: pairs_of(few, old.folder), "None of 3 photos can be read as it was indexed"),
    ):
        with pytest.raises(InputError, match=expected) as caught:
            action()
        assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_killed_while_it_embeds_the_same_command_finishes(embedder, better, tmp_path):
    # So many that embedding them takes longer than the last kill waits.
    photos, folder = write_photos(tmp_path / "photos", classes=3, images=200), str(tmp_path / "index")
    updated(folder, embedder, photos)
    path, mapping = str(tmp_path / "new" / "map.npz"), learn_from(folder, better.folder)
    ended = run("-m", "tfrank", "compat", f"--old={folder}", f"--new={better.folder}", f"--output={path}")
    assert ended.status == 0 and "To upgrade an index: tfrank index upgrade" in ended.output, ended.errors
    np.testing.assert_allclose(load_map(path).linear, mapping.linear, atol=1e-5)
    command = ["-m", "tfrank", "index", "upgrade", f"--index_dir={folder}", f"--model={better.folder}"]
    command.append(f"--map={path}")
    for delay in (0.0, 0.2, 0.6):
        running = CommandLine(*command)
        while IndexFolder(folder).current().model != better.fingerprint and running.poll() is None:
            time.sleep(0.02)
        time.sleep(delay)
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        assert len(search.open(folder)) == 600
    ended = run(*command)
    assert ended.status == 0, ended.errors
    assert own_rows(folder, better, photos).all() and search.open(folder).mapped == 0
