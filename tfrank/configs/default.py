"""Every field of a run: its default, its meaning and its unit.

A config file calls `get_config` here and changes what its data set needs. On the command line,
`--config=configs/digits.py:smooth_ap` takes another loss and `--config.train.steps=100` sets a field.
"""

from ml_collections import ConfigDict

from tfrank.common.checks import InputError, did_you_mean

# The fields of each loss, with the paper's values: what `config.loss` holds beside `name`.
LOSS_RECIPES = {
    # warmup_steps: of "dq", see `PNPLoss`; -1: half of the run where it begins with random weights, else 0.
    "pnp": dict(variant="dq", alpha=4.0, b=4.0, temperature=0.01, include_self=False, warmup_steps=0),
    "smooth_ap": dict(temperature=0.01, include_self=False),
    "map_q": dict(num_bins=20, tie_aware=False, class_weights=False, include_self=False),
    "rll": dict(
        margin=0.4,
        alpha=1.2,
        negative_temperature=10.0,
        positive_temperature=0.0,
        negative_weight=0.5,
        constant_gallery=True,
        # T_n falls linearly to this over so many steps; 0 steps: it is fixed.
        final_negative_temperature=0.0,
        decay_steps=0,
    ),
    "fast_ap": dict(num_bins=10),
    "blackbox_ap": dict(interpolation=4.0, margin=0.02),
    "recall_at_k": dict(
        ks=(1, 2, 4, 8, 16),
        temperature=0.01,
        k_temperatures=(1.0, 2.0, 4.0, 8.0, 16.0),
        # Virtual rows between rows of a class, and the seed of the mixtures.
        simix=False,
        seed=0,
    ),
    "sup_ap": dict(
        temperature=0.01,
        rho=100.0,
        delta=0.05,
        calibration_weight=0.5,
        positive_margin=0.9,
        negative_margin=0.6,
        include_self=False,
    ),
    # hardest: only so many queries of the largest loss in the batch count; 0: all.
    "triplet": dict(margin=0.2, mining="semi_hard", hardest=0),
    "contrastive": dict(margin=1.0),
    # Of the embeddings as they are, unless normalize.
    "n_pairs": dict(normalize=False),
    "lifted_structure": dict(margin=1.0, squared=False, normalize=False),
    "multi_similarity": dict(alpha=2.0, beta=50.0, threshold=0.5, epsilon=0.1),
    "circle": dict(margin=0.4, gamma=80.0),
    # sampled: negatives are drawn, by the seed and the step; else weighed by their probability.
    "margin": dict(margin=0.2, boundary=1.2, cutoff=0.5, nonzero_cutoff=1.4, sampled=True, seed=0),
    "histogram": dict(num_bins=201),
    # With proxies of the training classes; their learning rate is train.proxy_multiplier times the rate.
    "proxy_nca": dict(temperature=1 / 9),
    "proxy_nca_pp": dict(temperature=1 / 9),
    "soft_triple": dict(proxies_per_class=10, gamma=0.1, scale=20.0, margin=0.01, tau=0.2),
    "normalized_softmax": dict(temperature=0.05),
    "arc_face": dict(margin=0.5, scale=64.0),
    # TensorFlow Addons' own, extra `addons`.
    "addons/triplet_semi_hard": dict(margin=1.0, distance_metric="L2"),
    "addons/triplet_hard": dict(margin=1.0, soft=False, distance_metric="L2"),
    "addons/contrastive": dict(margin=1.0),
    "addons/n_pairs": dict(),
    "addons/lifted_structure": dict(margin=1.0),
}


