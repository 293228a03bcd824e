"""Other formats embed as the SavedModel does, or are not written; the model card says what the model is."""

import json
import pathlib

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import tensorflow as tf
from sklearn.datasets import load_sample_image

from tests.command_lines import ROOT
from tests.search import write_model
from tfrank.common.checks import InputError
from tfrank.configs import landmarks, own_embeddings, own_images_whole, sections, vgg_face2
from tfrank.configs.fields import tree
from tfrank.data.transforms import FITS
from tfrank.export import formats, model_card
from tfrank.run.datasets import build_test_loader


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    return str(write_model(tmp_path_factory.mktemp("run") / "saved_model", dim=16))


@pytest.mark.parametrize("name", formats.FORMATS)
def test_every_format_embeds_as_the_saved_model_does(saved_model, tmp_path, name):
    pytest.importorskip("tf2onnx", reason="extra onnx") if name == "onnx" else None
    written = formats.write(saved_model, str(tmp_path), name)
    assert written.cosine >= formats.FORMATS[name].least_cosine and written.least <= written.cosine
    images = np.random.default_rng(1).uniform(0, 255, (5, 16, 16, 3)).astype(np.float32)
    found = formats.FORMATS[name].embed((tmp_path / formats.FORMATS[name].file).read_bytes(), images)
    assert found.shape == (5, 16)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


def test_a_format_that_embeds_differently_is_not_written(saved_model, tmp_path, monkeypatch):
    wrong = formats.FORMATS["tflite"]._replace(
        embed=lambda encoded, images: -formats._embed_by_tflite(encoded, images)
    )
    monkeypatch.setitem(formats.FORMATS, "tflite", wrong)
    with pytest.raises(InputError, match=r"the mean cosine .* is -1.0000 over 64 images.* It is not written"):
        formats.write(saved_model, str(tmp_path), "tflite")
    assert not list(tmp_path.iterdir())
    # Who has given images is not told to give some.
    with pytest.raises(InputError, match=r"over 3 images, .*Take a more exact format") as error:
        formats.write(saved_model, str(tmp_path), "tflite", formats.random_inputs(3, (16, 16, 3)))
    assert "--images" not in str(error.value)


def test_formats_after_one_that_misses_its_bound_are_written(saved_model, tmp_path, monkeypatch):
    wrong = formats.FORMATS["tflite_int8"]._replace(least_cosine=1.1)
    monkeypatch.setitem(formats.FORMATS, "tflite_int8", wrong)
    missed, written = formats.write_all(saved_model, str(tmp_path), ["tflite_int8", "tflite"])
    assert isinstance(missed, formats.NotWritten) and "model_int8.tflite embeds differently" in str(missed)
    assert [path.name for path in tmp_path.iterdir()] == ["model.tflite"] == [pathlib.Path(written.path).name]


PHOTO = PIL.Image.fromarray(load_sample_image("china.jpg"))
PARTLY_CLEAR = PHOTO.copy()
PARTLY_CLEAR.putalpha(PHOTO.convert("L"))


@pytest.mark.parametrize(
    "crop, resize, fit",
    [
        *(("warp", 72, "centre"), ("warp", 0, "centre"), ("random_part", 72, "centre")),
        *(("scaled", 72, fit) for fit in FITS),
    ],
)
@pytest.mark.parametrize("size, photo, format", [(64, PHOTO, "jpeg"), (80, PARTLY_CLEAR, "png")])
def test_the_code_of_a_card_prepares_an_image_as_the_model_does(
    tmp_path, monkeypatch, crop, resize, fit, size, photo, format
):
    monkeypatch.chdir(tmp_path)
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    photo.save("photo.jpg", format, quality=95, exif=exif)
    lines = model_card.preparation({"image_size": 64, "resize": resize, "crop": crop, "fit": fit}, size)
    start = lines.index("```python") + 1
    code = lines[start : lines.index("```")]
    assert len(code) == 5
    found = {"PIL": PIL, "np": np}
    exec("\n".join(code), found)
    data = sections.Data(image_size=64, resize=resize, crop=crop, fit=fit)
    loader = build_test_loader(data, sections.Evaluation(image_size=size))
    served = loader.serve(tf.io.read_file("photo.jpg")).numpy().astype(float)
    assert found["images"].shape == (1, size, size, 3)
    assert np.abs(found["images"][0] - served).mean() < 3


