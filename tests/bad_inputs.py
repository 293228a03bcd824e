"""Bad input of every kind, made in a folder: what `refusals.py` gives to the commands."""

import gzip
import json
import pathlib
import shutil
import tarfile
import zipfile

import numpy as np
import tensorflow as tf

from tests.data import image_records, png, write_examples
from tfrank.data.records import write_shard

CONFIGS = {
    "none": "def get_config(loss=''):\n    pass\n",
    "cut_off": "def get_config(\n",
    "unknown_field": "from tfrank.configs import default\n\n\ndef get_config(loss=''):\n"
    "    config = default.get_config(loss)\n    config.train.stepps = 3\n    return config\n",
    "no_function": "x = 1\n",
    "missing_module": "import no_such_module\n",
}
# Of 12 images in 4 classes, which are beside the folder of the lists.
LINES = [f"../photos/c{label}/{number}.png,c{label}" for label in range(4) for number in range(3)]
LISTS = {
    "empty": [],
    "header_only": ["path,label"],
    "no_header": LINES,
    "no_label": ["path,class", *LINES],
    "misspelt": ["path,label,splt", *(f"{line},train" for line in LINES)],
    "short_line": ["path,label", LINES[0], "../photos/c1/1.png"],
    "twice": ["path,label,label", *(f"{line},1" for line in LINES)],
    "empty_box": ["path,label,x,y,w,h", *(f"{line},1,1,0,5" for line in LINES)],
    "word_in_box": ["path,label,x,y,w,h", *(f"{line},a,1,2,5" for line in LINES)],
    "half_a_box": ["path,label,x,y", *(f"{line},1,1" for line in LINES)],
    "elsewhere": ["path,label", *(line.replace("photos", "gone") for line in LINES)],
    "backslashes": ["path,label", *(line.replace("/", "\\") for line in LINES)],
    "open_quote": ["path,label", '"' + LINES[0], *LINES[1:]],
    "in_common": [
        "path,label,split",
        *(f"{line},train" for line in LINES[:6]),
        *(f"{line},test" for line in LINES[4:]),
    ],
    "minus_one": ["path,label", *LINES[:-1], "../photos/c3/2.png,-1"],
    "bad_role": ["path,label,split,role", *(f"{line},test,querry" for line in LINES)],
    "label_missing": ["path,label", *LINES[:-1], "../photos/c3/2.png,"],
}


def make(folder: pathlib.Path) -> None:
    """Makes all that needs no run."""
    (folder / "empty").mkdir()
    (folder / "file").write_text("in the way")
    for name in ("text.pth", "text.h5", "text.npz", "text.weights.h5", "text.keras", "text.bin"):
        (folder / name).write_text("no weights")
    (folder / "empty.pth").write_text("")
    np.savez(folder / "foreign.npz", a=np.zeros(3))
    for name, text in CONFIGS.items():
        (folder / f"{name}.py").write_text(text)
    _make_folders(folder)
    _make_lists(folder / "lists")
    _make_archives(folder)
    _make_shards(folder / "shards")
    _make_embeddings(folder)


def _make_folders(folder):
    names = [f"c{label}/{number}" for label in range(4) for number in range(3)]
    _images(folder / "photos", names)
    _images(folder / "three", [name for name in names if not name.startswith("c3")])
    _images(folder / "one_each", [f"c{label}/0" for label in range(4)])
    _images(folder / "loose", ["1", "2"])
    _images(folder / "half_divided", [f"{part}/{name}" for part in ("train", "val") for name in names])
    _images(folder / "one_bad", names)
    (folder / "one_bad" / "c0" / "1.png").write_text("no image")
    _images(folder / "all_bad", names)
    for path in (folder / "all_bad").rglob("*.png"):
        path.write_text("no image")
    (folder / "sop").mkdir()
    (folder / "sop" / "Ebay_train.txt").write_text("image_id class_id super_class_id path\n1 1 x a.jpg\n")
    (folder / "sop" / "Ebay_test.txt").write_text("")


def _images(folder, names):
    for number, name in enumerate(names):
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))


def _make_lists(folder):
    folder.mkdir()
    for name, lines in LISTS.items():
        (folder / f"{name}.csv").write_text("\n".join(lines))
    (folder / "latin.csv").write_bytes(
        "\n".join(["path,label", "../photos/c0/0.png,caf\xe9"]).encode("latin-1")
    )


