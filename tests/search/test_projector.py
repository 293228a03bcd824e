"""Other programs open the files of an index: LanceDB, and TensorBoard's projector."""

import io
import types

import lancedb
import numpy as np
import pyarrow.dataset
from PIL import Image
from tensorboard.plugins.projector.projector_plugin import ProjectorPlugin
from werkzeug.test import Client

from tfrank import search
from tfrank.search import projector


def test_lancedb_searches_the_files_of_an_index(folder, tmp_path):
    index = search.open(folder)
    files = [index.files.path(name) for name in index.version.parts]
    table = lancedb.connect(tmp_path / "lance").create_table(
        "images", pyarrow.dataset.dataset(files).to_table()
    )
    query = index.embeddings[3]
    found = table.search(query, vector_column_name="embedding").distance_type("cosine").limit(5).to_list()
    (ours,) = index.search(query, k=5)
    assert [row["id"] for row in found] == ours.ids
    np.testing.assert_allclose([1 - row["_distance"] for row in found], ours.similarities, atol=1e-5)


def asked(folder, route):
    """What TensorBoard's plugin answers to the page of the projector."""
    plugin = ProjectorPlugin(types.SimpleNamespace(data_provider=None, logdir=str(folder)))
    answer = Client(plugin.get_plugin_apps()[route]).get("/", query_string={"run": ".", "name": "images"})
    assert answer.status_code == 200
    return answer.data


def test_tensorboards_projector_serves_vectors_metadata_and_small_images(folder, tmp_path):
    index = search.open(folder)
    assert projector.write(index, str(tmp_path)) == 12
    vectors = np.frombuffer(asked(tmp_path, "/tensor"), np.float32).reshape(12, -1)
    np.testing.assert_allclose(vectors, index.embeddings, atol=1e-5)
    header, *lines = asked(tmp_path, "/metadata").decode().splitlines()
    assert header.split("\t")[:2] == ["id", "label"]
    assert [line.split("\t")[0] for line in lines] == index.ids.tolist()
    sprite = Image.open(io.BytesIO(asked(tmp_path, "/sprite_image")))
    assert sprite.size == (4 * 64, 4 * 64)
    # The sixth image: second row, second column.
    with Image.open(index.thumbnail(index.ids[5])) as small:
        middle = np.asarray(small.convert("RGB").resize((64, 48)), float)[20:28, 28:36].mean((0, 1))
    np.testing.assert_allclose(np.asarray(sprite, float)[92:100, 92:100].mean((0, 1)), middle, atol=12)


def test_of_many_images_some_are_taken_from_all_over_the_index(folder, tmp_path):
    index = search.open(folder)
    assert projector.write(index, str(tmp_path), most=3) == 3
    lines = (tmp_path / projector.METADATA).read_text().splitlines()[1:]
    assert [line.split("\t")[0] for line in lines] == index.ids[[0, 4, 8]].tolist()
