"""What the fields of a config mean, and which values they may have."""

from ml_collections import ConfigDict

from tfrank import checks
from tfrank.checks import InputError
from tfrank.workdir import flatten

# The least value of every field that is a whole number, but for those of the view, which checks its own.
LEAST = {
    "seed": 0,
    "data.validation_classes": 0,
    "data.merge_classes": 1,
    "data.shards": 0,
    "data.classes_per_batch": 2,
    "data.examples_per_class": 2,
    "data.max_shift": 0,
    "model.blocks": 1,
    "model.filters": 1,
    "model.embedding_dim": 1,
    "train.steps": 0,
    "train.micro_batch_size": 0,
    "train.warmup_steps": 0,
    "train.memory_size": 0,
    "train.memory_warm_up": 0,
    "train.checkpoint_every": 1,
    "train.evaluate_every": 1,
    "train.log_every": 1,
    "evaluation.batch_size": 1,
    "evaluation.whitening_dim": 0,
    "evaluation.whitening_images": 2,
    "evaluation.query_expansion": 0,
    "evaluation.database_augmentation": 0,
}
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
SAMPLERS = ("class_balanced", "all_classes", "category_pairs", "uniform")


def check_ranges(config: ConfigDict) -> None:
    """InputError for the first field out of its range; views and regions: see `datasets.build_loader`."""
    flat = flatten(config.to_dict())
    for field, least in LEAST.items():
        checks.integer(f"config.{field}", flat[field], at_least=least)
    for field in ("train.epochs", "train.l2", "train.clip_norm", "train.proxy_multiplier"):
        checks.number(f"config.{field}", flat[field], at_least=0)
    checks.number("config.train.weight_average", config.train.weight_average, at_least=0, below=1)
    checks.one_of("config.train.precision", config.train.precision, PRECISIONS)
    if config.seed >= 2**32:
        raise checks.invalid("config.seed", "an integer below 2^32", config.seed)
    _check_data(config.data)
    _check_evaluation(config.evaluation)


def _check_data(data):
    checks.one_of("config.data.sampler", data.sampler, SAMPLERS)
    checks.number("config.data.label_noise", data.label_noise, at_least=0, below=1)
    if data.sampler == "category_pairs" and (data.merge_classes > 1 or data.label_noise):
        raise InputError(
            "Merged classes, and false labels, span categories: there are no pairs of them to draw."
            " Take --config.data.sampler=class_balanced."
        )
    # The splits of another data set may have the same names.
    common = sorted(set(data.train) & set(data.test)) if not data.test_records else []
    if common:
        raise InputError(
            f"config.data.train and config.data.test have {common} in common; test on unseen classes."
        )


def _check_evaluation(evaluation):
    for k in evaluation.recall_at:
        checks.integer("config.evaluation.recall_at", k, at_least=1)
    checks.sequence("config.evaluation.scales", evaluation.scales, checks.number, above=0)
    checks.number("config.evaluation.whitening", evaluation.whitening, at_least=0, at_most=0.5)
    checks.number("config.evaluation.target_recall", evaluation.target_recall, above=0, at_most=1)
    checks.number("config.evaluation.expansion_alpha", evaluation.expansion_alpha, at_least=0)


def check_memory(config: ConfigDict, steps: int) -> None:
    """InputError where a run ends before its memory of past embeddings would join the gallery."""
    if not config.train.memory_size:
        return
    joins = max(config.train.memory_warm_up, -(-config.train.memory_size // batch_size(config))) + 1
    if steps < joins:
        raise InputError(
            f"The run ends after {steps:,} steps, and its memory would only join in step {joins:,}: when"
            f" config.train.memory_size={config.train.memory_size} embeddings are there, and"
            f" config.train.memory_warm_up={config.train.memory_warm_up} batches have passed. Lower them, or"
            " train for longer."
        )


def batch_size(config: ConfigDict) -> int:
    """Images in a batch, of all devices together."""
    return config.data.classes_per_batch * config.data.examples_per_class


def any_size(config: ConfigDict) -> bool:
    """Whether the model that is evaluated has to take images of any size."""
    return config.evaluation.full_size or tuple(config.evaluation.scales) != (1.0,)


def total_steps(config: ConfigDict, num_images: int) -> int:
    """The steps of the run; an epoch is as many images as the training part has."""
    size = batch_size(config)
    steps, epochs = config.train.steps, config.train.epochs
    if (steps > 0) == (epochs > 0):
        raise InputError(
            "Give one of config.train.steps and config.train.epochs, and set the other to 0."
            f" Received: steps={steps}, epochs={epochs}"
        )
    steps = steps or max(1, round(epochs * num_images / size))
    print(f"{steps:,} steps of {size} images = {steps * size / num_images:.1f} epochs")
    return steps


def parts(field: str, text: str) -> list[str]:
    """The parts of a text between commas.

    >>> parts("train.no_decay", "bias, gamma")
    ['bias', 'gamma']
    """
    found = [part.strip() for part in text.split(",")] if text else []
    if not all(found):
        raise checks.invalid(f"config.{field}", "parts of variables' paths with commas between", text)
    return found


def multipliers(text: str) -> dict[str, float]:
    """The learning-rate multipliers in a text.

    >>> multipliers("embedding=10, gem=0.5")
    {'embedding': 10.0, 'gem': 0.5}
    """
    pairs = [part.rpartition("=") for part in parts("train.learning_rate_multipliers", text)]
    try:
        return {name.strip(): float(factor) for name, _, factor in pairs}
    except ValueError:
        raise checks.invalid(
            "config.train.learning_rate_multipliers", "something like embedding=10, gem=0.5", text
        ) from None
