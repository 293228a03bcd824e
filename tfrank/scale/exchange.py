"""Files of embeddings, of unit norm, in the formats that search engines import.

| engine | files | how they are imported |
|---|---|---|
| milvus | parquet | bulk import into a collection with the fields of `schema.json` |
| qdrant | JSON, a request each | `PUT /collections/{name}/points` |
| vertex | JSON lines | the folder is the `contentsDeltaUri` of a Vector Search index |
| pgvector | CSV | `schema.sql`, then `COPY images FROM ...` |

LanceDB, pandas and others read the parquet files of embeddings as they are.
"""

import csv
import io
import json
import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions

from tfrank.common import checks, parquet_files
from tfrank.evaluation.array_checks import unit_rows
from tfrank.scale import pipelines, storage
from tfrank.scale.parts import Part, parts_of, table_of
from tfrank.search import index_folder
from tfrank.search.index_folder import matrix

# Qdrant refuses requests above 32 MB by default. A number of float32 takes at most 18 bytes with its comma.
REQUEST_BYTES, NUMBER_BYTES = 30_000_000, 18
NAMES = {"id", "path", "label"}
# Texts of a field of Milvus have a largest length.
MOST_BYTES = 65_535
# Ids of Qdrant are numbers or UUIDs; these are made from the images' ids.
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "tfrank")


class Format(NamedTuple):
    """The format of an engine.

    Attributes:
        suffix: how the names of its files end.
        files: returns the contents of the files of a table of embeddings.
        schema: returns the name and content of a file that describes the collection, given the dimensions;
            None if there is none.
    """

    suffix: str
    files: Callable[[pa.Table], Iterator[bytes]]
    schema: Callable[[int], tuple[str, str]] | None = None


def _columns(table: pa.Table) -> pa.Table:
    """The columns that every engine gets: id, path and label, "" where there is none."""
    nothing = pa.array([""] * len(table))
    there = {name: table[name].cast(pa.string()).fill_null("") for name in set(table.column_names) & NAMES}
    return pa.table({name: there.get(name, nothing) for name in sorted(NAMES)})


def milvus_files(table: pa.Table) -> Iterator[bytes]:
    """Yields a parquet file with the fields of `milvus_schema`."""
    rows = matrix(table)
    starts = pa.array(np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32))
    vectors = pa.ListArray.from_arrays(starts, pa.array(rows.ravel()))
    yield parquet_files.encoded(_columns(table).append_column("embedding", vectors))


def milvus_schema(dim: int) -> tuple[str, str]:
    """Returns the fields of a collection as the REST call that creates it takes them."""
    text = {"dataType": "VarChar", "elementTypeParams": {"max_length": MOST_BYTES}}
    vector = {"dataType": "FloatVector", "elementTypeParams": {"dim": dim}}
    fields = [
        {"fieldName": "id", "isPrimary": True, **text},
        {"fieldName": "path", **text},
        {"fieldName": "label", **text},
        {"fieldName": "embedding", **vector},
    ]
    index = {"fieldName": "embedding", "indexName": "embedding", "metricType": "IP", "indexType": "AUTOINDEX"}
    tree = {"collectionName": "images", "schema": {"autoId": False, "fields": fields}, "indexParams": [index]}
    return "schema.json", json.dumps(tree, indent=2) + "\n"


