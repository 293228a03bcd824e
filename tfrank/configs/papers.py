"""Settings shared by the papers' experiments; the config of a data set adds its own.

The loss after the colon selects them: `rll` uses RLL's settings, all others use those of PNP and Smooth-AP,
which differ only in the weight decay. `landmarks.py` and `vgg_face2.py` use the settings of one paper each
for all losses. Nothing is tuned to tfrank; any field can be changed on the command line.

A run does not download ImageNet weights: they are files that you provide. `resnet50-0676ba61.pth` and
`resnet101-63fe2227.pth` are torchvision's (its `resnet50` and `resnet101`, weights IMAGENET1K_V1).
`se_resnet50-ce0d4300.pth` and `bn_inception-52deb4733.pth` come from the package pretrainedmodels. Each
package downloads its own into PyTorch's cache folder when it first builds the network with weights. A run
looks for the file in the current folder, or at --config.model.weights=PATH, and stops if it is missing.
"""

from collections.abc import Mapping, Sequence

from tfrank.configs import default


def get_config(loss: str = ""):
    """Returns the defaults with RLL's settings for the loss "rll", and PNP's for all others."""
    config = default.get_config(loss)
    if config.loss.name == "rll":
        rll_settings(config)
    else:
        pnp_settings(config)
    return config


def publish(config: default.Config, rows: Mapping[str, Sequence[float]], metrics: Sequence[str] = ()) -> None:
    """Adds rows of a paper's table to the report, beside our results.

    Args:
        config: config of the run.
        rows: values by row name, in percent except for dists@; the last ones may be missing.
        metrics: our names of the columns; () for Recall@K of the config's Ks.
    """
    metrics = metrics or [f"recall_at_{k}" for k in config.evaluation.recall_at]
    for name, numbers in rows.items():
        config.evaluation.published[name] = {
            metric: number if metric.startswith("dists_") else round(number / 100, 5)
            for metric, number in zip(metrics, numbers)
        }


def pnp_settings(config: default.Config) -> None:
    """Sets PNP's ("Experimental Setup") and Smooth-AP's (section 5.3) ResNet-50, 512-d, 28 x 4, Adam 1e-5.

    - Weight decay: 4e-4 in PNP's text and in the code of both; Smooth-AP's text prints 4e^-5.
    - Crop: the text warps to 256 x 256 and crops 224 x 224 at random, as this config does. The code of both
      crops a random area of 8 to 100 % of the image and resizes it to 224, and resizes the shorter side to
      256 at test: --config.data.crop=random_part --config.data.crop_area=0.08,1.0
    - Length: the texts name none. 400 epochs are from the code, which multiplies the rate by 0.3 at some of
      them; PNP's text says "initial learning rate". Here the rate is constant.
    - Last layer: Smooth-AP's code has five times the rate by default, its text and PNP do not.
    - Batch norm: the code of both freezes its statistics, and trains its scales and offsets, as here.
    - Larger batches, 96 x 4 = 384: --config.data.classes_per_batch=96; if they do not fit into memory,
      --config.train.micro_batch_size=96.
    """
    config.data.classes_per_batch = 28
    config.data.examples_per_class = 4
    config.data.resize = 256
    config.data.image_size = 224
    config.data.flip = 0.5
    config.model.backbone = "resnet50"
    config.model.weights = "resnet50-0676ba61.pth"
    config.model.batch_norm = "statistics"
    config.model.embedding_dim = 512
    config.train.epochs = 400.0
    config.train.learning_rate = 1e-5
    config.train.l2 = 4e-4


def rll_settings(config: default.Config) -> None:
    """Sets RLL's settings (section 4.1): GoogLeNet V2, 64 dimensions of its high level, 22 x 3, SGD 1e-2.

    - Batches: "C = 60, K = 3 on SOP while C = 22, K = 3 on the other three datasets" (4.1.6), which are
      In-shop, CUB and CARS. Data sets that are not in the paper use 22 x 3 too.
    - m = 0.4 and alpha = 1 + m / 2 = 1.2 are RLL-Simpler's, and the recipe's.
    - Levels: the paper compares RLL-Simpler-H with other losses. For (L,M,H), one embedding and one loss
      per level: --config.model.levels=LMH --config.train.learning_rate_multipliers.head=10
      (the heads of L and M are pretrained in the paper, but start random here).
    - Batch norm is trained; on CUB and CARS it is frozen.
    - Length and schedule: the text has 30,000 iterations in Table 14 (In-shop); the published In-shop
      solver multiplies the rate by 0.2 after 12,000 and 24,000 of them. We found no published solver for
      SOP, so it uses the same.
    - All results of the paper are "validation performance" (section 4.1.5): the iteration was chosen on the
      test set.
    """
    config.data.classes_per_batch = 22
    config.data.examples_per_class = 3
    config.data.resize = 256
    config.data.image_size = 227
    config.data.crop = "random_resized"
    config.data.flip = 0.5
    config.model.backbone = "bn_inception"
    config.model.weights = "bn_inception-52deb4733.pth"
    config.model.levels = "H"
    config.model.batch_norm = "trained"
    config.model.embedding_dim = 64
    config.train.steps = 30_000
    config.train.optimizer = "sgd"
    config.train.learning_rate = 1e-2
    config.train.schedule = "steps"
    config.train.schedule_steps = (12_000, 24_000)
    config.train.schedule_factor = 0.2
    config.train.learning_rate_multipliers.embedding = 10.0
    config.train.l2 = 2e-5


