"""Your own photos: better than the network they begin with, on a laptop without a GPU.

    python train_main.py --config=configs/own_images.py --config.data.source=photos

`photos` has one folder of images a class: half of the classes, drawn at random, are tested on, so as to
measure on things never seen. Or it has folders `train` and `test` with the classes inside, none in both. A
CSV file with the columns path and label will do too: --config.data.name=csv --config.data.source=photos.csv.

Training begins with MobileNetV2 and its ImageNet weights, which Keras downloads once (9 MB), on 160 x 160
pixels. The head begins as a PCA of your images' features, so that nothing is lost at the start. A fifth of
the training classes chooses the best weights, the start among them. Batch shape and steps follow from the
number of classes and images, and are printed with the reason.

- Minutes become seconds: --config.train.frozen_backbone=True trains the head alone.
- Without ImageNet weights: --config=configs/own_images.py:multi_similarity --config.model.weights=random
  trains a small network from nothing, on 32 x 32 pixels. From nothing that loss learns far faster than any
  that ranks. It is there to see that the data is as you think; pretrained weights are far better.
- Where photos that are mirrored mean something else (text, left and right hands): --config.data.flip=0.
- On a GPU, larger networks and images: --config.model.backbone=keras/EfficientNetV2B0
  --config.data.image_size=224, or PNP's ResNet-50:

    python train_main.py --config=configs/own_images.py --config.data.source=photos \
        --config.model.backbone=resnet50 --config.model.weights=resnet50-0676ba61.pth \
        --config.data.image_size=224 --config.data.classes_per_batch=28 --config.train.learning_rate=1e-5 \
        --config.train.steps=5000

`configs/papers.py` says where the file is from. The raw pixels that are measured beside the network take much
memory where tens of thousands of photos are tested on: --config.evaluation.baselines=False.
"""

from tfrank.configs import default


def get_config(loss: str = ""):
    config = default.get_config(loss)
    config.name = "own_images"
    config.data.name = "folder"
    config.data.validation_classes = -1
    config.data.classes_per_batch = -1
    config.data.image_size = -1
    config.data.resize = -1
    config.data.crop = "scaled"
    config.data.scale = (1.0, 1.4)
    config.data.flip = 0.5
    config.model.backbone = "auto"
    config.model.weights = "imagenet"
    config.model.head = "pca"
    config.model.embedding_dim = 256
    # Of the small network, where weights are random.
    config.model.blocks = 3
    config.model.filters = 128
    if config.loss.name == "pnp":
        config.loss.warmup_steps = -1
    config.train.learning_rate = -1.0
    config.train.start_share = -1.0
    config.train.patience = 4
    config.train.steps = -1
    config.train.evaluate_every = -1
    config.train.checkpoint_every = 100
    config.train.log_every = 10
    config.evaluation.baselines = True
    return config
