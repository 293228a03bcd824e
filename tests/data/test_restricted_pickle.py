"""Plain data comes out of a pickle as it went in, and nothing else comes out, or is done."""

import codecs
import contextlib
import copyreg
import importlib
import operator
import os
import pathlib
import pickle
import re
import subprocess

import numpy as np
import pytest
from numpy._core import multiarray

from tfrank.common.checks import InputError
from tfrank.data import restricted_pickle

PLAIN = {
    "text": "Jardin du Luxembourg, 6ᵉ",
    "numbers": [0, -1, 2**70, 1.5, float("inf"), True, None],
    b"bytes": (b"", b"\x00\xff", ()),
    3: {"nested": [{"deep": [1, (2, [3])]}], "empty": {}},
}
ARRAYS = [
    np.arange(6).reshape(2, 3),
    np.asfortranarray(np.arange(6.0, dtype=np.float32).reshape(2, 3)),
    np.array([1, 2], ">i2"),
    np.array([], np.int64),
    np.array(7, np.uint8),
    np.array([True, False]),
    np.array(["hertford", "é"]),
    np.array([b"keble", b""]),
    np.array([1 + 2j]),
]


@pytest.fixture
def load(tmp_path):
    """A function that reads bytes as a file."""

    def load(data):
        path = tmp_path / "gnd.pkl"
        path.write_bytes(data)
        return restricted_pickle.load(str(path))

    return load


@pytest.mark.parametrize("protocol", range(5))
def test_plain_data_comes_out_as_it_went_in(load, protocol):
    assert load(pickle.dumps(PLAIN, protocol)) == PLAIN


@pytest.mark.parametrize("module", [b"numpy._core.multiarray", b"numpy.core.multiarray"])
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{list(array.shape)}")
@pytest.mark.parametrize("protocol", [0, 2, 3])
def test_arrays_come_out_as_they_went_in(load, array, protocol, module):
    data = pickle.dumps({"junk": array}, protocol).replace(b"numpy._core.multiarray", module)
    (result,) = load(data).values()
    assert type(result) is np.ndarray and result.dtype == array.dtype and result.shape == array.shape
    np.testing.assert_array_equal(result, array)
    result[...] = 0  # It is not a view of the file.


def test_scalars_and_arrays_of_objects_come_out_as_they_went_in(load):
    objects = np.array([[1, "a"], [[2, 3], {"b": np.float32(4)}]], object)
    scalar, dtype, result = load(pickle.dumps([np.int16(-5), np.dtype("<f4"), objects], 4))
    assert scalar == -5 and scalar.dtype == np.int16 and dtype == np.float32
    assert result.dtype == object and result.tolist() == objects.tolist()


def test_what_is_shared_stays_shared_and_a_list_may_hold_itself(load):
    shared = np.arange(3)
    ring = [shared, shared]
    ring.append(ring)
    result = load(pickle.dumps(ring, 4))
    assert result[0] is result[1] and result[2] is result


def test_a_pickle_of_python_2_is_read(load):
    # As Python 2 writes {"easy": numpy.array([3, 500])}: strings are bytes, modules have their old names.
    data = (
        b"\x80\x02}q\x00U\x04easyq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03"
        b"K\x00\x85q\x04U\x01bq\x05\x87q\x06Rq\x07(K\x01K\x02\x85q\x08cnumpy\ndtype\nq\tU\x02i8q\nK\x00K\x01"
        b"\x87q\x0bRq\x0c(K\x03U\x01<q\rNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x0eb\x89"
        b"U\x10\x03\x00\x00\x00\x00\x00\x00\x00\xf4\x01\x00\x00\x00\x00\x00\x00q\x0ftq\x10bs."
    )
    (key,), (array,) = zip(*load(data).items())
    assert key == "easy" and array.dtype == np.int64 and array.tolist() == [3, 500]


class Calls:
    """What is pickled as a call of a function."""

    def __init__(self, function, *arguments, state=None):
        self.call = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.call

    def __call__(self):
        """So that what it makes can be called in turn."""


def attacks(marker):
    """Pickles that make a file when `pickle.load` reads them, by what they ask for first."""
    touch, program = f"touch {marker}", f"open({marker!r}, 'w').close()"
    module = Calls(importlib.import_module, "os")
    trees = {
        "posix.system": Calls(os.system, touch),
        "subprocess.run": Calls(subprocess.run, ["touch", marker]),
        "builtins.eval": {"imlist": [Calls(eval, program)]},
        "builtins.exec": (Calls(exec, program),),
        "builtins.getattr": Calls(Calls(getattr, module, "system"), touch),
        "operator.methodcaller": Calls(operator.methodcaller("system", touch), module),
        "numpy.save": Calls(np.save, marker, np.arange(3)),
        "numpy.memmap": Calls(np.memmap, marker, "u1", "w+", 0, (3,)),
        "builtins.list": Calls(list, Calls(map, eval, [program])),
        "copyreg._reconstructor": [Calls(copyreg._reconstructor, dict, dict, {}), Calls(eval, program)],
    }
    pickles = {name: pickle.dumps(tree, 4) for name, tree in trees.items()}
    # By way of a module that imports another, and as Python 2 wrote names.
    pickles["shutil.os.system"] = (
        f"\x80\x04\x8c\x06shutil\x8c\x09os.system\x93\x8c{chr(len(touch))}{touch}\x85R."
    )
    pickles["os.system"] = f"cos\nsystem\n(V{touch}\ntR."
    return {name: data.encode("latin1") if isinstance(data, str) else data for name, data in pickles.items()}


