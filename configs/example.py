"""A config to copy: photos of your own classes, a pretrained ResNet-50, and PNP, on a GPU.

    python train_main.py --config=configs/example.py --config.data.source=photos

`photos` has one folder of images a class. Half of the classes, drawn at random, become the test set. The
network starts from torchvision's ImageNet weights, the file resnet50-0676ba61.pth.

A config file has a function `get_config`, which takes the loss after the colon of `--config` and returns a
config: start from the defaults, or from the config of a data set, and change fields. All fields, with
meaning, default and range, are in docs/config.md, and `--config=configs/example.py --help` shows them as they
are set here. The configs of tfrank itself, such as `--config=configs/own_images.py` and
`--config=configs/sop.py`, are in tfrank/configs.
"""

from tfrank.configs import default


def get_config(loss: str = ""):
    config = default.get_config(loss)
    # The default folder of the run is runs/example_photos_pnp.
    config.name = "example"

    config.data.name = "folder"
    # Held out of the training classes, to choose the best weights by.
    config.data.validation_classes = 20
    # A batch has 28 classes with 4 images each.
    config.data.classes_per_batch = 28
    config.data.examples_per_class = 4
    # Photos keep their proportions; of each a square is cropped, at a random scale, and half are mirrored.
    config.data.image_size = 224
    config.data.resize = 256
    config.data.crop = "scaled"
    config.data.scale = (0.8, 1.25)
    config.data.flip = 0.5

    config.model.backbone = "resnet50"
    config.model.weights = "resnet50-0676ba61.pth"
    config.model.pooling = "gem"
    config.model.head = "pca"
    config.model.embedding_dim = 512

    # Fields of the loss: those of its constructor.
    if config.loss.name == "pnp":
        config.loss.temperature = 0.01

    config.train.epochs = 30.0
    config.train.learning_rate = 3e-5
    config.train.schedule = "cosine"
    config.train.warmup_steps = 100
    config.train.l2 = 1e-5
    config.train.precision = "mixed_bfloat16"
    config.train.strategy = "mirrored"
    config.train.evaluate_every = 200
    config.train.patience = 5

    config.evaluation.recall_at = (1, 10)
    return config
