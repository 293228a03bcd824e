"""PyTorch's files read without PyTorch: what they hold, and what they may not do."""

import os
import pickle

import numpy as np
import pytest

from tests.models import pth
from tfrank.common.checks import InputError
from tfrank.models.pytorch_files import read_state_dict

RANDOM = np.random.default_rng(0)
STATE = {
    "conv1.weight": RANDOM.normal(size=[2, 3, 1, 1]).astype("float32"),
    "bn1.running_var": RANDOM.normal(size=[2]).astype("float32"),
    "scalar": np.float32(2.5),
    "empty": np.zeros([0, 3], "float32"),
}


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def assert_equal(read, wanted):
    assert list(read) == list(wanted)
    for key, array in wanted.items():
        np.testing.assert_array_equal(read[key], array)
        assert read[key].dtype == np.asarray(array).dtype and read[key].shape == np.shape(array)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_state_dict_is_read(legacy, tmp_path):
    pth.save_state(tmp_path / "net.pth", STATE, legacy=legacy)
    assert_equal(read_state_dict(str(tmp_path / "net.pth")), STATE)


@pytest.mark.parametrize("kind", ["f8", "f2", "i8"])
def test_other_numbers_keep_their_type(kind, tmp_path):
    state = {"x": np.arange(6).reshape(2, 3).astype(kind)}
    pth.save_state(tmp_path / "net.pth", state)
    assert_equal(read_state_dict(str(tmp_path / "net.pth")), state)


def test_bfloat16_is_the_upper_half_of_float32(tmp_path):
    upper = np.array([0x3F80, 0xC020, 0x0000], "<u2")
    tree = pth.mapping({"x": pth.tensor("0", upper, storage="BFloat16Storage")})
    pth.write_zip(tmp_path / "net.pth", tree, {"0": upper.tobytes()})
    assert_equal(read_state_dict(str(tmp_path / "net.pth")), {"x": np.array([1, -2.5, 0], "float32")})


def test_views_of_a_storage_and_transposed_tensors_are_read(tmp_path):
    base = np.arange(12, dtype="float32")
    tree = pth.mapping(
        {
            "part": pth.tensor("0", base, offset=4, shape=[2, 3], strides=[3, 1]),
            "transposed": pth.tensor("0", base, shape=[4, 3], strides=[1, 4]),
        }
    )
    pth.write_zip(tmp_path / "net.pth", tree, {"0": base.tobytes()}, root="net")
    read = read_state_dict(str(tmp_path / "net.pth"))
    assert_equal(read, {"part": base[4:10].reshape(2, 3), "transposed": base.reshape(3, 4).T})


@pytest.mark.parametrize("wrapper", ["state_dict", "model_state_dict", "model"])
def test_a_checkpoint_with_the_names_of_data_parallel_is_read(wrapper, tmp_path):
    state = {f"module.{key}": array for key, array in STATE.items()}
    pth.save_state(
        tmp_path / "net.pth", state, wrap=lambda tree: pth.mapping({"note": pth.text("best"), wrapper: tree})
    )
    assert_equal(read_state_dict(str(tmp_path / "net.pth")), STATE)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    "function, named",
    [(os.system, "posix.system"), (eval, "__builtin__.eval"), (getattr, "__builtin__.getattr")],
)
def test_a_file_that_calls_something_is_refused_and_nothing_is_run(function, named, legacy, tmp_path):
    mark = tmp_path / "mark"
    arguments = {
        "system": [f"touch {mark}"],
        "eval": [f"open({str(mark)!r}, 'w')"],
        "getattr": ["", "join"],
    }[function.__name__]
    call = pickle.dumps(Calls(function, *arguments), protocol=2)[2:-1]
    save = pth.write_legacy if legacy else pth.write_zip
    save(tmp_path / "evil.pth", pth.mapping({"conv1.weight": call}), {})
    with pytest.raises(InputError, match=f"evil.pth names the Python object {named}.*nothing of it was run"):
        read_state_dict(str(tmp_path / "evil.pth"))
    assert not mark.exists()


def test_a_whole_module_is_refused_with_what_to_do(tmp_path):
    tree = pth.name("torchvision.models.resnet", "ResNet") + b")\x81"
    pth.write_zip(tmp_path / "net.pth", tree, {})
    with pytest.raises(InputError, match=r"torchvision\.models\.resnet\.ResNet.*model\.state_dict\(\)"):
        read_state_dict(str(tmp_path / "net.pth"))


@pytest.mark.parametrize("legacy", [False, True])
def test_a_file_cut_off_anywhere_is_refused(legacy, tmp_path):
    pth.save_state(tmp_path / "net.pth", STATE, legacy=legacy)
    whole = (tmp_path / "net.pth").read_bytes()
    for length in range(0, len(whole) - 1, 7):
        (tmp_path / "cut.pth").write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"cut\.pth"):
            read_state_dict(str(tmp_path / "cut.pth"))


@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"\x80\x02}q\x00.", b"PK\x03\x04", pickle.dumps([1]), b"\x89HDF\r\n"]
)
def test_other_files_are_refused(content, tmp_path):
    (tmp_path / "net.pth").write_bytes(content)
    with pytest.raises(InputError, match=r"net\.pth is not a PyTorch file"):
        read_state_dict(str(tmp_path / "net.pth"))


def test_a_missing_file_and_a_file_without_tensors_are_named(tmp_path):
    with pytest.raises(InputError, match=r"net\.pth cannot be read \(No such file"):
        read_state_dict(str(tmp_path / "net.pth"))
    pth.write_zip(tmp_path / "net.pth", pth.mapping({"epoch": pth.text("3")}), {})
    with pytest.raises(InputError, match=r"contains no state dict.*Save model\.state_dict\(\)"):
        read_state_dict(str(tmp_path / "net.pth"))


@pytest.mark.parametrize(
    "place",
    [
        dict(offset=1),
        dict(offset=-1),
        dict(shape=[3, 3], strides=[3, 1]),
        dict(shape=[2, 3], strides=[3, 2]),
        dict(shape=[2, 3], strides=[-3, 1]),
        dict(shape=[1000, 1000, 1000], strides=[0, 0, 0]),
        dict(shape=[6], strides=[1, 1]),
    ],
)
def test_a_tensor_outside_its_storage_is_refused(place, tmp_path):
    array = np.zeros([2, 3], "float32")
    pth.write_zip(
        tmp_path / "net.pth", pth.mapping({"x": pth.tensor("0", array, **place)}), {"0": array.tobytes()}
    )
    with pytest.raises(InputError, match="damaged"):
        read_state_dict(str(tmp_path / "net.pth"))