def get_config(loss: str = "") -> ConfigDict:
    """The defaults, with a loss recipe: a key of `LOSS_RECIPES`, "pnp" where empty."""
    config = ConfigDict()
    # Of everything random: the model's weights, the batches, the augmentation. An integer >= 0.
    config.seed = 0
    # Of the run; the default --workdir is named after it.
    config.name = ""
    # Only count the data, build everything, take two steps, and say what the whole run would take.
    config.dry_run = False

    config.data = ConfigDict()
    # Which data set: "digits", "omniglot", "folder", "csv", "sop", "in_shop", "vehicle_id", "inaturalist",
    # "cub", "cars", "landmarks_clean", "roxford5k", "rparis6k", "vgg_face2", "ijb_c", or "tfrecords" for
    # records made elsewhere.
    config.data.name = "digits"
    # Path of the data set's folder or archive; "" for data that comes with a package, or for records
    # that were prepared before.
    config.data.source = ""
    # Folder of records that `python -m tfrank.data.prepare` has written, or of those made elsewhere; "" for
    # the workdir's own `records`, which the first run writes from the source.
    config.data.records = ""
    # Folder of the records to test on, where that is another data set; "" for the same.
    config.data.test_records = ""
    # Splits of the records to train on and to test on; no class in common. For digits the digits, for
    # Omniglot the alphabets, for "tfrecords" patterns of shard files, such as "train-*". On the command line
    # a field of several words is given several times: --config.data.train=Greek --config.data.train=Latin.
    config.data.train = ("train",)
    config.data.test = ("test",)
    # How many of the training classes are held out to choose the best weights by; 0 for none, -1 for a fifth
    # of them, where there are at least 12.
    config.data.validation_classes = 0
    # So many training classes, drawn by the seed, become one, as PNP measures robustness; 1 leaves them.
    config.data.merge_classes = 1
    # Share of the training images, drawn by the seed, that get the label of another class; from 0 to below 1.
    config.data.label_noise = 0.0
    # Number of TFRecord shards a split is written to; 0 for one for each 10,000 images, at least 4.
    config.data.shards = 0
    # Which images make a batch: "class_balanced"; "all_classes", images of every class in each batch (mAP_Q);
    # "category_pairs", classes of two categories in each batch, half of each (FastAP); or "uniform".
    config.data.sampler = "class_balanced"
    # Distinct classes in a batch, and distinct images of each; their product is the batch size, and all that
    # counts with "all_classes" and "uniform". -1 classes: as many as fit the data, the images with them.
    config.data.classes_per_batch = 32
    config.data.examples_per_class = 4
    # Classes with fewer images than that: "repeat" images within the batch, or "drop" the class.
    config.data.short_classes = "repeat"
    # What of an image is looked at: "image", all of it; its "box"; or the "face", aligned by its five points.
    config.data.region = "image"
    # The same for tests; "" for no difference. ROxford's and RParis' queries have boxes, their gallery none.
    config.data.test_region = ""
    # A box narrower than this share of its height, in pixels, is widened to that; then it is extended by a
    # share of its width and height, half on either side (VGGFace2: 0.875 and 0.3).
    config.data.box_min_aspect = 0.0
    config.data.box_margin = 0.0
    # Side of the square that the model sees, in pixels. -1: 160 for pretrained weights, 64 for random ones.
    config.data.image_size = 28
    # Images are first warped to a square of this side, in pixels, of which testing takes the centre; 0 for
    # `image_size`, which leaves nothing to crop. With "scaled" they are not warped: it is their shorter side,
    # and 0 leaves it as it is in training. -1: `image_size`.
    config.data.resize = 0
    # What training takes of it: "warp", a random square of `image_size` (PNP, Smooth-AP); "random_resized", a
    # part of random area and proportions, resized (RLL); or "scaled", a random square of `image_size` of the
    # image in its own proportions, scaled by a random factor and turned (mAP_Q).
    config.data.crop = "warp"
    # For "random_resized", unused by the others: the least and the largest area, as a share of the warped
    # square, and width / height.
    config.data.crop_area = (0.5, 1.0)
    config.data.crop_ratio = (0.75, 4 / 3)
    # For "scaled", refused with the others: the least and the largest factor, and the most degrees that an
    # image is turned, either way.
    config.data.scale = (1.0, 1.0)
    config.data.rotation = 0.0
    # Probability that an image is mirrored, left for right.
    config.data.flip = 0.0
    # The most by which brightness, contrast, saturation (shares of themselves) and hue (a share of the
    # circle, at most 0.5) change; 0 for none.
    config.data.color_jitter = (0.0, 0.0, 0.0, 0.0)
    # Each batch is rolled by up to so many pixels in each direction; 0 for none.
    config.data.max_shift = 0
    # Names of the features in records made elsewhere; all but `encoded` and `label` may be missing there.
    config.data.features = ConfigDict(
        {
            "encoded": "image/encoded",
            "label": "image/class/label",
            "id": "image/id",
            "filename": "image/filename",
            "category": "image/category/label",
            "text": "image/class/text",
        }
    )

    config.model = ConfigDict()
    # "convnet" (a small one), "resnet50", "resnet101" (v1.5), "se_resnet50", "bn_inception", or a network of
    # keras.applications, such as "keras/EfficientNetB0". "auto": "keras/MobileNetV2" for pretrained
    # weights ("mobilenet_v2" for a PyTorch file), the convnet for random ones.
    config.model.backbone = "convnet"
    # Its first weights: "random"; "imagenet", Keras' download for keras/...; or the path of a file: a PyTorch
    # state dict (.pth), .weights.h5, .keras or .npz. A file in an installed package: package:NAME/PATH.
    config.model.weights = "random"
    # What the model does to RGB 0-255 first: "auto", what the backbone expects ("rgb", to 0-1, for the
    # convnet); for the convnet also "grey" (one channel, 0-1) or "inverted_grey" (one channel, 1 for black).
    config.model.preprocessing = "auto"
    # The convnet's blocks of 3x3 convolution, batch norm, ReLU and 2x2 max pooling, and their channels.
    config.model.blocks = 4
    config.model.filters = 64
    # From the last feature map to a vector: "flatten", "average", "max", "gem" or "rmac"; "auto": flatten for
    # the convnet, else average.
    config.model.pooling = "auto"
    # bn_inception only: letters of "LMH", the low, middle and high levels of RLL, each with an embedding and
    # a loss; evaluation takes them side by side. "": the last feature map.
    config.model.levels = ""
    # "frozen" (statistics, scales and offsets), "trained" (statistics of the whole batch, over all devices),
    # or "auto": frozen where weights are given, trained where they are random.
    config.model.batch_norm = "auto"
    # From the pooled features to an embedding: "none", they are the embedding; "pca", a linear layer that
    # begins as the PCA of the training images' features; "random", a linear layer of random weights.
    config.model.head = "random"
    # Dimensions of an embedding; unused with head "none".
    config.model.embedding_dim = 64

    config.loss = loss_recipe(loss)

    config.train = ConfigDict()
    # "one_device"; "mirrored" over all GPUs (all logical CPUs where there is none); "multi_worker" over the
    # machines that the environment's TF_CONFIG names.
    config.train.strategy = "one_device"
    # How long: steps (batches), or epochs (as many images as the training part has). One of them is 0.
    # -1 steps: as long as fits the data.
    config.train.steps = 0
    config.train.epochs = 0.0
    # Images that a device embeds at once; a batch of any size then takes the memory of so many (its images
    # stay on the host, each is embedded twice). 0: all of its share.
    config.train.micro_batch_size = 0
    # "adam", "adamw" (with decoupled weight decay), or "sgd" with its momentum.
    config.train.optimizer = "adam"
    config.train.momentum = 0.9
    # -1: 3e-5 for pretrained weights, 3e-4 for a head on frozen ones, 1e-3 for random ones.
    config.train.learning_rate = 1e-3
    # How the rate goes on: "constant", "linear" (to zero at the last step), "cosine" (likewise), or "steps":
    # times `schedule_factor` at each of `schedule_steps`. In the first `warmup_steps` it rises linearly.
    config.train.schedule = "constant"
    config.train.warmup_steps = 0
    config.train.schedule_steps = ()
    config.train.schedule_factor = 0.1
    # Other rates for some variables, by a part of their path: "embedding=10, gem=0.5"; the first match
    # counts; "" for none.
    config.train.learning_rate_multipliers = ""
    # Times the learning rate: of the proxies of classes, where the loss has them.
    config.train.proxy_multiplier = 100.0
    # Past embeddings that join the gallery of the loss (cross-batch memory), and the batches before they do;
    # 0 embeddings: none.
    config.train.memory_size = 0
    config.train.memory_warm_up = 1000
    # Weight decay added to the gradient, as the papers and PyTorch's Adam do.
    config.train.l2 = 0.0
    # Weight decay apart from the gradient (AdamW), as a fraction of the learning rate.
    config.train.decoupled = 0.0
    # Variables without decay of either kind, by parts of their paths: "bias, gamma, beta"; "" for none.
    config.train.no_decay = ""
    # The backbone stays as it is: its features of the training images are computed once, of so many views of
    # each, and the head alone is trained on them. Minutes become seconds.
    config.train.frozen_backbone = False
    config.train.feature_views = 4
    # The gradient of the whole batch is scaled down to this norm where it is above; 0: it is not.
    config.train.clip_norm = 0.0
    # Momentum of a moving average of the weights, say 0.999, which is then what is evaluated and exported;
    # 0 for none.
    config.train.weight_average = 0.0
    # "float32", "mixed_bfloat16" or "mixed_float16" (with loss scaling). Losses compute in float32 always.
    config.train.precision = "float32"
    # Compile the model by XLA; on one device.
    config.train.xla = False
    # Only operations that give the same bits at every run, on GPUs too; slower there.
    config.train.deterministic = False
    # Let GPUs that can multiply in TF32 in training. Evaluation never does.
    config.train.tf32 = True
    # Share of the weights before training in those that are evaluated and exported, from 0 to below 1.
    # -1: 0.5 of pretrained weights, 0 of random ones.
    config.train.start_share = 0.0
    # Training ends early after so many evaluations of the validation part without a better one; 0: never.
    config.train.patience = 0
    # Steps between checkpoints, between evaluations of the validation part (-1: a tenth of all steps), and
    # between lines of progress.
    config.train.checkpoint_every = 500
    config.train.evaluate_every = 500
    config.train.log_every = 50

    config.evaluation = ConfigDict()
    # Images embedded at once.
    config.evaluation.batch_size = 256
    # The Ks of Recall@K and precision@K, each at most the images that a query is ranked against; () for 1, 10
    # and 100, or those of them that are possible.
    config.evaluation.recall_at = ()
    # How it is measured: "leave_one_out", "query_gallery", "random_gallery", "revisited", see
    # `tfrank.evaluation.protocols`; () for the usual one of the test set.
    config.evaluation.protocols = ()
    # Images at their own size, one at a time, neither resized nor cropped (mAP_Q).
    config.evaluation.full_size = False
    # Share of the true neighbours that ScaNN is built to find, where it searches.
    config.evaluation.target_recall = 0.99
    # Scales at which an image is embedded; several embeddings are summed. Of models of images of any size.
    config.evaluation.scales = (1.0,)
    # PCA whitening with this power, 0.25 in mAP_Q, 0.5 for full whitening, 0 for none; to so many numbers, 0
    # for all; learnt on so many training images at most.
    config.evaluation.whitening = 0.0
    config.evaluation.whitening_dim = 0
    config.evaluation.whitening_images = 20000
    # To how many neighbours queries, and gallery images, are expanded, 0 for none (10 in mAP_Q), weighted by
    # this power of the similarity (2 in mAP_Q; 0 for their mean).
    config.evaluation.query_expansion = 0
    config.evaluation.database_augmentation = 0
    config.evaluation.expansion_alpha = 2.0
    # Whether rankings are those of k-reciprocal neighbours.
    config.evaluation.rerank = False
    # Normalised mutual information of k-means clusters and classes; ROC-AUC and TAR at FAR of image pairs.
    config.evaluation.nmi = False
    config.evaluation.verification = False
    # Whether raw pixels and the model before training are evaluated too; for small images and test sets.
    config.evaluation.baselines = False
    # Results to stand beside ours in the report: {name: {metric: share}}; a name has no dot.
    config.evaluation.published = ConfigDict()
    # A config that sets a field which is not here is told so; results go by names of their own.
    config.lock()
    config.evaluation.published.unlock()
    return config


def loss_recipe(name: str) -> ConfigDict:
    """`config.loss` for a loss: its name and exactly its fields."""
    name = name or "pnp"
    if name not in LOSS_RECIPES:
        raise InputError(
            f"Unknown loss {name!r} after the colon of --config.{did_you_mean(name, LOSS_RECIPES)}"
            f" Expected one of {list(LOSS_RECIPES)}."
        )
    return ConfigDict({"name": name, **LOSS_RECIPES[name]})
