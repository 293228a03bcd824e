"""Your own photos, the whole network: for a GPU, for other networks, or without pretrained weights.

    python train_main.py --config=configs/own_images_whole.py --config.data.source=photos

`photos` is as in `tfrank.configs.own_images`, which on a CPU gives more in the same time. Training starts
from MobileNetV2 with ImageNet weights, which Keras downloads once (9 MB), at 160 x 160 pixels. The head
starts as a PCA of your images' features, so that nothing is lost at the start.

- To train in seconds rather than minutes: --config.train.frozen_backbone=True trains the head alone.
- Without ImageNet weights, configs/own_images_whole.py:multi_similarity with --config.model.weights=random
  trains a small network from scratch, at 32 x 32 pixels. A normalized softmax joins the loss. On Caltech-101
  multi-similarity learns more than PNP, on birds it does not (docs/benchmarks.md). Use it to check your data;
  pretrained weights give far better results.
- On a GPU, larger networks and images: --config.model.backbone=keras/EfficientNetV2B0
  --config.data.image_size=224, or PNP's ResNet-50:

    python train_main.py --config=configs/own_images_whole.py --config.data.source=photos \
        --config.model.backbone=resnet50 --config.model.weights=resnet50-0676ba61.pth \
        --config.data.image_size=224 --config.data.classes_per_batch=28 --config.train.learning_rate=1e-5 \
        --config.train.steps=5000

`tfrank.configs.papers` says where to get the file. The raw-pixel baseline takes much memory for tens of
thousands of test photos; --config.evaluation.baselines=False disables it.
"""

from tfrank.configs import default


def get_config(loss: str = ""):
    config = default.get_config(loss)
    config.name = "own_images_whole"
    config.data.name = "folder"
    config.data.validation_classes = -1
    config.data.classes_per_batch = -1
    config.data.image_size = -1
    config.data.resize = -1
    config.data.crop = "scaled"
    config.data.fit = "auto"
    config.data.scale = (1.0, 1.4)
    config.data.flip = 0.5
    config.data.color_jitter = ()
    config.model.backbone = "auto"
    config.model.weights = "imagenet"
    config.model.head = "pca"
    config.model.embedding_dim = 256
    # Only for the small network, which is used with random weights.
    config.model.blocks = 3
    config.model.filters = 128
    if config.loss.name == "pnp":
        config.loss.warmup_steps = -1
    config.train.learning_rate = -1.0
    config.train.schedule = "auto"
    config.train.start_share = -1.0
    config.train.class_loss_weight = -1.0
    config.train.proxy_multiplier = -1.0
    config.train.patience = 4
    config.train.steps = -1
    config.train.evaluate_every = -1
    config.train.checkpoint_every = 100
    config.train.log_every = 10
    config.evaluation.baselines = True
    return config
