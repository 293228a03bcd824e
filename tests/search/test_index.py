"""Search in an index: by id, path, bytes and embedding, with conditions, without duplicates."""

import datetime
import hashlib
import itertools
import shutil

import numpy as np
import pyarrow as pa
import pytest

from tfrank import search
from tfrank.common.checks import InputError
from tfrank.evaluation.nearest.exact_index import ExactIndex
from tfrank.search import duplicates
from tfrank.search.filters import rows_where


@pytest.fixture(scope="module")
def index(folder):
    return search.open(folder)


def cosines(index, query):
    """Cosines of all images to an embedding, by id, in a loop."""
    return {
        key: sum(float(a) * float(b) for a, b in zip(row, query))
        for key, row in zip(index.ids, index.embeddings)
    }


def test_the_nearest_images_come_first_and_the_query_is_not_among_them(index):
    expected = cosines(index, index.embeddings[4])
    own = expected.pop(index.ids[4].item())
    assert own == pytest.approx(1)
    (found,) = index.search(index.ids[4].item(), k=5)
    assert found.ids == sorted(expected, key=expected.get, reverse=True)[:5]
    np.testing.assert_allclose(found.similarities, [expected[key] for key in found.ids], atol=1e-6)
    assert [one["id"] for one in found.metadata] == found.ids and found.version == 1


def test_a_path_its_bytes_and_its_embedding_find_the_same(index, photos):
    path = photos / "class 1" / "1.jpg"
    queries = [str(path), path.read_bytes()]
    by_file = index.search(queries, k=3)
    (by_vector,) = index.search(index.embed(queries[:1])[0], k=3)
    for found in (*by_file, by_vector):
        assert found.ids == by_vector.ids and found.ids[0] == "class 1/1.jpg"
        assert found.similarities[0] == pytest.approx(1, abs=1e-5)


def test_a_k_beyond_the_index_finds_all_others(index):
    assert len(index.search(index.ids[0].item(), k=1000)[0].ids) == len(index) - 1


def test_results_meet_the_condition_and_the_least_similarity_exactly(index):
    expected = cosines(index, index.embeddings[0])
    least = sorted(expected.values())[4]
    (found,) = index.search(index.embeddings[0], k=12, where={"label": "class 2"}, min_similarity=least)
    wanted = {key for key, value in expected.items() if key.startswith("class 2") and value >= least - 1e-7}
    assert set(found.ids) == wanted and len(wanted) > 0
    assert index.search(index.embeddings[0], where={"label": "none"})[0].ids == []


