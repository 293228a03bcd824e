"""The fields of `config.train`: devices, length, optimizer, and what is added to the loss."""

import dataclasses

from ml_collections import ConfigDict

from tfrank.configs.fields import ByWeights, Section, field
from tfrank.training.optimizers import OPTIMIZERS
from tfrank.training.schedules import SCHEDULES
from tfrank.training.strategy import STRATEGIES
from tfrank.training.trackers import TRACKERS

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


@dataclasses.dataclass(slots=True)
class Train(Section):
    """The fields of `config.train`."""

    strategy: str = field(
        "one_device",
        'Devices: "one_device"; "mirrored", all GPUs of this machine (all logical CPUs if it has none);'
        ' "multi_worker", the machines listed in the environment variable TF_CONFIG.',
        choices=STRATEGIES,
        may_change=True,
    )
    steps: int = field(
        0,
        "Length of the run in steps (batches). Give this or `epochs`, and set the other to 0.",
        at_least=0,
        by_data=True,
        may_change=True,
    )
    epochs: float = field(
        0.0,
        "Length of the run in epochs (as many images as the training part has).",
        at_least=0,
        may_change=True,
    )
    minutes: float = field(
        0.0,
        "Longest time of the whole run, in minutes: where the machine is too slow, there are fewer views of"
        " each image and fewer steps, as far as they are left open. 0: as long as it takes.",
        at_least=0,
    )
    micro_batch_size: int = field(
        0,
        "Images that a device embeds at once. A batch of any size then needs the memory of this many; its"
        " images stay on the host, and each is embedded twice. 0: the device's whole share of the batch.",
        at_least=0,
    )
    optimizer: str = field(
        "adam", 'Optimizer: "adam", "adamw" (decoupled weight decay), or "sgd".', choices=OPTIMIZERS
    )
    beta_1: float = field(
        0.9,
        'Only for "adam" and "adamw": decay rate of the running mean of gradients.',
        at_least=0,
        below=1,
    )
    beta_2: float = field(
        0.999,
        'Only for "adam" and "adamw": decay rate of the running mean of the gradients\' squares.',
        at_least=0,
        below=1,
    )
    epsilon: float = field(1e-8, 'Only for "adam" and "adamw": the number added to the denominator.', above=0)
    momentum: float = field(0.9, 'Only for "sgd": momentum.', at_least=0, at_most=1)
    learning_rate: float = field(
        1e-3,
        "Learning rate. If it is left open, 3e-4 for a head on a frozen backbone or on vectors, 1e-4 with"
        " `frozen_until`.",
        above=0,
        by_weights=ByWeights(3e-5, 1e-3),
    )
    schedule: str = field(
        "constant",
        'Learning-rate schedule: "constant", "linear" (to zero at the last step), "cosine" (likewise), or'
        ' "steps" (times `schedule_factor` at each of `schedule_steps`).',
        choices=SCHEDULES,
        by_weights=ByWeights("constant", "cosine"),
    )
    warmup_steps: int = field(0, "Steps in which the learning rate rises linearly.", at_least=0)
    schedule_steps: tuple[int, ...] = field(
        (), 'Only for the schedule "steps": the steps, ascending.', at_least=1
    )
    schedule_factor: float = field(0.1, 'Only for the schedule "steps": the factor.', above=0, at_most=1)
    learning_rate_multipliers: ConfigDict = field(
        ConfigDict,
        "Learning-rate multipliers by names of variables. A name stands for the variables whose paths begin"
        " with it, or, if there are none, for those whose paths have it as a part: `embedding` is the head,"
        " `kernel` all kernels. If several names stand for a variable, the longest counts. On the command"
        " line, an entry or all of them (in place of those of the config):"
        " --config.train.learning_rate_multipliers.embedding=10"
        ' --config.train.learning_rate_multipliers=\'{"embedding": 10, "embedding/bias": 20}\'',
    )
    loss_weight: float = field(
        1.0,
        "Weight of the loss of the embeddings among themselves. 0: learn from a teacher alone.",
        at_least=0,
    )
    class_loss_weight: float = field(
        0.0,
        "Weight of an additional loss, a normalized softmax with a proxy of each training class; 0: none."
        " From random weights it helps much.",
        at_least=0,
        by_weights=ByWeights(0.0, 1.0),
    )
    class_weights: bool = field(
        False,
        "Each training class counts the same in the loss, however many images it has: an image weighs in"
        ' inverse proportion to them. For the samplers "uniform" and "all_classes", which draw large classes'
        " more often.",
    )
    proxy_multiplier: float = field(
        100.0,
        "Learning-rate multiplier of the class proxies, if there are any.",
        at_least=0,
        by_weights=ByWeights(100.0, 1.0),
    )
    layer_decay: float = field(
        1.0,
        "Learning rates of vision transformers fall towards the input: the last block has this times the"
        " learning rate, the one before the square, and so on. 1: the same everywhere.",
        above=0,
        at_most=1,
    )
    recompute: bool = field(
        False,
        "Vision transformers compute the activations of their blocks again for the gradient, which takes 40"
        " to 57 % of the memory, and 21 to 36 % more time.",
    )
    proxy_sample: float = field(
        1.0,
        "Share of the class proxies that a step uses: those of the batch and random others. For hundreds of"
        " thousands of classes, whose cosines take too much time and memory.",
        above=0,
        at_most=1,
    )
    matryoshka: tuple[int, ...] = field(
        (),
        "Dimensions that an embedding can be cut to: the loss is also that of its first so many dimensions,"
        " normalised. The largest is the whole embedding. (): only the whole. On the command line:"
        " --config.train.matryoshka=256,128,64,32",
        at_least=1,
    )
    memory_size: int = field(
        0,
        "Cross-batch memory: number of past embeddings that join the gallery of the loss; 0: none.",
        at_least=0,
    )
    memory_warm_up: int = field(1000, "Number of batches before the memory joins.", at_least=0)
    teacher: str = field(
        "",
        "Another model to learn from: the folder of a run or of a SavedModel, or an .npz of embeddings, see"
        " `tfrank.run.other_models`. Its embeddings of the training images are computed once. Empty: none.",
        path=True,
    )
    teacher_weight: float = field(
        1.0,
        "Weight of the loss of the model's queries against the teacher's embeddings of the batch; 0: none.",
        at_least=0,
    )
    regression_weight: float = field(
        0.0,
        "Weight of 1 - the cosine of the model's and the teacher's embedding of an image; 0: none. 10 did"
        " best on Omniglot.",
        at_least=0,
    )
    relational_weight: float = field(
        0.0,
        "Weight of the difference between the model's and the teacher's distances within the batch; 0: none."
        " The only one of the three for a teacher of other dimensions.",
        at_least=0,
    )
    compatible_with: str = field(
        "",
        "An older model, as `teacher` names one, whose embeddings the model's queries are to search: the loss"
        " also ranks them against the older model's embeddings of the batch. Reports show old in old, new in"
        " old and new in new. Empty: none.",
        path=True,
    )
    compatible_weight: float = field(
        1.0, "Only with `compatible_with`: weight of that loss, beside the usual one of 1.", above=0
    )
    l2: float = field(
        0.0, "Weight decay added to the gradient, as in the papers and in PyTorch's Adam.", at_least=0
    )
    decoupled: float = field(
        0.0, "Decoupled weight decay (AdamW), as a fraction of the learning rate.", at_least=0
    )
    no_decay: tuple[str, ...] = field(
        (),
        "Names of variables without weight decay of either kind, as in `learning_rate_multipliers`. On the"
        " command line, repeat the flag for several: --config.train.no_decay=bias"
        " --config.train.no_decay=gamma",
    )
    frozen_backbone: bool = field(
        False,
        "Keep the backbone fixed and train only the head. The features of `feature_views` transforms of each"
        " training image are computed once. Minutes become seconds.",
    )
    frozen_until: str = field(
        "",
        "Keep the backbone fixed up to this layer and train what follows, as if the fixed part were the data:"
        " the layer's output for `feature_views` transforms of each training image is computed once and"
        ' stored as float16. All that follows has to depend on that output alone. "last_stage" trains the'
        ' blocks of EfficientNet-Lite whose maps have a thirty-second of the sides, "last_two_stages" also'
        " those of a sixteenth; the first of these blocks stays as it is.",
    )
    feature_views: int = field(
        4,
        "Only with `frozen_backbone` or `frozen_until`: transforms of each training image. If it is left"
        " open, at most five, and fewer for more than 4,000 images.",
        at_least=1,
        by_data=True,
    )
    clip_norm: float = field(
        0.0,
        "Largest norm of the whole batch's gradient; a larger gradient is scaled down to it. 0: no clipping.",
        at_least=0,
    )
    weight_average: float = field(
        0.0,
        "Momentum of a moving average of the weights, for example 0.999. The average is then evaluated and"
        " exported. 0 for none.",
        at_least=0,
        below=1,
    )
    precision: str = field(
        "float32",
        "Precision of the model; mixed_float16 scales the loss. Losses always compute in float32.",
        choices=PRECISIONS,
    )
    xla: bool = field(False, "Compile the model with XLA; only on one device.")
    deterministic: bool = field(
        False, "Use only operations that give the same bits in every run, on GPUs too; slower there."
    )
    tf32: bool = field(
        True,
        "Allow TF32 multiplication in training, on GPUs that support it. Evaluation never uses it.",
    )
    start_share: float = field(
        0.0,
        "Share of the initial weights in the weights that are evaluated and exported.",
        at_least=0,
        below=1,
        by_weights=ByWeights(0.5, 0.0),
    )
    patience: int = field(
        0,
        "Stop training after this many evaluations of the validation part without improvement; 0: never.",
        at_least=0,
    )
    checkpoint_every: int = field(500, "Steps between checkpoints.", at_least=1)
    evaluate_every: int = field(
        500,
        "Steps between evaluations of the validation part. If it is left open, a tenth of all steps.",
        at_least=1,
        by_data=True,
    )
    log_every: int = field(50, "Steps between progress lines.", at_least=1, may_change=True)
    trackers: tuple[str, ...] = field(
        ("tensorboard",),
        'What follows the run, beside training.csv: "tensorboard"; "mlflow" and "wandb" (Weights & Biases),'
        " by the extras of these names and where their own environment variables say. On the command line:"
        " --config.train.trackers=tensorboard --config.train.trackers=mlflow",
        choices=TRACKERS,
        may_change=True,
    )

    @property
    def learns_teachers_space(self) -> bool:
        """Whether embeddings are compared with the teacher's, not only distances with its distances."""
        return bool(self.teacher and (self.teacher_weight or self.regression_weight))

    @property
    def is_partly_frozen(self) -> bool:
        """Whether a part of the network stays as it is, and what it computes of each image is stored."""
        return self.frozen_backbone or bool(self.frozen_until)
