"""Every code block of the README and of the pages in docs runs; notebooks run while the site is built."""

import os
import re
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.command_lines import ROOT, run, run_alone

README = (ROOT / "README.md").read_text()
# The later pages look at what the commands of the README left.
FIRST = ("training", "config", "losses", "evaluation", "production", "image_search", "scale", "data")
# Folders that the site's extension writes.
GENERATED = ("losses", "reference")
DOCS = ROOT / "docs"
PAGES = sorted(
    (page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).parts[0] not in GENERATED),
    key=lambda page: (FIRST.index(page.stem) if page.stem in FIRST else len(FIRST), page),
)
TEXTS = [README, *(page.read_text() for page in PAGES)]
BLOCKS = [block for text in TEXTS for block in re.findall(r"```(python|bash)\n(.*?)```", text, re.DOTALL)]
INSTALLS = [
    "pip install -e . && python train_main.py",
    "pip install -e '.[test]' && python -m tests",
]


def commands(block):
    return [line for line in block.splitlines() if line not in INSTALLS]


def test_the_first_screen_has_exactly_two_commands():
    screen = "\n".join(README.splitlines()[:20])
    assert [
        block.strip() for kind, block in re.findall(r"```(bash)\n(.*?)```", screen, re.DOTALL)
    ] == INSTALLS


def test_no_link_leads_nowhere():
    for folder, text in zip([ROOT, *(page.parent for page in PAGES)], TEXTS):
        words = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", words):
            target = (folder / link).resolve()
            # Tests of the site follow links to what it generates.
            assert target.exists() or target.parent in [DOCS / name for name in GENERATED], link


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 110


def write_omniglot(path):
    """A small archive in the official layout: noise for drawings."""
    noise, alphabets = np.random.default_rng(0), ("Balinese", "Korean", "Latin", "Early_Aramaic", "Greek")
    with zipfile.ZipFile(path, "w") as archive:
        for alphabet in alphabets:
            for name in (f"character{c:02d}/{c:04d}_{d:02d}.png" for c in range(1, 12) for d in range(1, 5)):
                drawing = noise.integers(0, 2, [105, 105, 1], np.uint8) * 255
                png = tf.io.encode_png(drawing).numpy()
                archive.writestr(f"images_background_small1/{alphabet}/{name}", png)


def write_photos(folder):
    """One folder a class: noise."""
    noise = np.random.default_rng(0)
    for number in range(24 * 5):
        place = folder / f"class {number % 24}"
        place.mkdir(parents=True, exist_ok=True)
        jpeg = tf.io.encode_jpeg(noise.integers(0, 256, [40, 60, 3], np.uint8)).numpy()
        (place / f"{number}.jpg").write_bytes(jpeg)


def write_pretrained(keras_home):
    """Keras' cache as its download of MobileNetV2 leaves it; the weights are random."""
    (keras_home / "models").mkdir(parents=True)
    name = "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224_no_top.h5"
    keras.applications.MobileNetV2(weights=None, include_top=False).save(keras_home / "models" / name)


@pytest.mark.slow
def test_the_blocks_run_one_after_another(tmp_path):
    write_omniglot(tmp_path / "images_background_small1.zip")
    write_photos(tmp_path / "photos")
    write_pretrained(tmp_path / "keras")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_HOME": str(tmp_path / "keras")}
    # The first command trains what the later ones evaluate; a few steps, and small photos, will do.
    blocks = [("bash", "python train_main.py"), *BLOCKS]
    for kind, block in blocks:
        for command in [block] if kind == "python" else commands(block):
            if kind == "python":
                arguments = ["-c", command]
            else:
                program, script, *flags = command.split()
                assert program in ("python", "tfrank")
                arguments = ["-m", "tfrank", script, *flags] if program == "tfrank" else [script, *flags]
                if script.endswith("_main.py"):
                    arguments = [str(ROOT / script), *flags, "--config.train.steps=3"]
                if "own_images" in command:
                    arguments += ["--config.data.image_size=64", "--config.evaluation.image_size=64"]
            # Keras reads KERAS_HOME, where these find pretrained weights, when it is imported.
            runs = run_alone if "own_images" in command else run
            ended = runs(*arguments, cwd=tmp_path, env=environment)
            assert ended.status == 0, (command, ended.errors)
