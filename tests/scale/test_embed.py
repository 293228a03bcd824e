"""Embedding by Beam: the embeddings of the search index, in its columns."""

import os
import pathlib
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.scale import HERE, read_all
from tests.search import updated, write_model
from tfrank.common.checks import InputError
from tfrank.data.prepare import builder
from tfrank.scale import embed
from tfrank.scale.parts import parts_of
from tfrank.search import building
from tfrank.search.embedder import Embedder
from tfrank.search.images import listed_images
from tfrank.search.index_folder import IndexFolder, matrix


def test_rows_are_those_of_the_search_index(model, listed, tmp_path):
    done = embed.embed(model, listed, str(tmp_path / "out"), HERE, rows=5)
    assert (done.images, done.new) == (12, 12)
    assert [image for image, _ in done.skipped] == ["gone.jpg"]
    found = read_all(tmp_path / "out", "embeddings-")
    assert sorted(os.listdir(tmp_path / "out")) == [
        *(f"embeddings-{number:06d}.parquet" for number in (1, 2, 3)),
        "skipped.csv",
    ]
    building.update(str(tmp_path / "index"), Embedder(model), listed_images(listed), quiet=True)
    index = IndexFolder(str(tmp_path / "index"))
    wanted = index.read_part(index.current().parts[0])
    assert found.column_names == wanted.column_names
    np.testing.assert_allclose(matrix(found), matrix(wanted), atol=1e-6)
    assert found.drop_columns("embedding").equals(wanted.drop_columns("embedding"))


def test_records_give_the_rows_of_the_search_index_too(model, photos, tmp_path):
    folder = str(tmp_path / "records")
    shutil.copytree(photos, tmp_path / "photos")
    # Names that are no UTF-8.
    os.rename(tmp_path / "photos" / "class 0", os.fsencode(tmp_path) + b"/photos/caf\xe9")
    builder.prepare("folder", str(tmp_path / "photos"), folder)
    embed.embed(model, folder, str(tmp_path / "out"), HERE)
    found = read_all(tmp_path / "out", "embeddings-")
    building.update(str(tmp_path / "index"), Embedder(model), listed_images(folder), quiet=True)
    index = IndexFolder(str(tmp_path / "index"))
    wanted = index.read_part(index.current().parts[0])
    assert found.drop_columns("embedding").equals(wanted.drop_columns("embedding"))
    np.testing.assert_allclose(matrix(found), matrix(wanted), atol=1e-6)
    assert {r"caf\xe9"} == {name.split("/")[0] for name in found["id"].to_pylist()} & {r"caf\xe9"}
    assert r"caf\xe9" in found["label"].to_pylist()


def test_a_second_run_writes_only_what_is_missing_or_listed_anew(model, listed, tmp_path):
    out = tmp_path / "out"
    embed.embed(model, listed, str(out), HERE, rows=5)
    before = {path.name: path.read_bytes() for path in out.glob("*.parquet")}
    (out / "embeddings-000002.parquet").unlink()
    assert embed.embed(model, listed, str(out), HERE, rows=5).new == 4
    assert before == {path.name: path.read_bytes() for path in out.glob("*.parquet")}
    path = pathlib.Path(listed)
    path.write_text(path.read_text().rstrip().rsplit("\n", 1)[0] + "\nanother.jpg,x\n")
    done = embed.embed(model, listed, str(out), HERE, rows=5)
    assert [image for image, _ in done.skipped] == ["gone.jpg", "another.jpg"] and done.images == 11


def test_a_photo_that_was_repaired_or_replaced_is_embedded_again(model, photos, tmp_path):
    paths = sorted(photos.rglob("*.jpg"))
    for name, path in (("a.jpg", paths[0]), ("b.jpg", paths[1])):
        (tmp_path / name).write_bytes(path.read_bytes())
    (tmp_path / "list.csv").write_text("path\na.jpg\nb.jpg\nc.jpg\n")

    def embeddings():
        done = embed.embed(model, str(tmp_path / "list.csv"), str(tmp_path / "out"), HERE, rows=1)
        return done, matrix(read_all(tmp_path / "out", "embeddings-"))

    _, before = embeddings()
    (tmp_path / "c.jpg").write_bytes(paths[2].read_bytes())
    (tmp_path / "b.jpg").write_bytes(paths[3].read_bytes())
    done, after = embeddings()
    assert (done.images, done.new, done.skipped) == (3, 2, [])
    np.testing.assert_array_equal(after[0], before[0])
    assert not np.allclose(after[1], before[1])


