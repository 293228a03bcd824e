"""What a search gains from labels: a simulated person confirms photos of 25 species, and others are searched.

    python -m benchmarks.improve --data=FOLDER [--folder=runs/improve]

FOLDER has `cub50.zip`. Its 2,889 photos go to one folder without labels, which is indexed as `tfrank photos`
does. For each seed, 10, 5 and 3 photos of each of the first 25 species, drawn at random, are labelled through
the server (POST /v1/labels), and a model is learnt as `tfrank improve` does, on the features that the index
is made of, so that nothing is embedded again.

Prints what `tfrank improve` measures and decides for the first seed; Recall@1 and mAP in percent of the other
25 species, whose 1,487 photos are searched among each other, by the pretrained network as it is and as the
index adapts it; and the mean gain of the seeds over the network as it is, with its 95 % interval (Student's
t).
"""

import dataclasses
import os
import tempfile
import zipfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from absl import app, flags
from fastapi.testclient import TestClient

from benchmarks import photos
from benchmarks.photos import METRICS, interval, measured
from tfrank.common import files
from tfrank.evaluation.array_checks import unit_rows
from tfrank.improve.groups import read_groups
from tfrank.improve.improvement import sentence
from tfrank.improve.training import compare, learner
from tfrank.search import building
from tfrank.search.adaptation import adapt
from tfrank.search.embedder import Embedder
from tfrank.search.images import listed_images
from tfrank.search.index import open_index
from tfrank.search.server.app import create_app
from tfrank.search.server.settings import Settings
from tfrank.search.start import export_start

flags.set_default(photos._FOLDER, "runs/improve")

SIZES = (10, 5, 3)
LABELLED = 25
TOKEN = "that of the simulated person"


def unpacked() -> dict[str, str]:
    """Writes the photos to one folder, if there are none; returns the species of each, by file name."""
    folder, species = os.path.join(photos._FOLDER.value, "photos"), {}
    with zipfile.ZipFile(os.path.join(photos._DATA.value, "cub50.zip")) as archive:
        for one in (name for name in archive.namelist() if name.endswith(".jpg")):
            *_, class_name, file_name = one.split("/")
            species[file_name] = class_name
            if not os.path.exists(path := os.path.join(folder, file_name)):
                os.makedirs(folder, exist_ok=True)
                files.replace_file(path, archive.read(one))
    return species


def confirm(client: TestClient, species: dict[str, str], chosen: list[str], seed: int, size: int) -> None:
    """Labels photos of each of the chosen species through the server, and no others."""
    draw, state = np.random.default_rng(seed), client.get("/v1/labels").json()
    asked = [{"group": group["label"], "label": None} for group in state["groups"]]
    for name in chosen:
        members = sorted(photo for photo, of in species.items() if of == name)
        asked.append({"ids": draw.permutation(members)[:size].tolist(), "label": name})
    version = state["labels_version"]
    for fields in asked:
        fields["labels_version"] = version
        answer = client.post("/v1/labels", json=fields, headers={"Authorization": f"Bearer {TOKEN}"})
        version = answer.raise_for_status().json()["labels_version"]


def main(_):
    species = unpacked()
    with tempfile.TemporaryDirectory() as place:
        improve(species, os.path.join(place, "index"), os.path.join(place, "start"))


def improve(species: dict[str, str], folder: str, start: str) -> None:
    """Makes the index and the model of its start in new folders, and prints what labels change."""
    export_start(start)
    source = os.path.join(photos._FOLDER.value, "photos")
    building.update(folder, Embedder(start), listed_images(source), root=source, quiet=True)
    index = open_index(folder)
    ids, roots = index.ids.tolist(), index.embeddings
    adapt(folder)
    adapted = open_index(folder).embeddings
    # The features of the network, of unit norm, as its roots leave the norm out.
    rows = unit_rows(roots**2)[0]
    names = sorted(set(species.values()))
    chosen, others = names[:LABELLED], names[LABELLED:]
    tested = np.array([species[key] in others for key in ids])
    numbers = np.array([names.index(species[key]) for key in ids])[tested]

    before, learning = measured(rows[tested], numbers), None
    for name, found in (("as it is", before), ("adapted", measured(adapted[tested], numbers))):
        print(name, *(f"{title} {found[metric]:.2%}" for metric, title in METRICS.items()), flush=True)
    for size in SIZES:
        gains = []
        for seed in photos._SEEDS.value:
            with TestClient(create_app(folder, Settings(token=TOKEN))) as client:
                confirm(client, species, chosen, seed, size)
            index = open_index(folder)
            with tempfile.TemporaryDirectory() as work:
                groups = read_groups(index, os.path.join(work, "photos.tfrecord"))
                learning = learning or learner(groups, work, index.files.path("models", index.version.model))
            features = rows[[ids.index(key) for key in groups.ids]]
            learning = dataclasses.replace(learning, features=features, groups=groups)
            if not gains:
                numbers_of = groups.records.label
                compared = compare(learning.before(), learning.parts(numbers_of), numbers_of)
                print(f"{size} photos of each: {sentence(compared, len(groups.names))}", flush=True)
            learning.learn(groups.records.label)
            after = measured(unit_rows(learning.head(rows[tested], training=False).numpy())[0], numbers)
            gains.append({metric: after[metric] - before[metric] for metric in METRICS})
        cells = (f"{title} {interval(np.array([one[m] for one in gains]))}" for m, title in METRICS.items())
        print(f"{size} photos of each: gain", *cells, flush=True)


if __name__ == "__main__":
    app.run(main)