def get_small_config(name: str, loss: str):
    """Returns the config of CUB-200-2011, "cub", or CARS196, "cars"; RLL: "sensitive to minor changes".

    - The text names neither m nor T_n for the two; this config uses SOP's 0.4 and 10. The published solver
      (CUB, conference version, batches of 20 x 3, plain random crops) has alpha 1.4, m 0.2, T_n 10 and a
      rate of 1e-3, halved every 2,000 of 10,000 iterations. Rate and batch here are the text's, length and
      halving the solver's.
    - PNP, Smooth-AP and mAP_Q publish nothing on the two. Losses other than "rll" use the settings of SOP,
      for 100 epochs, which is our choice.
    """
    config = get_config(loss)
    config.name = name
    config.data.name = name
    if loss == "rll":
        config.model.batch_norm = "frozen"
        config.train.steps = 10_000
        config.train.schedule_steps = (2_000, 4_000, 6_000, 8_000)
        config.train.schedule_factor = 0.5
    else:
        config.train.epochs = 100.0
    config.evaluation.recall_at = (1, 2, 4, 8)
    return config


def map_q_settings(config: default.Config) -> None:
    """Sets mAP_Q's (section 4.2) ResNet-101 with GeM, batches of 4,096, 800 px, Adam 1e-4 to 0 in 200 steps.

    - The text names colour jitter, random scaling, rotation and cropping, but no values. We chose moderate
      ones.
    - The text does not name the embedding's dimensions; 2,048 is the default of the published network.
    - The paper embeds image by image; micro-batches of 8 suit a GPU.
    """
    config.data.sampler = "all_classes"
    config.data.classes_per_batch = 512
    config.data.examples_per_class = 8
    config.data.image_size = 800
    config.data.crop = "scaled"
    config.data.scale = (0.8, 1.25)
    config.data.color_jitter = (0.2, 0.2, 0.2, 0.05)
    config.data.rotation = 10.0
    config.model.backbone = "resnet101"
    config.model.weights = "resnet101-63fe2227.pth"
    config.model.pooling = "gem"
    config.model.embedding_dim = 2048
    config.train.steps = 200
    config.train.micro_batch_size = 8
    config.train.learning_rate = 1e-4
    config.train.schedule = "linear"
    config.train.l2 = 1e-6
    config.train.checkpoint_every = 10
    config.train.log_every = 1
    config.evaluation.full_size = True


def get_vit_config(name: str, loss: str):
    """Returns the config of vision transformers on a data set: "sop", "cub", "cars" or "in_shop".

    The loss "sup_con" selects the settings of Hyp-ViT's code, all others those of Recall@k's code; "" is
    "recall_at_k". No paper was at hand: the settings are those of the published code.

    Recall@k (arXiv 2108.11179): ViT-B/16 pretrained on ImageNet-21k, 512 dimensions, AdamW, 4 images a class,
    two-stage batches, a random area of 8 to 100 % of the image resized to 224.

    - Weights: the folder of google/vit-base-patch16-224-in21k from Hugging Face. The code takes timm's, and
      normalises by ImageNet's mean and deviation, as this config does.
    - The code has one more layer norm before the last layer.
    - SiMix is on for CUB and CARS: "very useful for small-scale datasets". In-shop is not in the paper and
      has SOP's settings.

    Hyp-ViT (arXiv 2203.10833): ViT-S/16 of DINO, 128 dimensions, AdamW 1e-5, 2 images a class, a random area
    of 20 to 100 %. Its distance is hyperbolic; the loss here is its spherical variant, a cross entropy of
    cosines over all images of the batch.

    - Weights: the folder of facebook/dino-vits16 from Hugging Face.
    - The code embeds 400 images a GPU on several GPUs. CUB and CARS have 100 and 98 classes to train on, so
      their batches have all classes.
    """
    config = default.get_config(loss or "recall_at_k")
    config.name = f"vit_{name}"
    config.data.name = name
    config.data.resize = 256
    config.data.image_size = 224
    config.data.crop = "random_part"
    config.data.flip = 0.5
    config.model.pooling = "class_token"
    config.model.preprocessing = "imagenet_rgb"
    config.train.optimizer = "adamw"
    small = {"cub": 100, "cars": 98}
    if loss == "sup_con":
        config.model.backbone = "hub/vit_small"
        config.model.weights = "dino-vits16"
        config.model.embedding_dim = 128
        config.data.classes_per_batch = small.get(name, 200)
        config.data.examples_per_class = 2
        config.data.crop_area = (0.2, 1.0)
        config.train.learning_rate = 1e-5
        config.train.decoupled = 0.01
        config.train.epochs = 100.0
        return config
    config.model.backbone = "hub/vit_base"
    config.model.weights = "vit-base-patch16-224-in21k"
    config.model.embedding_dim = 512
    config.data.classes_per_batch = small.get(name, 1000)
    config.data.examples_per_class = 4
    config.data.crop_area = (0.08, 1.0)
    config.train.micro_batch_size = 100
    config.train.learning_rate = 1e-5 if name in small else 5e-5
    config.train.decoupled = 4e-4
    epochs, rate_falls_after, images = {
        "cub": (40, (10, 20, 30), 5_864),
        "cars": (50, (20, 30, 40), 8_054),
        "in_shop": (55, (25, 50), 25_882),
        "sop": (55, (25, 50), 59_551),
    }[name]
    config.train.epochs = float(epochs)
    config.train.schedule = "steps"
    batch = config.data.classes_per_batch * config.data.examples_per_class
    config.train.schedule_steps = tuple(round(epoch * images / batch) for epoch in rate_falls_after)
    config.train.schedule_factor = 0.3
    if config.loss.name == "recall_at_k":
        config.loss.simix = name in small
    return config
