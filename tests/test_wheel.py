"""The wheel, installed outside the checkout: its commands prepare, train on and evaluate photos there."""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import numpy as np
import pytest
from PIL import Image

from tests.command_lines import HANGS, ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The path of the built wheel."""
    folder = tmp_path_factory.mktemp("build")
    shutil.copytree(ROOT / "tfrank", folder / "tfrank", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    build = "import setuptools; setuptools.setup()"
    command = [sys.executable, "-c", build, "-q", "bdist_wheel", "-d", folder]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def bin_folder(wheel, tmp_path_factory):
    """The commands of a new environment that has the wheel and, to save time, this one's dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = [sys.executable, "-m", "pip", "--python", folder, "install", "-q", "--no-deps"]
    subprocess.run([*command, "--no-index", "--ignore-installed", wheel], check=True)
    return folder / "bin"


def ran(bin_folder: pathlib.Path, command: str, cwd: pathlib.Path) -> str:
    """What a command of the environment prints, once it has ended well."""
    program, *arguments = command.split()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [bin_folder / program, *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, timeout=HANGS, **pipes)
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def test_a_wheel_holds_what_the_code_reads_and_nothing_outside_tfrank(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"tfrank"}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tfrank").rglob("*") if path.is_file()}
    assert {name for name in sources if "__pycache__" not in name} <= set(names)


def test_the_three_commands_work_in_another_folder(bin_folder, tmp_path):
    draw = np.random.default_rng(0)
    for label in range(8):
        folder = tmp_path / "photos" / f"class {label}"
        folder.mkdir(parents=True)
        for number in range(6):
            pixels = draw.integers(32 * label, 32 * label + 32, size=(40, 50, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.jpg")
    records = "--output_dir=records --processes=1"
    ran(bin_folder, f"tfrank prepare --source=folder --source_dir=photos {records}", tmp_path)
    small = "--config.data.records=records --config.model.weights=random --config.train.steps=6"
    options = f"{small} --config.train.evaluate_every=3 --workdir=run"
    ran(bin_folder, f"tfrank train --config=configs/own_images_whole.py {options}", tmp_path)
    printed = ran(bin_folder, "tfrank eval --workdir=run --output_dir=again", tmp_path)
    assert "Recall@1" in printed
    assert (tmp_path / "run" / "evaluation" / "test" / "report.html").exists() and (
        tmp_path / "again" / "report.html"
    ).exists()
