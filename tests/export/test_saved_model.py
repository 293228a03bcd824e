"""The SavedModel in a process of its own, which has no tfrank."""

import io
import json
import os
import shutil
import subprocess
import sys

import keras
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
from sklearn.datasets import load_sample_image

from tests import reference
from tfrank.common.checks import InputError
from tfrank.common.normalize import l2_normalize
from tfrank.data.images import ImageLoader
from tfrank.data.prepare.image_files import checked_image
from tfrank.data.transforms import Transform
from tfrank.evaluation.postprocessing.multi_scale import multi_scale
from tfrank.evaluation.postprocessing.whitening import learn_whitening, whiten, whitening_layer
from tfrank.export import joined
from tfrank.export.fingerprint import fingerprint
from tfrank.export.saved_model import CONTENTS, export_saved_model, exported_contents
from tfrank.models.embedding import embedding_model

SIZE = 12
RNG = np.random.default_rng(0)
# Grey and in color, of the model's size and of another shape.
FILES = {
    "one.png": tf.io.encode_png(RNG.integers(0, 256, [SIZE, SIZE, 1], np.uint8)).numpy(),
    "two.jpeg": tf.io.encode_jpeg(RNG.integers(0, 256, [31, 20, 3], np.uint8)).numpy(),
}
BATCHES = [["one.png"], ["two.jpeg"], ["one.png", "two.jpeg", "one.png"]]

# Run in a folder with the files, their images as <file>.npy, and SavedModels, which are its arguments.
USER = """
import sys
sys.modules["tfrank"] = None
import json
import numpy as np
import tensorflow as tf

for model in sys.argv[2:]:
    signatures = tf.saved_model.load(model).signatures
    results = {}
    for number, names in enumerate(json.loads(sys.argv[1])):
        images = tf.constant(np.stack([np.load(f"{name}.npy") for name in names]))
        encoded = tf.stack([tf.io.read_file(name) for name in names])
        results[f"serving_default {number}"] = signatures["serving_default"](images=images)["embedding"]
        results[f"encoded {number}"] = signatures["encoded"](bytes=encoded)["embedding"]
    np.savez(f"{model}.npz", **results)
"""


def serve(encoded):
    return ImageLoader(transform=Transform(size=SIZE)).serve(encoded)


def small_model(seed):
    keras.utils.set_random_seed(seed)
    model = embedding_model(image_size=SIZE, preprocessing="rgb", blocks=2, filters=4, embedding_dim=5)
    # Moves the statistics of batch norm away from where they begin.
    model(RNG.uniform(0, 255, [8, SIZE, SIZE, 3]), training=True)
    return model


def unit_embeddings(model, images):
    embeddings = model(images, training=False).numpy()
    return embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)


def served(folder, images):
    return tf.saved_model.load(str(folder)).signatures["serving_default"](images=tf.constant(images))


@pytest.fixture(scope="module")
def images():
    """The images in the files, as the SavedModel takes them."""
    return np.stack([serve(tf.constant(file)) for file in FILES.values()]).astype("float32")


# Of 5 numbers the 3 in which unit embeddings about a direction vary most.
WHITENING = learn_whitening(tf.math.l2_normalize(1 + RNG.normal(size=[30, 5]), axis=1).numpy(), dims=3)


