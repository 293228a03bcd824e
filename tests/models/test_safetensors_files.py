"""Files of weights that somebody forged are refused in one line, before they take memory."""

import json
import re
import struct
import zipfile

import h5py
import numpy as np
import pytest

from tfrank.common.checks import InputError
from tfrank.models import keras_files, pytorch_files, safetensors_files

GOOD = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}


def written(path, header, data=b"\0" * 48):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return str(path)


def test_a_good_file_is_read(tmp_path):
    path = written(tmp_path / "x", {**GOOD, "__metadata__": {"format": "pt"}})
    assert safetensors_files.read(path)["a"].shape == (2, 3)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"shape": [True, 6]}, "`a.shape[0]`: expected a whole number"),
        ({"shape": [1] * 65}, "`a.shape`: expected a list of at most 64"),
        ({"shape": [2.0, 3]}, "`a.shape[0]`: expected a whole number"),
        ({"shape": [-2, -3]}, "`a.shape[0]`: expected a whole number"),
        ({"shape": [2**60, 0], "data_offsets": [0, 0]}, "`a.shape[0]`: expected a whole number"),
        ({"shape": [2**50, 0], "data_offsets": [0, 0]}, "'a' lies beyond the end of the file"),
        ({"shape": "6"}, "`a.shape`: expected a list"),
        ({"dtype": ["F32"]}, "`a.dtype`: expected one of"),
        ({"dtype": "F8"}, "`a.dtype`: expected one of"),
        ({"data_offsets": [0, 24, 48]}, "`a.data_offsets`: expected a list of at least 2 of at most 2"),
        ({"data_offsets": [40, 64]}, "'a' lies beyond the end of the file"),
        ({"data_offsets": [False, 24]}, "`a.data_offsets[0]`: expected a whole number"),
        ({"more": 1}, "`a.more` is no field of it"),
    ],
)
def test_each_field_of_a_tensor_has_a_type_and_bounds(tmp_path, entry, reason):
    path = written(tmp_path / "x", {"a": GOOD["a"] | entry})
    with pytest.raises(InputError, match=re.escape(reason)) as caught:
        safetensors_files.read(path)
    assert "Download it again." in str(caught.value) and "\n" not in str(caught.value)


def test_tensors_that_lie_over_one_another_are_refused(tmp_path):
    many = {f"t{number}": GOOD["a"] for number in range(400)}
    with pytest.raises(InputError, match="'t1' lies over another tensor"):
        safetensors_files.read(written(tmp_path / "x", many))


@pytest.mark.parametrize("header", [b"", b"[]", b"{", b"null", b'{"a": 1}', b"[" * 90_000])
def test_a_header_that_is_no_object_is_refused(tmp_path, header):
    with pytest.raises(InputError, match="is not a safetensors file, or is damaged"):
        safetensors_files.read(written(tmp_path / "x", header))


@pytest.mark.parametrize("name", ["../../secret.safetensors", "/etc/passwd", 7, ["x"], ""])
def test_the_list_of_files_names_files_of_its_folder_only(tmp_path, name):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"a": name}}))
    with pytest.raises(InputError, match=r"`weight_map.a`: expected the name of a file, without a folder"):
        safetensors_files.names_of_files(str(tmp_path))


def test_compressed_weights_of_pytorch_that_unpack_to_more_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", b"\x80\x02}.")
        archive.writestr("x/data/0", b"\0" * 10_000_000)
    with pytest.raises(InputError, match="it unpacks to more than its own size"):
        pytorch_files.read_state_dict(str(tmp_path / "x.pth"))


def test_an_hdf5_file_whose_arrays_take_far_more_than_its_size_is_refused(tmp_path):
    path = str(tmp_path / "x.weights.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("layers/dense/vars/0", (2**30,), np.float32, chunks=True)
    with pytest.raises(ValueError, match="in memory it takes far more than its own size"):
        keras_files._groups(path, "network")
