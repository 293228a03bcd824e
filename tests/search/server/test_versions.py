"""A reader that stays open while others change the index, remake it or damage it."""

import shutil

import numpy as np
import pytest

from tests.search.server import servers
from tests.search.server.servers import drawn
from tfrank import search
from tfrank.search import building
from tfrank.search.embedder import Embedder
from tfrank.search.images import Listed
from tfrank.search.server.versions import Opened, Versions


@pytest.fixture(scope="module")
def embedder(model):
    return Embedder(str(model))


@pytest.fixture
def folder(tmp_path, model, images):
    """An index folder that may be changed."""
    return servers.make_index(tmp_path / "index", model, images)


def add(folder, embedder, name, place):
    data = drawn((9, 90, 200), place, (50, 30))
    listed = Listed(name, "", "", {}, lambda: data, len(data), place)
    return building.update(folder, embedder, [listed], remove_others=False, quiet=True).version


def contents(index):
    """Embeddings by id."""
    return dict(zip(index.ids.tolist(), index.embeddings.tolist()))


def test_a_reader_that_misses_versions_sees_what_one_who_opens_the_index_sees(folder, embedder):
    readers, draw, added, names = [Versions(folder) for _ in range(2)], np.random.default_rng(0), [], {}
    for step in range(40):
        if added and draw.random() < 0.5:
            version = building.remove(folder, [added.pop(draw.integers(len(added)))])
        else:
            added.append(f"new/{step}")
            version = add(folder, embedder, added[-1], step)
        fresh = search.open(folder)
        for part in version.parts:
            rows = fresh.files.read_part(part)
            assert names.setdefault(part, rows).equals(rows)
        # One looks now and then, the other almost never.
        for reader, share in zip(readers, (0.5, 0.15)):
            if draw.random() < share:
                reader.refresh()
                assert contents(reader.current.index) == contents(fresh)


def test_an_index_that_is_made_anew_under_its_reader_is_read_anew(folder, embedder, model, images):
    reader = Versions(folder)
    shutil.rmtree(folder)
    reader.refresh()
    assert reader.problem and reader.current.number == 1
    add(folder, embedder, "only", 3)
    reader.refresh()
    assert (reader.problem, reader.current.number, reader.current.index.ids.tolist()) == ("", 1, ["only"])


@pytest.mark.parametrize(
    "error", [RuntimeError("no memory"), MemoryError(), OSError(5, "Input/output error")]
)
def test_a_look_that_fails_is_logged_once_and_the_next_one_comes(
    folder, embedder, monkeypatch, caplog, error
):
    reader = Versions(folder)
    add(folder, embedder, "late", 4)

    def fail(*_, **__):
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(Opened, "__init__", fail)
        for _ in range(3):
            reader.refresh()
    assert reader.current.number == 1 and type(error).__name__ in reader.problem
    assert len([line for line in caplog.messages if "version 1 stays" in line]) == 1
    age = reader.age()
    reader.refresh()
    assert reader.current.number == 2 and not reader.problem and reader.age() < age