def test_a_shorter_list_leaves_nothing_of_the_longer_one(model, listed, tmp_path):
    out = tmp_path / "out"
    embed.embed(model, listed, str(out), HERE, rows=3)
    path = pathlib.Path(listed)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:5]))
    assert embed.embed(model, listed, str(out), HERE, rows=3).images == 4
    assert len(read_all(out, "embeddings-")) == 4


def test_ids_and_labels_stay_the_text_that_they_are(model, photos, tmp_path):
    paths = sorted(photos.rglob("*.jpg"))[:3]
    ids, labels = ["007", "7", "1e0"], ["1.0", "1", ""]
    rows = [f"{path};{name};{label}" for path, name, label in zip(paths, ids, labels)]
    (tmp_path / "list.csv").write_text("path;id;label\n" + "\n".join(rows))
    embed.embed(model, str(tmp_path / "list.csv"), str(tmp_path / "out"), HERE)
    found = read_all(tmp_path / "out", "embeddings-")
    assert found["id"].to_pylist() == ids and found["label"].to_pylist() == labels


def test_until_embedding_has_ended_its_folder_is_not_whole_also_with_another_list(
    model, listed, tmp_path, monkeypatch
):
    out, path = str(tmp_path / "out"), pathlib.Path(listed)
    everything = path.read_text()
    written, write = [], embed._write

    def killed(made, output_dir):
        if written:
            raise InputError("killed")
        written.append(made[0])
        write(made, output_dir)

    for some, rows in ((everything, 5), (everything, 4)):
        path.write_text(some)
        written.clear()
        monkeypatch.setattr(embed, "_write", killed)
        with pytest.raises(InputError, match="killed"):
            embed.embed(model, listed, out, HERE, rows=rows)
        with pytest.raises(InputError, match="out is not whole: tfrank scale embed has not ended") as error:
            parts_of(out)
        assert "\n" not in str(error.value)
        monkeypatch.setattr(embed, "_write", write)
        embed.embed(model, listed, out, HERE, rows=rows)
        assert sum(part.rows for part in parts_of(out)) == 12


def test_what_is_refused_before_embedding_leaves_the_folder_whole(model, listed, tmp_path):
    out, path = str(tmp_path / "out"), pathlib.Path(listed)
    embed.embed(model, listed, out, HERE, rows=5)
    whole = parts_of(out)
    path.write_text(f"{path.read_text()}{path.read_text().splitlines()[1]}\n")
    with pytest.raises(InputError, match="twice"):
        embed.embed(model, listed, out, HERE, rows=5)
    assert parts_of(out) == whole
    with pytest.raises(InputError, match="is by another model"):
        embed.embed(str(write_model(tmp_path / "other", seed=1)), listed, out, HERE, rows=5)
    assert parts_of(out) == whole


def test_records_that_were_prepared_again_with_other_labels_are_embedded_again(model, photos, tmp_path):
    folder = str(tmp_path / "records")
    classes = {path: path.parent.name for path in sorted(photos.rglob("*.jpg"))}

    def embedded():
        rows = "".join(f"{path},{label}\n" for path, label in classes.items())
        (tmp_path / "list.csv").write_text(f"path,label\n{rows}")
        shutil.rmtree(folder, ignore_errors=True)
        builder.prepare("csv", str(tmp_path / "list.csv"), folder)
        embed.embed(model, folder, str(tmp_path / "out"), HERE)
        found = read_all(tmp_path / "out", "embeddings-").to_pylist()
        assert {row["id"]: row["label"] for row in found} == {
            image.id: image.label for image in listed_images(folder)
        }
        return {row["label"]: row["split"] for row in found}

    splits = embedded()
    one, other = (label for label in splits if splits[label] == "train")
    # Labels of as many letters, in one split: each record stays where it was.
    first, second = (next(path for path in classes if classes[path] == label) for label in (one, other))
    classes |= {first: other, second: one}
    embedded()


