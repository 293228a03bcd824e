"""What a SavedModel would run: refused before it is loaded where it could do more than compute embeddings."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tfrank.common.checks import InputError
from tfrank.export.operations import check_operations

IMAGES = tf.TensorSpec([None, 8, 8, 3], tf.float32, name="images")


def save(folder, does=lambda: None, **parts):
    """A SavedModel that embeds, and whose signature does something else besides."""
    module = tf.Module()
    module.weight = tf.Variable(2.0)
    for name, part in parts.items():
        setattr(module, name, part)

    @tf.function(input_signature=[IMAGES])
    def serve(images):
        does()
        return {"embedding": module.weight * tf.reshape(images, [-1, 192])}

    tf.saved_model.save(module, str(folder), signatures={"serving_default": serve})
    return str(folder)


def edit(folder, change):
    """Changes the one graph of a SavedModel."""
    path = os.path.join(folder, "saved_model.pb")
    saved = saved_model_pb2.SavedModel()
    with open(path, "rb") as file:
        saved.ParseFromString(file.read())
    change(saved.meta_graphs[0])
    with open(path, "wb") as file:
        file.write(saved.SerializeToString())


def write():
    tf.io.write_file("mark", "it ran")


def in_a_loop_in_a_branch():
    def body(number):
        write()
        return number + 1

    tf.cond(tf.random.uniform([]) < 2, lambda: tf.while_loop(lambda n: n < 1, body, [0])[0], lambda: 0)


def prints_to_a_file():
    tf.print("it ran", output_stream="file://mark")


def saves_a_checkpoint():
    tf.raw_ops.SaveV2(prefix="mark", tensor_names=["x"], shape_and_slices=[""], tensors=[tf.ones([])])


def reads_records():
    return tf.data.TFRecordDataset("secret").reduce(0, lambda count, _: count + 1)


def maps_a_file():
    return tf.raw_ops.ImmutableConst(dtype=tf.float32, shape=[1], memory_region_name="secret")


def parses_by_a_file():
    return tf.io.decode_proto(b"", "x", [], [], descriptor_source="secret")


@pytest.mark.parametrize(
    ("does", "listed"),
    [
        (write, r"WriteFile \(may write files\)"),
        (in_a_loop_in_a_branch, r"WriteFile"),
        (prints_to_a_file, r"PrintV2 \(may write files\)"),
        (saves_a_checkpoint, r"SaveV2 \(may write files\)"),
        (reads_records, r"TFRecordDataset \(may read files\)"),
        (maps_a_file, r"ImmutableConst \(may read files\)"),
        (parses_by_a_file, r"DecodeProtoV2 \(may read files\)"),
        (lambda: tf.io.read_file("secret"), r"ReadFile \(may read files\)"),
        (lambda: tf.io.matching_files("/*"), r"MatchingFiles \(may read files\)"),
        (lambda: tf.py_function(write, [], []), r"EagerPyFunc \(runs Python\)"),
        (lambda: tf.numpy_function(lambda: np.ones([]), [], tf.float64), r"PyFunc\w* \(runs Python\)"),
        (lambda: tf.raw_ops.CollectiveReduceV2(
            input=1.0, group_size=1, group_key=1, instance_key=1, ordering_token=[], merge_op="Add",
            final_op="Id"), r"CollectiveReduceV2 \(speaks to other processes\)"),
    ],
)  # fmt: skip
def test_a_model_that_could_do_more_than_embed_is_refused(tmp_path, monkeypatch, does, listed):
    monkeypatch.chdir(tmp_path)
    folder = save("model", does)
    with pytest.raises(InputError, match=rf"model holds .*{listed}.*--trust_model") as caught:
        check_operations(folder)
    assert "\n" not in str(caught.value) and not os.path.exists("mark")


def test_what_no_signature_calls_counts_too(tmp_path):
    other = tf.function(lambda: write(), input_signature=[])
    with pytest.raises(InputError, match="WriteFile"):
        check_operations(save(tmp_path / "function", other=other))
    (tmp_path / "words.txt").write_text("a 1")
    table = tf.lookup.StaticHashTable(
        tf.lookup.TextFileInitializer(str(tmp_path / "words.txt"), tf.string, 0, tf.int64, 1, delimiter=" "),
        0,
    )
    with pytest.raises(InputError, match="InitializeTableFromTextFileV2"):
        check_operations(save(tmp_path / "table", table=table))


def test_the_functions_that_save_variables_are_not_for_anything_else(tmp_path):
    folder = save(tmp_path / "model")
    check_operations(folder)

    def call_the_saver(graph):
        name = next(f.signature.name for f in graph.graph_def.library.function if "save" in f.signature.name)
        function = next(f for f in graph.graph_def.library.function if "serve" in f.signature.name)
        function.node_def.add(name="again", op="StatefulPartitionedCall").attr["f"].func.name = name

    edit(folder, call_the_saver)
    with pytest.raises(InputError, match="SaveV2"):
        check_operations(folder)


def test_an_operation_that_is_not_known_is_refused(tmp_path):
    folder = save(tmp_path / "model")
    edit(folder, lambda graph: graph.graph_def.library.function[0].node_def.add(name="x", op="Mystery"))
    with pytest.raises(InputError, match=r"Mystery \(is not one of TensorFlow's\)"):
        check_operations(folder)


def test_a_function_that_is_named_like_an_operation_is_judged_as_that(tmp_path):
    folder = save(tmp_path / "model")

    def rename(graph):
        function = graph.graph_def.library.function.add()
        function.signature.name = "WriteFile"
        graph.graph_def.library.function[0].node_def.add(name="x", op="WriteFile")

    edit(folder, rename)
    with pytest.raises(InputError, match="WriteFile"):
        check_operations(folder)


def test_a_graph_of_tensorflow_1_is_looked_at_as_a_whole(tmp_path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        images = tf.compat.v1.placeholder(tf.float32, [None, 8, 8, 3])
        with tf.control_dependencies([tf.io.write_file("mark", "it ran")]):
            embedding = tf.reshape(images, [-1, 192])
        tf.compat.v1.saved_model.simple_save(
            session, str(tmp_path / "model"), {"images": images}, {"embedding": embedding}
        )
    with pytest.raises(InputError, match="WriteFile"):
        check_operations(str(tmp_path / "model"))


def test_what_models_of_images_need_is_let_through(tmp_path):
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [3.0, 4.0]), 0.0)
    model = keras.Sequential(
        [
            keras.Input([8, 8, 3]),
            keras.layers.RandomFlip(),
            keras.layers.Conv2D(2, 3),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Flatten(),
        ]
    )

    def much():
        images = tf.map_fn(lambda one: tf.image.decode_image(one, 3), tf.constant([b""]), tf.uint8)
        found = table.lookup(tf.constant([1]))
        drawn = tf.random.uniform([]) + tf.random.stateless_normal([], [1, 2]) + tf.random.normal([])
        return images, found, drawn

    check_operations(save(tmp_path / "much", much, table=table))
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serving_default", lambda images: model(images), input_signature=[IMAGES])
    archive.write_out(str(tmp_path / "archive"), verbose=False)
    check_operations(str(tmp_path / "archive"))