def test_what_is_no_model_or_no_format_is_named(saved_model, tmp_path):
    with pytest.raises(InputError, match="is not a SavedModel of an embedding model"):
        formats.write(str(tmp_path), str(tmp_path), "tflite")
    with pytest.raises(InputError, match="onnx"):
        formats.write(saved_model, str(tmp_path), "onxx")


def test_a_model_that_writes_a_file_is_converted_only_if_it_is_trusted(tmp_path, monkeypatch):
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 3], tf.float32)])
        def embed(self, images):
            tf.io.write_file("mark", "it ran")
            return {"embedding": tf.math.l2_normalize(images[:, 0, 0], 1)}

    monkeypatch.chdir(tmp_path)
    model = Model()
    tf.saved_model.save(model, "model", signatures=model.embed)
    with pytest.raises(InputError, match="may write files"):
        formats.write("model", ".", "tflite")
    assert not (tmp_path / "mark").exists()
    assert formats.image_size("model", trusted=True) == (8, 8)


def test_a_card_names_data_model_and_results(tmp_path):
    config = own_images_whole.get_config()
    config.data.source = "/home/someone/photos"
    (tmp_path / "config.json").write_text(json.dumps(tree(config)))
    (tmp_path / "metrics.json").write_text(
        json.dumps({"start": {"recall_at_1": 0.5}, "trained": {"map": 0.25}})
    )
    # An evaluation of other images, or with whitening, says nothing of the model of the run.
    for name, trained, low in (("other", 0.26, 0.1), ("test", 0.25, 0.41)):
        evaluation = tmp_path / "evaluation" / name
        evaluation.mkdir(parents=True)
        intervals = {"recall_at_1": {"start": [0.5, low, 0.59]}, "map": {"trained": [trained, None, None]}}
        results = {"models": {"leave_one_out": intervals}, "rankings": {"leave_one_out": {"map": trained}}}
        (evaluation / "metrics.json").write_text(json.dumps(results | {"about": {"images": name}}))
    path = model_card.write(str(tmp_path), str(tmp_path / "out"), license_name="CC-BY-4.0")
    card = pathlib.Path(path).read_text()
    assert "| start | 0.500 (0.410 to 0.590) |  |" in card and "| trained |  | 0.250 |" in card
    assert "In brackets: the 95 % interval" in card and "- **Images**: test\n" in card
    assert "- **Licence**: CC-BY-4.0" in card and "- **Training data**: photos (folder)" in card
    assert "/home" not in card
    (tmp_path / "metrics.json").write_text("{")
    with pytest.raises(InputError, match=r"metrics.json is damaged"):
        model_card.write(str(tmp_path), str(tmp_path))


def test_the_card_of_a_head_that_is_joined_with_a_network_names_both(tmp_path):
    config = own_embeddings.get_config()
    (tmp_path / "config.json").write_text(json.dumps(tree(config)))
    (tmp_path / "metrics.json").write_text(json.dumps({"trained": {"map": 0.25}}))
    card = pathlib.Path(model_card.write(str(tmp_path), str(tmp_path), after="runs/birds/saved_model/"))
    assert "birds, and a head on its embeddings" in card.read_text()
    assert "images as that model takes them" in card.read_text()


def test_the_card_of_landmarks_has_their_metric_their_size_and_their_boxes():
    config = tree(landmarks.get_config())
    card = model_card.text(config, {"trained": {"trapezoid_map": 0.6}}, {}, {}, "")
    assert "|  | mAP |" in card and "| trained | 0.600 |" in card
    assert "- **Input**: RGB images of any size\n" in card and "keep its size" in card
    assert "The model has seen the box of each image that has one: cut it out first." in card
    config = tree(vgg_face2.get_config("pnp"))
    assert "extended by 30% of its sides: cut it out first." in model_card.text(config, {}, {}, {}, "")


def test_images_to_compare_on_are_those_of_the_folder(tmp_path):
    with pytest.raises(InputError, match="--images has no JPEG or PNG files"):
        formats.images_of(str(tmp_path), (16, 16))
    (tmp_path / "a.jpg").write_text("text")
    with pytest.raises(InputError, match=r"a.jpg cannot be read"):
        formats.images_of(str(tmp_path), (16, 16))
    (tmp_path / "a.jpg").unlink()
    (tmp_path / "b.png").write_bytes((ROOT / "docs" / "report.png").read_bytes())
    assert formats.images_of(str(tmp_path), (16, 20)).shape == (1, 16, 20, 3)
