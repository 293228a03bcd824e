"""How images of many proportions become squares: tried on training images, by the pretrained network."""

import copy

import numpy as np

from tfrank.configs.default import Config
from tfrank.data.index import RecordIndex, select
from tfrank.data.transforms import FITS
from tfrank.evaluation.ranking_results import leave_one_out
from tfrank.models.weights import load_backbone_weights
from tfrank.run.embedding import embed_all, embed_fn
from tfrank.run.experiment import build_model

# Images of the trial: of each class at most so many, and so many in all. Classes are drawn at random.
OF_A_CLASS, TRIAL_IMAGES = 30, 600
# Whole images are taken if their mAP is so many times as high. Less says little on other classes: of
# Caltech-101 it was 82.1 to 81.6 % in training and the other way round at test; of cars 21.0 to 18.1 %.
CLEARLY = 1.03


def choose_fit(config: Config, images: RecordIndex) -> str:
    """Returns "whole" if pretrained features rank whole images clearly better; prints the mAP of both.

    Weights that are random rank by colours alone, so that "centre" is returned for them without a trial.

    Args:
        config: the config of a run.
        images: the training images.
    """
    if config.model.from_random_weights:
        return FITS[0]
    config, drawn = copy.deepcopy(config), _some_classes(images, seed=config.seed)
    config.model.head = "none"
    model, found = build_model(config), {}
    load_backbone_weights(model, config.model.weights)
    function = embed_fn(model)
    for config.data.fit in FITS:
        embeddings, labels = embed_all(config.data, config.evaluation, function, drawn)
        found[config.data.fit] = leave_one_out(embeddings, labels, [1])["map"]
    best = "whole" if found["whole"] > CLEARLY * found["centre"] else "centre"
    words = {"centre": "the central squares", "whole": "the whole images, squeezed into squares"}
    print(
        f"The model sees {words[best]}: of {len(drawn):,} training images, mAP of the pretrained features is"
        f" {found['centre']:.1%} for central squares and {found['whole']:.1%} for whole images, which are"
        f" taken if it is {CLEARLY - 1:.0%} higher."
    )
    return best


def _some_classes(images, *, seed):
    """Returns images of classes drawn at random, of two classes at least."""
    draw = np.random.default_rng(seed)
    rows, found = draw.permutation(len(images)), []
    labels = images.label[rows]
    for name in draw.permutation(np.unique(labels)):
        found.append(rows[labels == name][:OF_A_CLASS])
        if len(found) > 1 and sum(map(len, found)) >= TRIAL_IMAGES:
            break
    return select(images, np.sort(np.concatenate(found)))