def whitened_by(whitening, function):
    return lambda images: whitening_layer(whitening)(l2_normalize(function(images)))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model and its SavedModel, to be copied."""
    folder, model = tmp_path_factory.mktemp("exported") / "model", small_model(seed=0)
    export_saved_model(model, str(folder), serve)
    return model, folder


@pytest.fixture
def folder(exported, tmp_path):
    """A copy of the SavedModel, that may be replaced."""
    return shutil.copytree(exported[1], tmp_path / "model")


def test_a_process_without_tfrank_gets_the_same_embedding_from_images_and_from_files(
    exported, folder, images, tmp_path
):
    model, _ = exported
    export_saved_model(model, str(tmp_path / "whitened"), serve, whitened_by(WHITENING, model))
    for (name, file), image in zip(FILES.items(), images):
        (tmp_path / name).write_bytes(file)
        np.save(tmp_path / f"{name}.npy", image)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-c", USER, json.dumps(BATCHES), "model", "whitened"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    embeddings = unit_embeddings(model, images)
    for export, rows in {"model": embeddings, "whitened": whiten(embeddings, WHITENING)}.items():
        wanted = dict(zip(FILES, rows))
        with np.load(tmp_path / f"{export}.npz") as results:
            for number, names in enumerate(BATCHES):
                from_images, from_files = results[f"serving_default {number}"], results[f"encoded {number}"]
                np.testing.assert_allclose(from_images, from_files, atol=1e-5)
                np.testing.assert_allclose(from_images, [wanted[name] for name in names], atol=1e-5)
                np.testing.assert_allclose(np.linalg.norm(from_files, axis=1), 1, atol=1e-6)
                assert from_images.dtype == from_files.dtype == np.float32


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_that_a_phone_turned_has_the_embedding_of_its_record(turning_model, orientation):
    exif, file = PIL.Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    PIL.Image.fromarray(load_sample_image("china.jpg")).save(file, "JPEG", quality=90, exif=exif.tobytes())
    record = checked_image(file.getvalue(), shorter_side=300).encoded
    one, other = turning_model.signatures["encoded"](bytes=tf.constant([file.getvalue(), record]))[
        "embedding"
    ]
    assert np.dot(one, other) > 0.999


@pytest.fixture(scope="module")
def turning_model(tmp_path_factory):
    """A SavedModel whose embedding is the image itself, about its mean, as different as turned photos are."""
    folder = str(tmp_path_factory.mktemp("turning") / "model")

    def pixels(images):
        return tf.reshape(images - tf.reduce_mean(images, [1, 2], keepdims=True), [-1, 3 * SIZE**2])

    export_saved_model(small_model(seed=0), folder, serve, pixels)
    return tf.saved_model.load(folder)


def test_both_signatures_give_only_the_embedding(exported):
    signatures = tf.saved_model.load(str(exported[1])).signatures
    for name, argument in {"serving_default": "images", "encoded": "bytes"}.items():
        assert list(signatures[name].structured_outputs) == ["embedding"]
        assert list(signatures[name].structured_input_signature[1]) == [argument]


def test_exporting_over_a_folder_replaces_it_also_if_its_path_ends_with_a_slash(images, folder, tmp_path):
    (folder / "left over").write_text("of something else")
    model = small_model(seed=1)
    export_saved_model(model, f"{folder}/", serve)
    np.testing.assert_allclose(served(folder, images)["embedding"], unit_embeddings(model, images), atol=1e-5)
    assert not (folder / "left over").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_exporting_over_a_link_replaces_the_link_and_leaves_what_it_led_to(images, folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    model = small_model(seed=1)
    export_saved_model(model, str(tmp_path / "link"), serve)
    served_now = served(tmp_path / "link", images)["embedding"]
    np.testing.assert_allclose(served_now, unit_embeddings(model, images), atol=1e-5)
    assert (folder / "saved_model.pb").exists()


def test_an_export_that_fails_leaves_the_one_before(images, exported, folder):
    with pytest.raises(ZeroDivisionError):
        export_saved_model(small_model(seed=1), str(folder), lambda encoded: 1 / 0)
    model, _ = exported
    wrong = whitened_by(learn_whitening(RNG.normal(size=[30, 4])), model)
    with pytest.raises(InputError, match=r"^The whitening is for embeddings of 4 dimensions; these have 5"):
        export_saved_model(model, str(folder), serve, wrong)
    np.testing.assert_allclose(served(folder, images)["embedding"], unit_embeddings(model, images), atol=1e-5)


@pytest.fixture(scope="module")
def any_size():
    """A model of images of any size, and the loader that leaves them theirs."""
    keras.utils.set_random_seed(0)
    options = dict(preprocessing="rgb", blocks=2, filters=4, pooling="average", embedding_dim=5)
    loader = ImageLoader(transform=Transform(size=SIZE), full_size=True)
    return embedding_model(image_size=None, **options), loader


def test_a_model_of_any_size_embeds_files_one_by_one_at_their_own(any_size, tmp_path):
    model, loader = any_size
    export_saved_model(model, str(tmp_path / "model"), loader.serve)
    signatures = tf.saved_model.load(str(tmp_path / "model")).signatures
    files = list(FILES.values())
    got = signatures["encoded"](bytes=tf.constant(files))["embedding"]
    for file, embedding in zip(files, got):
        image = tf.cast(loader.serve(tf.constant(file)), tf.float32)[None]
        np.testing.assert_allclose(unit_embeddings(model, image)[0], embedding, atol=1e-5)
        np.testing.assert_allclose(
            signatures["serving_default"](images=image)["embedding"][0], embedding, atol=1e-5
        )


SCALES = (1.0, 0.5)


def test_a_whitened_model_at_several_scales_is_served_as_it_is_resized_by_pillow(any_size, tmp_path):
    model, loader = any_size
    function = multi_scale(lambda images: model(images, training=False), SCALES)
    export_saved_model(model, str(tmp_path / "model"), loader.serve, whitened_by(WHITENING, function))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    files = list(FILES.values())
    from_files = loaded.signatures["encoded"](bytes=tf.constant(files))["embedding"]
    for file, embedding in zip(files, from_files):
        image = tf.cast(loader.serve(tf.constant(file)), tf.float32)[None]
        wanted = reference.multi_scale(model, image.numpy(), SCALES)
        assert np.abs(wanted - unit_embeddings(model, image)).max() > 1e-2
        np.testing.assert_allclose(embedding, whiten(wanted, WHITENING)[0], atol=2e-5)
        from_image = loaded.signatures["serving_default"](images=image)["embedding"][0]
        np.testing.assert_allclose(from_image, embedding, atol=1e-5)
    for signature in loaded.signatures.values():
        assert signature.structured_outputs["embedding"].shape.as_list() == [None, 3]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_what_is_served_is_of_unit_norm_whatever_the_function_gives_and_zeros_stay_zeros(
    any_size, tmp_path, dtype
):
    model, loader = any_size

    def first_pixel(images):
        return tf.cast(images[:, 0, 0], dtype)

    export_saved_model(model, str(tmp_path / "model"), loader.serve, first_pixel)
    signatures = tf.saved_model.load(str(tmp_path / "model")).signatures
    images = np.array([[[[0, 0, 0]]], [[[30, 0, 40]]]], np.uint8)
    wanted = [[0, 0, 0], [0.6, 0, 0.8]]
    from_images = signatures["serving_default"](images=tf.cast(images, tf.float32))["embedding"]
    np.testing.assert_allclose(from_images, wanted, atol=1e-6)
    from_files = signatures["encoded"](bytes=tf.stack([tf.io.encode_png(one) for one in images]))["embedding"]
    np.testing.assert_allclose(from_files, wanted, atol=1e-6)
    assert from_images.dtype == from_files.dtype == tf.float32


def test_an_embedding_in_half_precision_is_served_in_float32(images, tmp_path):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = small_model(seed=0)
    finally:
        keras.config.set_dtype_policy(before)
    export_saved_model(model, str(tmp_path / "model"), serve)
    embedding = served(tmp_path / "model", images)["embedding"]
    assert embedding.dtype == tf.float32
    np.testing.assert_allclose(np.linalg.norm(embedding, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize(("network", "folder"), [("x/joined", "x/joined"), ("x/joined/inside", "x/joined")])
def test_a_joined_model_does_not_replace_what_it_is_made_of(network, folder):
    with pytest.raises(InputError, match=r"joined would replace .* which it is made of"):
        joined.join(network, "head", folder)
    with pytest.raises(InputError, match="which it is made of"):
        joined.join("network", network, folder)


def test_a_model_that_is_cut_short_gives_the_first_dimensions_from_images_and_from_files(
    exported, images, tmp_path
):
    model, whole = exported
    short = joined.shorten(str(whole), 2, str(tmp_path / "short"))
    first = unit_embeddings(model, images)[:, :2]
    expected = first / np.linalg.norm(first, axis=1, keepdims=True)
    np.testing.assert_allclose(served(short, images)["embedding"], expected, atol=1e-6)
    encoded = tf.saved_model.load(short).signatures["encoded"](bytes=tf.constant(list(FILES.values())))
    np.testing.assert_allclose(encoded["embedding"], expected, atol=1e-6)
    again = joined.shorten(str(whole), 2, str(tmp_path / "again"))
    assert fingerprint(short) == fingerprint(again) != fingerprint(str(whole))


def test_a_model_that_is_cut_short_states_the_matches_that_were_learnt_for_its_dimensions(folder, tmp_path):
    matches = {"curve": "whole", "trained": [], "dims": {"2": {"curve": "of 2"}}}
    (folder / CONTENTS).write_text(json.dumps({"mirror": True, "matches": matches}))
    stated = [exported_contents(joined.shorten(str(folder), dim, str(tmp_path / f"{dim}"))) for dim in (2, 3)]
    assert stated[0]["matches"]["curve"] == "of 2" and stated[0]["mirror"] is True
    assert stated[1]["matches"] is None


@pytest.mark.parametrize("dim", [0, 5, 6])
def test_a_model_is_cut_to_fewer_dimensions_than_it_has(folder, tmp_path, dim):
    with pytest.raises(
        InputError, match=r"`dim`\. Expected (an integer of at least 1|less than the 5 dimensions)"
    ):
        joined.shorten(str(folder), dim, str(tmp_path / "short"))
    assert not (tmp_path / "short").exists()
