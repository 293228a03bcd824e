"""The first run: rendered letters; Latin, Greek, Cyrillic to train on, Armenian and Georgian to test on.

    python train_main.py

Takes less than a minute on two cores, without a download. Mean of seeds 0 to 4: Recall@1 85.8 %, mAP 63.5 %
(raw pixels 35.2 and 11.4; those of letters neither turned, scaled nor shifted 80.9 and 51.5).
"""

from tfrank.configs import default


def get_config(loss: str = ""):
    config = default.get_config(loss)
    config.name = "letters"
    config.data.name = "letters"
    config.data.train = ("Latin", "Greek", "Cyrillic")
    config.data.test = ("Armenian", "Georgian")
    config.data.image_size = 28
    config.data.classes_per_batch = 32
    config.data.examples_per_class = 4
    config.data.max_shift = 2
    config.model.preprocessing = "grey"
    # With 64 it is a fifth slower, for 1.1 points more mAP and the same Recall@1.
    config.model.filters = 48
    config.train.steps = 400
    config.train.learning_rate = 2e-3
    config.train.l2 = 4e-4
    config.train.checkpoint_every = 100
    config.evaluation.baselines = True
    return config
