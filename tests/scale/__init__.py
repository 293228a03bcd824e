"""Folders of embeddings for the tests of `tfrank.scale`, and options of Beam."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tfrank.scale import pipelines
from tfrank.search.index_folder import table_of

HERE = pipelines.beam_options([])
TWO_PROCESSES = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]


def unit(rows):
    """The rows in float32, with unit norm."""
    rows = np.asarray(rows, np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def write_embeddings(folder, embeddings, labels, *, ids=None, rows=40):
    """Writes a folder of embeddings; label -1 is no label."""
    os.makedirs(folder)
    ids = [f"image {number}" for number in range(len(labels))] if ids is None else ids
    names = ["" if label < 0 else f"class {label}" for label in labels]
    for number, start in enumerate(range(0, len(labels), rows), start=1):
        some = slice(start, start + rows)
        columns = {"id": pa.array(ids[some]), "label": pa.array(names[some])}
        path = os.path.join(folder, f"embeddings-{number:06d}.parquet")
        pq.write_table(table_of(columns, embeddings[some]), path)
    return str(folder)


def read_all(folder, pattern="per_query-"):
    """One table of the parquet files of a folder whose names begin so."""
    names = sorted(name for name in os.listdir(folder) if name.startswith(pattern))
    return pa.concat_tables([pq.read_table(os.path.join(folder, name)) for name in names])