def test_the_model_embeds_as_many_images_at_a_time_as_was_said(model, photos, tmp_path, monkeypatch):
    paths = [*sorted(photos.rglob("*.jpg"))] * 4
    rows = "".join(f"{path},{number}\n" for number, path in enumerate(paths))
    (tmp_path / "list.csv").write_text(f"path,id\n{rows}")
    sizes, start = [], Embedder.__init__

    def watched(self, *arguments, **options):
        start(self, *arguments, **options)
        signature = self._signature
        self._signature = lambda bytes: (sizes.append(int(bytes.shape[0])), signature(bytes=bytes))[1]

    monkeypatch.setattr(Embedder, "__init__", watched)
    for batch, wanted in ((40, [40, 8]), (20, [20, 20, 8])):
        sizes.clear()
        embed.embed(model, str(tmp_path / "list.csv"), str(tmp_path / f"{batch}"), HERE, batch=batch)
        assert sizes == wanted


def test_a_damaged_file_is_written_again(model, listed, tmp_path):
    out = tmp_path / "out [1]"
    embed.embed(model, listed, str(out), HERE, rows=5)
    whole = read_all(out, "embeddings-")
    (out / "embeddings-000002.parquet").write_bytes(b"PAR1")
    embed.embed(model, listed, str(out), HERE, rows=5)
    assert read_all(out, "embeddings-").equals(whole)


def test_a_model_list_and_result_in_a_store(model, listed, photos, tmp_path, store):
    embed.embed(model, listed, str(tmp_path / "out"), HERE)
    embed.storage.upload(model, "store://bucket/model")
    embed.storage.upload(listed, "store://bucket/list.csv")
    done = embed.embed("store://bucket/model", "store://bucket/list.csv", "store://bucket/out", HERE)
    assert done.images == 12
    one, other = (
        pq.read_table(path / "embeddings-000001.parquet")
        for path in (tmp_path / "out", store / "bucket" / "out")
    )
    assert one.equals(other)
    files = [path.name for path in (store / "bucket" / "out").rglob("*") if path.is_file()]
    assert sorted(files) == ["embeddings-000001.parquet", "skipped.csv"]


def test_a_folder_with_other_embeddings_is_left_as_it_is(model, listed, photos, tmp_path):
    updated(tmp_path / "index", Embedder(str(model)), photos)
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "embeddings-of birds.parquet").write_bytes(b"mine")
    for name, what in (
        ("index", "a search index"),
        ("others", r"embeddings of something else \(embeddings-of b"),
    ):
        before = {path: path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()}
        with pytest.raises(InputError, match=f"{name} has {what}"):
            embed.embed(model, listed, str(tmp_path / name), HERE)
        assert {path: path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()} == before


def test_bad_input_is_named(model, listed, tmp_path):
    out = str(tmp_path / "out")
    embed.embed(model, listed, out, HERE)
    other = str(write_model(tmp_path / "other", seed=1))
    nothing, twice, column = (tmp_path / name for name in ("nothing.csv", "twice.csv", "column.csv"))
    nothing.write_text("path,label\ngone.jpg,a\n")
    twice.write_text("path,id\na.jpg,x\nb.jpg,x\n")
    column.write_text("file\na.jpg\n")
    blank, repeated, latin = (tmp_path / name for name in ("blank.csv", "repeated.csv", "latin.csv"))
    blank.write_text("path;id\na.jpg;1\nb.jpg; \n")
    repeated.write_text("path, price,price\na.jpg,1,2\n")
    latin.write_bytes("path\té\n".encode("latin-1"))
    for path, images, folder, message in (
        (other, listed, out, "is by another model"),
        (model, str(nothing), "none", "No image of .* can be used; the first, gone.jpg"),
        (model, str(twice), "none", "has the id of its image 1 twice"),
        (model, str(column), "none", "has no column `path`"),
        (model, str(blank), "none", "line 3: expected an id"),
        (model, str(repeated), "none", "has the column `price` twice"),
        (model, str(latin), "none", "line 1: not UTF-8"),
        (model, str(tmp_path / "gone.csv"), "none", "There is no file"),
        (model, str(tmp_path), "none", "neither a list of images nor a folder of records"),
        (str(tmp_path), listed, "none", "is not a SavedModel"),
    ):
        with pytest.raises(InputError, match=message) as error:
            embed.embed(path, images, folder if folder == out else str(tmp_path / folder), HERE)
        assert "\n" not in str(error.value)
