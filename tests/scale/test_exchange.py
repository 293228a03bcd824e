"""Exports: the engines that have a local mode find the same neighbours; of others the documented format."""

import csv
import io
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.scale import HERE, unit, write_embeddings
from tfrank.common.checks import InputError
from tfrank.evaluation.nearest.exhaustive import exact
from tfrank.scale import exchange
from tfrank.search import labels

EMBEDDINGS = unit(np.random.default_rng(0).normal(size=(90, 12)))
LABELS = np.arange(90) % 7
LABELS[5] = -1
IDS = ['a "quoted", id', "größe\n2", *(f"image {number}" for number in range(88))]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """A folder of embeddings, of ids that are hard to quote."""
    folder = tmp_path_factory.mktemp("exchange") / "vectors"
    return write_embeddings(folder, EMBEDDINGS, LABELS, ids=IDS)


def exported(vectors, engine, folder):
    assert exchange.export(vectors, engine, str(folder), HERE) == 90
    return sorted(path for path in folder.iterdir() if path.name.startswith("images-"))


def test_qdrant_finds_the_neighbours_of_exact_search(vectors, tmp_path):
    client = pytest.importorskip("qdrant_client")
    paths = exported(vectors, "qdrant", tmp_path)
    made = json.loads((tmp_path / "collection.json").read_text())["vectors"]
    engine = client.QdrantClient(":memory:")
    size = client.models.VectorParams(size=made["size"], distance=made["distance"])
    engine.create_collection("images", vectors_config=size)
    for path in paths:
        body = client.models.PointsBatch.model_validate_json(path.read_text())
        engine.upsert("images", points=body.batch)
    wanted = exact(EMBEDDINGS, EMBEDDINGS, 5)
    for query, rows in zip(EMBEDDINGS, wanted.index):
        points = engine.query_points("images", query=query.tolist(), limit=5).points
        assert [point.payload["id"] for point in points] == [IDS[row] for row in rows]


def test_milvus_finds_the_neighbours_of_exact_search(vectors, tmp_path):
    milvus = pytest.importorskip("pymilvus")
    paths = exported(vectors, "milvus", tmp_path)
    made = json.loads((tmp_path / "schema.json").read_text())
    kinds = {"VarChar": milvus.DataType.VARCHAR, "FloatVector": milvus.DataType.FLOAT_VECTOR}
    schema = milvus.MilvusClient.create_schema(auto_id=made["schema"]["autoId"])
    for field in made["schema"]["fields"]:
        options = {"is_primary": field.get("isPrimary", False), **field["elementTypeParams"]}
        schema.add_field(field["fieldName"], kinds[field["dataType"]], **options)
    engine = milvus.MilvusClient(str(tmp_path / "milvus.db"))
    (asked,) = made["indexParams"]
    indexes = engine.prepare_index_params()
    indexes.add_index(asked["fieldName"], asked["indexType"], metric_type=asked["metricType"])
    engine.create_collection("images", schema=schema, index_params=indexes)
    for path in paths:
        table = pq.read_table(path)
        # A bulk import takes a vector from a list of float of no fixed size.
        assert table.schema.field("embedding").type == pa.list_(pa.field("element", pa.float32()))
        engine.insert("images", table.to_pylist())
    found = engine.search("images", data=EMBEDDINGS.tolist(), limit=5, output_fields=["id"])
    wanted = exact(EMBEDDINGS, EMBEDDINGS, 5)
    assert [[hit["id"] for hit in hits] for hits in found] == [
        [IDS[row] for row in rows] for rows in wanted.index
    ]
    engine.close()


def test_vertex_files_are_json_lines_with_the_label_to_filter_by(vectors, tmp_path):
    paths = exported(vectors, "vertex", tmp_path)
    points = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    assert [point["id"] for point in points] == IDS
    np.testing.assert_array_equal(np.float32([point["embedding"] for point in points]), EMBEDDINGS)
    assert points[0]["restricts"] == [{"namespace": "label", "allow": ["class 0"]}]
    assert "restricts" not in points[5]
    # Only data files may lie in the folder.
    assert all(path.suffix == ".json" and path in paths for path in tmp_path.iterdir())


def test_pgvector_files_are_csv_whose_last_column_pgvector_reads(vectors, tmp_path):
    paths = exported(vectors, "pgvector", tmp_path)
    rows = []
    for path in paths:
        with open(path, newline="", encoding="utf-8") as file:
            rows += csv.reader(file)
    assert [row[0] for row in rows] == IDS and rows[5][2] == ""
    assert all(re.fullmatch(r"\[[-0-9.e, ]+\]", row[3]) for row in rows)
    np.testing.assert_array_equal(np.float32([json.loads(row[3]) for row in rows]), EMBEDDINGS)
    assert "embedding vector(12)" in (tmp_path / "schema.sql").read_text()


@pytest.mark.parametrize("engine", exchange.FORMATS)
def test_embeddings_of_any_norm_are_exported_with_unit_norm(tmp_path, engine):
    lengths = np.float32(np.arange(1, 91)[:, None])
    folder = write_embeddings(tmp_path / "vectors", EMBEDDINGS * lengths, LABELS, ids=IDS)
    text = {"qdrant": lambda path: json.loads(path.read_text())["batch"]["vectors"]}
    text["vertex"] = lambda path: [json.loads(line)["embedding"] for line in path.read_text().splitlines()]
    text["milvus"] = lambda path: pq.read_table(path)["embedding"].to_pylist()
    text["pgvector"] = lambda path: [
        json.loads(row[3]) for row in csv.reader(io.StringIO(path.read_text(), newline=""))
    ]
    found = [row for path in exported(folder, engine, tmp_path / "out") for row in text[engine](path)]
    np.testing.assert_allclose(found, EMBEDDINGS, atol=1e-6)


def test_labels_that_people_gave_in_an_index_are_exported(tmp_path):
    index = tmp_path / "index"
    write_embeddings(index, EMBEDDINGS, LABELS, ids=IDS)
    (index / "versions").mkdir()
    parts = [f"embeddings-{number:06d}.parquet" for number in (1, 2, 3)]
    (index / "versions" / "1.json").write_text(json.dumps({"parts": parts}))
    (index / "CURRENT").write_text("1\n")
    labels.change(str(index), {"image 0": "wren", "image 1": ""}, labels.said(str(index)).version)
    paths = exported(str(index), "pgvector", tmp_path / "out")
    rows = list(csv.reader(io.StringIO("".join(path.read_text() for path in paths), newline="")))
    assert [row[2] for row in rows[1:5]] == ["class 1", "wren", "", "class 4"]


def test_files_of_the_user_stay(vectors, tmp_path):
    (tmp_path / "images-train.csv").write_text("mine")
    (tmp_path / "images-000099.csv").write_text("of a larger folder of embeddings")
    exported(vectors, "pgvector", tmp_path)
    assert (tmp_path / "images-train.csv").read_text() == "mine"
    assert not (tmp_path / "images-000099.csv").exists()


def test_an_unknown_engine_is_refused(vectors, tmp_path):
    with pytest.raises(InputError, match="engine"):
        exchange.export(vectors, "chroma", str(tmp_path), HERE)
