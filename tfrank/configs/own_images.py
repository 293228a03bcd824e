"""Your own photos: improves on a pretrained network, on a laptop without a GPU.

    python train_main.py --config=configs/own_images.py --config.data.source=photos

`photos` has one folder of images per class. Half of the classes, drawn at random, become the test set, so
that the test is on unseen classes. Alternatively it has folders `train` and `test` with the classes inside
and no class in both. A CSV file with the columns path and label works too: --config.data.name=csv
--config.data.source=photos.csv.

Training starts from MobileNetV2 with ImageNet weights, which Keras downloads once (9 MB), at 160 x 160
pixels. The head starts as a PCA of your images' features, so that nothing is lost at the start. A fifth of
the training classes is held out to choose the best weights, which may be the initial ones. Batch shape and
steps follow from the number of classes and images, and are printed with the reason.

- To train in seconds rather than minutes: --config.train.frozen_backbone=True trains the head alone.
- Without ImageNet weights: --config=configs/own_images.py:multi_similarity --config.model.weights=random
  trains a small network from scratch, at 32 x 32 pixels. A normalized softmax joins the loss. On Caltech-101
  multi-similarity learns more than PNP, on birds it does not (docs/benchmarks.md). Use it to check your data;
  pretrained weights give far better results.
- If mirroring changes the meaning of a photo (text, left and right hands): --config.data.flip=0.
- On a GPU, larger networks and images: --config.model.backbone=keras/EfficientNetV2B0
  --config.data.image_size=224, or PNP's ResNet-50:

    python train_main.py --config=configs/own_images.py --config.data.source=photos \
        --config.model.backbone=resnet50 --config.model.weights=resnet50-0676ba61.pth \
        --config.data.image_size=224 --config.data.classes_per_batch=28 --config.train.learning_rate=1e-5 \
        --config.train.steps=5000

`tfrank.configs.papers` says where to get the file. The raw-pixel baseline takes much memory for tens of
thousands of test photos; --config.evaluation.baselines=False disables it.
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