@pytest.mark.parametrize("name", attacks("marker"))
def test_a_pickle_that_would_run_something_is_refused_by_name_and_runs_nothing(load, tmp_path, name):
    marker = tmp_path / "marker.npy"
    data = attacks(str(marker))[name]
    with contextlib.suppress(Exception):
        pickle.loads(data)
    assert marker.exists()  # The attack is real.
    marker.unlink()
    with pytest.raises(
        InputError, match=rf"gnd\.pkl names {re.escape(name)}, which data does not need"
    ) as error:
        load(data)
    assert "Nothing of it was run" in str(error.value)
    assert not marker.exists()


class Disguise(Calls):
    """NumPy's `_reconstruct` of an array, with this state."""

    def __init__(self, *state):
        super().__init__(multiarray._reconstruct, np.ndarray, (0,), b"b", state=(1, *state))


# An array of objects whose addresses are in the file: `pickle.load` makes it, and a look at it kills.
FORGED = Calls(np.dtype, "O8", False, True, state=(3, "|", None, None, None, -1, -1, 0))
FIELDS = np.dtype([("a", "O"), ("b", "i8")])


@pytest.mark.parametrize(
    "tree, reason",
    [
        (Disguise((1,), FORGED, False, b"A" * 8), "an array of objects that are given as bytes"),
        (Calls(multiarray.scalar, np.dtype("O"), b"A" * 8), "a scalar that is an object"),
        (np.zeros(2, FIELDS), "the dtype 'V16'"),
        (
            Calls(np.dtype, "i8", state=(3, "<", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0)),
            "a dtype with",
        ),
        (np.dtype("M8[s]"), "the dtype 'M8'"),
        (np.ndarray, "numpy.ndarray"),
        (Calls(np.ndarray, (2,)), "numpy.ndarray"),
        (Calls(codecs.encode, "a", "rot13"), "the encoding 'rot13'"),
        ({1, 2}, "set"),
        (pathlib.PurePosixPath("a"), r"pathlib\.PurePosixPath"),
    ],
)
def test_what_is_no_plain_data_is_refused(load, tree, reason):
    with pytest.raises(InputError, match=rf"gnd\.pkl names {reason}"):
        load(pickle.dumps(tree, 4))


def test_a_pickle_leaves_no_mark_on_the_next(load):
    # It sets a state on what it names, rather than on what that makes.
    with pytest.raises(InputError, match="damaged"):
        load(b"\x80\x02cnumpy\ndtype\n}U\x04nameU\x01xsb.")
    assert load(pickle.dumps(np.dtype("i4"), 2)) == np.int32


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html>404 Not Found</html>",
        pickle.dumps({"a": list(range(99))}, 4)[:-30],
        pickle.dumps(np.arange(9), 2).replace(b"i8", b"i9"),
        pickle.dumps(np.arange(9), 2).replace(b"K\x09\x85", b"K\x0a\x85"),
        b"\x80\x04]" + b"]" * 9999 + b"a" * 9999 + b".",
        b"\x80\x02P1\n.",
    ],
    ids=["empty", "a page", "cut off", "no dtype", "more elements than bytes", "deep", "persistent"],
)
def test_what_is_no_whole_pickle_is_refused(load, data):
    with pytest.raises(InputError, match=r"gnd\.pkl is damaged, or not a pickle \(.*\)\. Download it again"):
        load(data)


def test_data_may_be_nested_fifty_deep_whatever_pythons_limit_is(load):
    fifty = b"\x80\x04]" + b"]" * 50 + b"a" * 50 + b"."
    assert str(load(fifty)) == "[" * 51 + "]" * 51
    with pytest.raises(InputError, match="nested more than 50 deep"):
        load(fifty.replace(b"\x04]", b"\x04]]").replace(b".", b"a."))


def test_a_web_page_in_place_of_a_pickle_is_called_one(load):
    with pytest.raises(InputError, match=r"gnd\.pkl is damaged, or not a pickle .it is a web page in HTML"):
        load(b"<html>404 Not Found</html>")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"Cannot read .*nothing\.pkl \(No such file"):
        restricted_pickle.load(str(tmp_path / "nothing.pkl"))


def test_an_array_of_no_bytes_is_no_way_to_take_all_memory(tmp_path):
    numbers = b"<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    reconstruct = b"cnumpy.core.multiarray\n_reconstruct\nq\x00cnumpy\nndarray\nK\x00\x85C\x01b\x87Rq\x01"
    shape = b"\x8a\x05" + (2**31).to_bytes(5, "little") + b"\x85"
    dtype = b"cnumpy\ndtype\nX\x02\x00\x00\x00S0K\x00K\x01\x87R(K\x03X\x01\x00\x00\x00" + numbers
    array = reconstruct + b"(K\x01" + shape + dtype + b"\x89C\x00tb."
    (tmp_path / "bomb.pkl").write_bytes(b"\x80\x02" + array)
    with pytest.raises(InputError, match=r"bomb\.pkl.*a dtype of no bytes"):
        restricted_pickle.load(str(tmp_path / "bomb.pkl"))