def qdrant_files(table: pa.Table) -> Iterator[bytes]:
    """Yields bodies of requests that add points: a UUID made from the id, the vector, and id, path, label."""
    rows, all_payloads = matrix(table), _columns(table).to_pylist()
    longest = max(len(json.dumps(payload)) for payload in all_payloads)
    size = max(1, REQUEST_BYTES // (NUMBER_BYTES * rows.shape[1] + longest + 50))
    for start in range(0, len(rows), size):
        payloads = all_payloads[start : start + size]
        ids = [str(uuid.uuid5(NAMESPACE, payload["id"])) for payload in payloads]
        batch = {"ids": ids, "vectors": _numbers(rows[start : start + size]), "payloads": payloads}
        yield json.dumps({"batch": batch}).encode()


def qdrant_schema(dim: int) -> tuple[str, str]:
    """Returns the body of the request that creates the collection."""
    return "collection.json", json.dumps({"vectors": {"size": dim, "distance": "Cosine"}}) + "\n"


def vertex_files(table: pa.Table) -> Iterator[bytes]:
    """Yields JSON lines: id, embedding, and the label as a restrict to filter by."""
    lines = []
    for row, vector in zip(_columns(table).to_pylist(), _numbers(matrix(table))):
        point = {"id": row["id"], "embedding": vector}
        if row["label"]:
            point["restricts"] = [{"namespace": "label", "allow": [row["label"]]}]
        lines.append(json.dumps(point))
    yield "".join(f"{line}\n" for line in lines).encode()


def pgvector_files(table: pa.Table) -> Iterator[bytes]:
    """Yields CSV for COPY: id, path, label, and the embedding as pgvector reads it."""
    text = io.StringIO(newline="")
    # Quote all: COPY reads an empty cell without quotes as NULL.
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    for row, vector in zip(_columns(table).to_pylist(), _numbers(matrix(table))):
        writer.writerow([row["id"], row["path"], row["label"], json.dumps(vector)])
    yield text.getvalue().encode()


def pgvector_schema(dim: int) -> tuple[str, str]:
    """Returns the statements that create the table."""
    return "schema.sql", (
        "CREATE EXTENSION IF NOT EXISTS vector;\n"
        f"CREATE TABLE images (id text PRIMARY KEY, path text, label text, embedding vector({dim}));\n"
        "-- Then, for each file: \\copy images FROM 'images-000001.csv' WITH (FORMAT csv)\n"
        "-- After all: CREATE INDEX ON images USING hnsw (embedding vector_cosine_ops);\n"
    )


def _numbers(rows: np.ndarray) -> list[list[float]]:
    """Returns the rows as numbers of as many digits as float32 has."""
    return [[float(f"{value:.9g}") for value in row] for row in rows.tolist()]


FORMATS = {
    "milvus": Format("parquet", milvus_files, milvus_schema),
    "qdrant": Format("json", qdrant_files, qdrant_schema),
    "vertex": Format("json", vertex_files),
    "pgvector": Format("csv", pgvector_files, pgvector_schema),
}


def export(embeddings: str, engine: str, output_dir: str, options: PipelineOptions) -> int:
    """Writes embeddings in the format of an engine; returns the number of images.

    Args:
        embeddings: folder of embeddings, see `parts.parts_of`.
        engine: a name in `FORMATS`.
        output_dir: where the files `images-000001.json` and so on go, local or remote.
        options: Beam's options, see `pipelines.beam_options`.

    Raises:
        InputError: the engine is unknown, or the folder has no embeddings.
    """
    checks.one_of("engine", engine, FORMATS)
    parts = parts_of(embeddings)

    def build(pipeline):
        _ = (
            pipeline
            | "Parts" >> beam.Create(list(enumerate(parts, start=1)))
            | "Spread" >> beam.Reshuffle()
            | "Write" >> beam.Map(_write, engine, output_dir)
        )

    number, suffix = "[0-9]" * 6, FORMATS[engine].suffix
    for pattern in (f"images-{number}.{suffix}", f"images-{number}-[0-9][0-9][0-9].{suffix}"):
        storage.remove_files(output_dir, pattern)
    pipelines.run(build, options)
    if FORMATS[engine].schema:
        name, text = FORMATS[engine].schema(parts[0].dim)
        storage.write(storage.join(output_dir, name), text.encode())
    return sum(part.rows for part in parts)


def _write(numbered: tuple[int, Part], engine: str, output_dir: str) -> None:
    number, part = numbered
    table = table_of(part)
    rows, _ = unit_rows(matrix(table), np.array(table["id"].to_pylist()))
    table = index_folder.table_of({name: table[name] for name in NAMES & {*table.column_names}}, rows)
    for place, data in enumerate(FORMATS[engine].files(table)):
        name = f"images-{number:06d}" + (f"-{place:03d}" if place else "")
        storage.write(storage.join(output_dir, f"{name}.{FORMATS[engine].suffix}"), data)