def _make_archives(folder):
    for name in ("text.zip", "text.tar", "text.tar.gz", "text.rar"):
        (folder / name).write_text("no archive")
    for name, member in (("outside.zip", "../up.png"), ("absolute.zip", "/up.png")):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr(member, png(0))
    zipfile.ZipFile(folder / "empty.zip", "w").close()
    with zipfile.ZipFile(folder / "photos.zip", "w") as archive:
        for path in sorted((folder / "photos").rglob("*.png")):
            archive.write(path, path.relative_to(folder / "photos"))
    whole = (folder / "photos.zip").read_bytes()
    (folder / "cut_off.zip").write_bytes(whole[: len(whole) // 2])
    (folder / "flipped.zip").write_bytes(whole[:100] + bytes([whole[100] ^ 255]) + whole[101:])
    with tarfile.open(folder / "link.tar", "w") as archive:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)


def _make_shards(folder):
    folder.mkdir()
    (folder / "text.tfrecord").write_text("no record, but longer than the head of one")
    (folder / "empty.tfrecord").write_text("")
    (folder / "packed.tfrecord").write_bytes(gzip.compress(b"a record" * 20))
    write_shard(image_records(), str(folder / "whole.tfrecord"))
    write_examples(folder / "nameless.tfrecord", {"picture": png(0), "class": 1})
    write_examples(folder / "word.tfrecord", {"image/encoded": png(0), "image/class/label": b"cat"})
    write_examples(
        folder / "mixed.tfrecord",
        *({"image/encoded": png(0), "image/class/label": label} for label in (1, b"cat")),
    )
    with tf.io.TFRecordWriter(str(folder / "no_example.tfrecord")) as writer:
        writer.write(b"no example")


def _make_embeddings(folder):
    rows, labels = np.eye(4, dtype=np.float32), np.array([0, 0, 1, 1])
    arrays = {
        "good": {},
        "again": {},
        "no_embeddings": {"embeddings": None},
        "no_labels": {"labels": None},
        "flat": {"embeddings": rows[0]},
        "integers": {"embeddings": rows.astype(int)},
        "three_labels": {"labels": labels[:3]},
        "real_labels": {"labels": labels * 1.5},
        "words": {"labels": np.array(["a", "a", "b", "b"])},
        "objects": {"labels": np.array([0, 0, 1, None])},
        "none": {"embeddings": rows[:0], "labels": labels[:0]},
        "not_finite": {"embeddings": rows * np.nan},
        "same_ids": {"ids": np.array(list("aabc"))},
        "other_ids": {"ids": np.array(list("abcd"))},
        "all_different": {"labels": np.arange(4)},
        "other_classes": {"labels": np.array([0, 1, 1, 0])},
        "more": {"embeddings": np.eye(6, dtype=np.float32), "labels": np.array([0, 0, 1, 1, 2, 2])},
        "roles": {"role": np.array(["x"] * 4)},
        "queries": {"role": np.array(["query"] * 4)},
        "no_classes": {"labels": np.full(4, -1)},
        "groups": {"group": np.array([0, 0, 0, 1])},
    }
    for name, other in arrays.items():
        given = {"embeddings": rows, "labels": labels} | other
        path = folder / f"{name}_x.npz"
        np.savez(path, **{key: array for key, array in given.items() if array is not None})
    np.save(folder / "array_x.npz.npy", rows)
    (folder / "array_x.npz.npy").rename(folder / "array_x.npz")


def damage_evaluations(folder: pathlib.Path) -> None:
    """Copies of the evaluation `good_x_evaluation`, each with one file that is not as it was."""
    for name, file, text in (
        ("no_json", "metrics.json", "{"),
        ("no_text", "metrics.json", ""),
        ("other_schema", "metrics.json", '{"schema": 99}'),
        ("no_curves", "curves.json", "[1"),
        ("other_columns", "per_query/leave_one_out.csv", "x,y\n1"),
        ("no_queries", "per_query/leave_one_out.csv", None),
    ):
        shutil.copytree(folder / "good_x_evaluation", folder / name)
        _write(folder / name / file, text)


def damage_runs(folder: pathlib.Path) -> None:
    """Copies of the run `run`, each with something that is not as it was."""
    config = json.loads((folder / "run" / "config.json").read_text())

    def copy(name):
        shutil.copytree(folder / "run", folder / name)
        return folder / name

    for name, text in (
        ("cut_config", "{"),
        ("empty_config", ""),
        ("foreign_config", '{"a": 1}'),
        ("list_config", "[]"),
        ("edited_config", json.dumps(config | {"train": config["train"] | {"steps": "x"}})),
        ("other_loss", json.dumps(config | {"loss": {"name": "x"}})),
    ):
        _write(copy(name) / "config.json", text)
    shutil.rmtree(copy("no_checkpoint") / "checkpoints")
    for path in (copy("empty_checkpoint") / "checkpoints").glob("*ckpt*"):
        path.write_text("")
    for path in (copy("empty_shards") / "records").glob("test-*"):
        path.write_text("")
    for path in (copy("no_shards") / "records").glob("test-*"):
        path.unlink()
    _write(copy("no_index") / "records" / "test.index" / "index.json", "no index")
    _write(copy("no_records") / "records" / "prepared.json", "no json")
    shard = copy("flipped_record") / "records" / "test-00000-of-00004.tfrecord"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    _write(copy("empty_model") / "saved_model" / "saved_model.pb", None)
    _write(copy("cut_model") / "saved_model" / "saved_model.pb", "x")
    _write(copy("edited_model") / "saved_model" / "tfrank.json", "x")
    shutil.rmtree(copy("no_variables") / "saved_model" / "variables")


def _write(path, text):
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
