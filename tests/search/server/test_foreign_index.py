"""An index that somebody else made: what it names lies in it, and nothing is waited for."""

import hashlib
import os
import pathlib
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.search.server import servers
from tests.search.server.servers import drawn
from tfrank import search
from tfrank.common.checks import InputError
from tfrank.search import building, index_folder, projector
from tfrank.search.embedder import Embedder
from tfrank.search.images import Listed
from tfrank.search.server.settings import Settings

SECRET = drawn((1, 200, 1), 2)


@pytest.fixture
def folder(tmp_path, model, images):
    return pathlib.Path(servers.make_index(tmp_path / "index", model, images))


@pytest.fixture
def secret(tmp_path):
    (tmp_path / "private").mkdir()
    path = tmp_path / "private" / "photo.png"
    path.write_bytes(SECRET)
    return path


def put(path: pathlib.Path, kind: str, target: pathlib.Path) -> None:
    """Puts a link or a pipe in the place of a file or folder."""
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()
    if kind == "link":
        path.symlink_to(target)
    elif kind == "hard":
        os.link(target, path)
    else:
        os.mkfifo(path)


def relisted(folder, **columns):
    """Gives the first image other columns."""
    (part,) = folder.glob("embeddings-*.parquet")
    table = pq.read_table(part)
    for name, value in columns.items():
        values = [value, *table.column(name).to_pylist()[1:]]
        place = table.column_names.index(name)
        table = table.set_column(place, name, pa.array(values, table.schema.field(name).type))
    pq.write_table(table, part)
    return table.column("id")[0].as_py()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_thumbnails_are_regular_files_of_the_index(folder, secret, kind):
    index = search.open(folder)
    first, second = index.ids[:2].tolist()
    put(pathlib.Path(index.thumbnail(first)), kind, secret)
    with servers.serving_here(str(folder), Settings()) as here:
        answer = here.client.get(f"/v1/items/{first.replace('/', '%2F')}/thumbnail")
        assert answer.status_code == 404 and "missing" in answer.json()["error"]
        assert here.client.get(f"/v1/items/{second.replace('/', '%2F')}/thumbnail").status_code == 200
    assert projector.write(index, str(folder / "projector")) == len(index)


@pytest.mark.parametrize("kind", ["link", "hard", "pipe", "path", "another"])
def test_an_original_is_sent_if_it_is_what_was_indexed(folder, secret, images, tmp_path, kind):
    own = tmp_path / "images"
    shutil.copytree(images, own)
    image_id = relisted(folder, path=str(own / "0" / "0.png"))
    address = f"/v1/items/{image_id.replace('/', '%2F')}/image"
    with servers.serving_here(str(folder), Settings()) as here:
        assert here.client.get(address).status_code == 200
    if kind == "path":
        relisted(folder, path=str(secret), bytes=len(SECRET), modified=secret.stat().st_mtime_ns)
    elif kind == "another":
        (own / "0" / "0.png").write_bytes(SECRET)
    else:
        put(own / "0" / "0.png", kind, secret)
    with servers.serving_here(str(folder), Settings()) as here:
        answer = here.client.get(address)
        assert answer.status_code == 404 and "as it was indexed" in answer.json()["error"]
        thumbnail = here.client.get(address.replace("/image", "/thumbnail")).content
        assert search.open(folder).files.read_thumbnail(image_id) == thumbnail
        # A part is searched by what was indexed, the thumbnail.
        body = {"id": image_id, "box": [0, 0, 1, 1], "k": 1}
        (found,) = here.client.post("/v1/search", json=body).json()["results"]
        assert found["id"].startswith("a/0/") and found["similarity"] > 0.9


NAMES = ["CURRENT", "versions", "versions/1.json", "embeddings-*.parquet"]
NAMES += ["models", "models/*", "models/*/saved_model.pb", "models/*/variables", "models/*/assets"]


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("name", NAMES)
def test_an_index_with_links_or_pipes_is_named_and_not_waited_for(folder, tmp_path, kind, name):
    (path,) = folder.glob(name)
    moved = tmp_path / "moved"
    shutil.move(path, moved)
    put(path, kind, moved)
    with pytest.raises(InputError, match="only regular files are read"):
        search.open(folder).embedder.embed([SECRET])


@pytest.mark.parametrize("name", index_folder.FOLDERS)
def test_a_linked_folder_of_an_index_is_neither_changed_nor_emptied(folder, tmp_path, name):
    target = tmp_path / "target"
    (folder / name).mkdir(exist_ok=True)
    shutil.copytree(folder / name, target)
    (target / "mine.txt").write_text("mine")
    before = sorted(target.rglob("*"))
    put(folder / name, "link", target)
    with pytest.raises(InputError, match=r"is a link|is damaged"):
        building.remove(str(folder), ["a/0/0.png"])
    assert sorted(target.rglob("*")) == before


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("name", [".lock", "CURRENT.tmp", "versions/2.json.tmp"])
def test_what_a_change_writes_over_is_no_link_and_no_pipe(folder, secret, kind, name):
    put(folder / name, kind, secret)
    with pytest.raises((InputError, OSError), match="only regular files are read"):
        building.remove(str(folder), ["a/0/0.png"])
    assert secret.read_bytes() == SECRET


def test_a_linked_thumbnail_is_replaced_and_its_target_stays(folder, secret, model):
    index = search.open(folder)
    put(pathlib.Path(index.files.thumbnail("new")), "link", secret)
    listed = Listed("new", "", "", {}, lambda: SECRET, len(SECRET), 1)
    building.update(str(folder), Embedder(str(model)), [listed], remove_others=False, quiet=True)
    assert secret.read_bytes() == SECRET and not os.path.islink(index.files.thumbnail("new"))


def test_the_digest_of_a_file_is_its_sha256(folder, images):
    rows = search.open(folder).table.select(["path", "file_sha256"]).to_pylist()
    for row in rows:
        assert row["file_sha256"] == hashlib.sha256(pathlib.Path(row["path"]).read_bytes()).hexdigest()
