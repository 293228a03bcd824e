"""Your own TFRecords, made elsewhere: shards of `tf.train.Example` with an image and an integer class.

    python train_main.py --config=configs/own_records.py --config.data.records=FOLDER

The training set is the files train-* of the folder, the test set test-*. For another pattern, set
--config.data.train=part-0*. No class may be in both. The features are named as in TensorFlow's published data
sets, image/encoded and image/class/label; for other names, set --config.data.features.label=my/label. One
scan indexes the shards and does not change them. Paths may be on Google Cloud Storage (gs://).

Needs resnet50-0676ba61.pth, see `tfrank.configs.papers`, and a GPU. The settings are PNP's, or RLL's with
batches of 22 x 3 for `:rll`. The length with PNP's settings, 20 epochs, is a guess: nothing is published on
your records.
"""

from tfrank.configs import papers


def get_config(loss: str = ""):
    config = papers.get_config(loss)
    config.name = "own_records"
    config.data.name = "tfrecords"
    config.data.train = ("train-*",)
    config.data.test = ("test-*",)
    if loss != "rll":
        config.train.epochs = 20.0
    return config