def test_metadata_has_size_and_class_of_the_file(index, photos):
    path = photos / "class 0" / "3.jpg"
    assert index.metadata("class 0/3.jpg") == {
        "id": "class 0/3.jpg",
        "path": str(path),
        "label": "class 0",
        "width": 24,
        "height": 18,
        "bytes": path.stat().st_size,
        "modified": path.stat().st_mtime_ns,
        "file_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


@pytest.mark.parametrize(
    "query, message",
    [
        ("nothing.jpg", "'nothing.jpg' is neither the id of an image of the index nor an image file."),
        (b"text", "The image cannot be read: no image in a known format"),
        (np.zeros(3), r"Expected finite numbers, \[queries, 8\]"),
        (np.full(8, np.nan), r"Expected finite numbers, \[queries, 8\]"),
        (np.eye(2, 8) * [[1], [0]], "^Query 1 has only zeros, which have no direction. Leave it out.$"),
        ([np.zeros(8)], "Expected one array of all embeddings"),
    ],
)
def test_a_query_that_is_none_is_named(index, query, message):
    with pytest.raises(InputError, match=message):
        index.search(query)


def test_an_image_that_is_not_there_is_named(index):
    with pytest.raises(InputError, match="The index has no image 'x'"):
        index.metadata("x")
    assert "x" not in index and index.ids[0].item() in index


DAYS = [datetime.date(2026, 1, day) for day in (1, 2, 3)]
TIMES = [
    datetime.datetime(2026, 1, 1, 12),
    datetime.datetime(2026, 1, 1, 12, 30),
    datetime.datetime(2026, 1, 2),
]
TABLE = pa.table(
    {
        "label": ["a", "b", None, "a"],
        "width": pa.array([1, 2, 3, None], pa.int32()),
        "price": pa.array([-0.0, 2.5, float("nan"), None]),
        "sharp": [True, False, None, True],
        "day": pa.array([*DAYS, None], pa.date32()),
        "taken": pa.array([*TIMES, None], pa.timestamp("s")),
        "sent": pa.array([*TIMES, None], pa.timestamp("ms", "UTC")),
        "hour": pa.array([time.time() for time in TIMES] + [None], pa.time32("s")),
    }
)


@pytest.mark.parametrize(
    "where, rows",
    [
        ({}, [0, 1, 2, 3]),
        ({"label": "a"}, [0, 3]),
        ({"label": ["b", "c"]}, [1]),
        ({"label": {"ne": "a"}}, [1]),
        ({"width": {"ge": 2, "lt": 3}}, [1]),
        ({"width": {"gt": 1}, "label": "b"}, [1]),
        ({"width": {"le": 1}}, [0]),
        ({"width": []}, []),
        ({"width": {"gt": 1.5}}, [1, 2]),
        ({"width": {"le": 2.5, "ge": 0.5}}, [0, 1]),
        ({"width": {"lt": 1e30}}, [0, 1, 2]),
        ({"width": {"ne": 2.5}}, [0, 1, 2]),
        ({"day": "2026-01-02"}, [1]),
        ({"day": {"ge": "2026-01-02"}}, [1, 2]),
        ({"day": DAYS[0]}, [0]),
        ({"taken": "2026-01-01T12:30"}, [1]),
        ({"taken": TIMES[1]}, [1]),
        ({"taken": {"gt": "2026-01-01T12:00:00.5", "lt": "2026-01-02"}}, [1]),
        ({"sent": {"ge": "2026-01-01T14:30:00+02:00"}}, [1, 2]),
        ({"sent": TIMES[0].replace(tzinfo=datetime.UTC)}, [0]),
        ({"hour": {"ge": "12:00", "lt": "12:30:00"}}, [0]),
    ],
)
def test_rows_meet_all_conditions(where, rows):
    assert np.flatnonzero(rows_where(TABLE, where)).tolist() == rows


@pytest.mark.parametrize(
    "where, message",
    [
        ({"widht": 1}, "no column 'widht'. Did you mean \"width\""),
        ({"width": {"about": 1}}, "Unknown comparison 'about'. Give one of eq, ne, lt, le, gt, ge"),
        ({"width": "wide"}, "The column 'width' has values of type int32, not such as 'wide'"),
        ({"width": 2**100}, "not such as 1267650"),
        ({"width": True}, "has values of type int32, not such as True"),
        ({"price": True}, "has values of type double, not such as True"),
        ({"sharp": 1}, "has values of type bool, not such as 1"),
        ({"label": 1}, "has values of type string, not such as 1"),
        ({"label": "\ud800"}, r"not such as '.ud800'"),
        ({"day": 20454}, "not such as 20454. Write a date as 2026-01-31."),
        ({"day": TIMES[0]}, "not such as .* Write a date as"),
        ({"taken": 1767268800}, "not such as 1767268800. Write a time as 2026-01-31T12:30:00."),
        ({"taken": {"ge": 1.5}}, "Write a time as"),
        ({"taken": "2026-01-01T12:00:00Z"}, "Write a time as 2026-01-31T12:30:00."),
        ({"sent": "2026-01-01T12:00:00"}, "Write a time as 2026-01-31T12:30:00Z, or"),
        ({"sent": TIMES[0]}, "Write a time as 2026-01-31T12:30:00Z, or"),
        ({"hour": 43200}, "Write a time as 12:30:00."),
        ({"day": "yesterday"}, "not such as 'yesterday'. Write a date as"),
        ({"width": {"eq": {"eq": 1}}}, "not such as {'eq': 1}"),
        ({"label": {"eq": ["a"]}}, r"not such as \['a'\]"),
    ],
)
def test_a_bad_condition_is_named(where, message):
    with pytest.raises(InputError, match=message):
        rows_where(TABLE, where)


VALUES = {
    "label": ["a", "b", "c", None],
    "width": [1, 2, 2.0, 2.5, None, float("nan"), 1e30],
    "price": [0.0, -0.0, 0, 2.5, None, float("nan"), float("inf")],
    "sharp": [True, False, None],
    "day": ["2026-01-02", DAYS[0], None],
    "taken": ["2026-01-01T12:30", TIMES[0], "2026-01-01T12:30:00.5", None],
    "sent": ["2026-01-01T13:00:00+01:00", None],
    "hour": ["12:30", TIMES[0].time(), None],
}


@pytest.mark.parametrize("name", VALUES)
def test_a_list_is_met_where_one_of_its_values_is_and_none_is_met_nowhere(name):
    each = {}
    for place, value in enumerate(VALUES[name]):
        each[place] = set(np.flatnonzero(rows_where(TABLE, {name: value})))
        assert set(np.flatnonzero(rows_where(TABLE, {name: [value]}))) == each[place], value
        assert set(np.flatnonzero(rows_where(TABLE, {name: {"eq": value}}))) == each[place], value
        if value is None or value != value:
            for comparison in ("eq", "ne", "lt", "le", "gt", "ge"):
                assert not rows_where(TABLE, {name: {comparison: value}}).any()
        else:
            unequal = set(np.flatnonzero(rows_where(TABLE, {name: {"ne": value}})))
            assert (
                unequal
                == {row for row, one in enumerate(TABLE[name].to_pylist()) if one is not None and one == one}
                - each[place]
            )
    for some in itertools.permutations(each, 2):
        found = rows_where(TABLE, {name: [VALUES[name][place] for place in some]})
        assert set(np.flatnonzero(found)) == each[some[0]] | each[some[1]]


def chain(angles):
    """Unit vectors in the plane."""
    return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)


def test_duplicates_are_groups_that_similar_pairs_connect():
    rows = chain(np.concatenate([[1.0, 2.0], 0.1 * np.arange(9) - 2, [1.05]]))
    groups = duplicates.groups(ExactIndex(rows, np.arange(len(rows))), rows, np.cos(0.11))
    assert [sorted(group.tolist()) for group in groups] == [list(range(2, 11)), [0, 11]]


def test_duplicates_of_the_query_are_left_out_if_asked(index, monkeypatch):
    monkeypatch.setattr("tfrank.search.index.DUPLICATE", index.search(index.embeddings[3])[0].similarities[2])
    everything = index.search(index.embeddings[3], k=12)[0].ids
    assert index.search(index.embeddings[3], k=4, exclude_duplicates=True)[0].ids == everything[3:7]


def test_a_folder_that_is_no_index_or_a_damaged_one_is_named(folder, tmp_path):
    with pytest.raises(InputError, match=r"is not an index folder. Make one with tfrank index"):
        search.open(tmp_path)
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    (part,) = damaged.glob("embeddings-*.parquet")
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(InputError, match=f"{part.name} is damaged .* Make the index again"):
        search.open(damaged)
    part.unlink()
    with pytest.raises(InputError, match=f"{part.name} is damaged"):
        search.open(damaged)
    (damaged / "CURRENT").write_text("seven")
    with pytest.raises(InputError, match="is damaged"):
        search.open(damaged)
