"""Losses of TensorFlow Addons, the package most published TensorFlow baselines were trained with.

The formulas are the package's own (0.23, its last version). They allow comparisons and an independent check
of our losses. Labels, replicas and batches without pairs are handled as in our losses. A row in `ADDONS`
makes a loss available by name.
"""

import contextlib
import functools
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import keras
import tensorflow as tf

from tfrank.common import checks, distributed
from tfrank.common.normalize import l2_normalize
from tfrank.losses.core.first_order import first_derivative
from tfrank.losses.core.ignored import kept_rows
from tfrank.losses.core.loss import Loss
from tfrank.losses.core.permutation import permute
from tfrank.losses.core.ranking_loss import checked_batch

PREFIX = "addons/"

Distance = Literal["L2", "squared-L2", "angular"]


class Addon(NamedTuple):
    """The description of a loss of the package.

    Attributes:
        formula: f(package, labels, embeddings, **hyper_parameters), with the package's module `losses`,
            `[batch]` int64 labels and `[batch, dim]` float32 embeddings. Returns a scalar. Called only if the
            batch has the pairs it needs. Its signature has the package's defaults and our checks.
        native: the arguments of `tfrank.losses.get` for our counterpart. If all classes have equally many
            rows it has the same value, for triplets with `distance_metric` "squared-L2". The exception is
            n_pairs: ours takes every row as an anchor.
        normalize: whether embeddings are L2-normalised first, as the package's documentation asks.
        needs_negatives: whether the formula is undefined without a negative pair.
    """

    formula: Callable[..., tf.Tensor]
    native: dict[str, Any]
    normalize: bool = True
    needs_negatives: bool = True

    @property
    def defaults(self) -> dict[str, Any]:
        """The hyper-parameters, with the package's defaults."""
        return dict(self.formula.__kwdefaults__ or {})


Margin = checks.NonNegativeFloat


def _triplet_semi_hard(package, *batch, margin: Margin = 1.0, distance_metric: Distance = "L2"):
    return package.triplet_semihard_loss(*batch, margin=margin, distance_metric=distance_metric)


def _triplet_hard(
    package, *batch, margin: Margin = 1.0, soft: bool = False, distance_metric: Distance = "L2"
):
    return package.triplet_hard_loss(*batch, margin=margin, soft=soft, distance_metric=distance_metric)


def _lifted_structure(package, *batch, margin: Margin = 1.0):
    return package.lifted_struct_loss(*batch, margin=margin)


def _contrastive(package, labels, embeddings, *, margin: Margin = 1.0):
    """The mean over all pairs; the package's function takes a list of pairs, as distances."""
    same = tf.equal(labels[:, None], labels)
    distances = package.metric_learning.pairwise_distance(embeddings)
    rows = tf.cast(tf.size(labels), tf.float32)
    # Pairs of a row with itself add 0, as positives at distance 0.
    return tf.reduce_sum(package.contrastive_loss(same, distances, margin=margin)) / (rows * (rows - 1))


def _n_pairs(package, labels, embeddings):
    """Takes the first row of each class as anchor and the second as positive, for classes with two rows.

    The package's function takes similarities of anchors and positives. No shape may depend on labels, so
    there are always batch // 2 of both. Each surplus pair is similar only to itself and has loss 0.
    """
    same, batch = tf.equal(labels[:, None], labels), tf.size(labels)
    rows, count = tf.range(batch), functools.partial(tf.math.count_nonzero, dtype=tf.int32)
    paired = (count(same, axis=1) > 1) & (count(same & (rows < rows[:, None]), axis=1) < 2)
    first_of_class = tf.reduce_min(tf.where(same, rows, batch), axis=1)
    order = tf.argsort(tf.where(paired, first_of_class, batch), stable=True)

    pairs, classes = batch // 2, count(paired) // 2
    in_order = permute(embeddings, order)[: 2 * pairs]
    anchors, positives = in_order[0::2], in_order[1::2]
    exists = tf.range(pairs) < classes
    absent = tf.where(tf.eye(pairs, dtype=tf.bool), 0.0, -1e30)
    logits = tf.where(exists[:, None] & exists, tf.matmul(anchors, positives, transpose_b=True), absent)
    # The package casts labels to float32, which is exact for these small numbers.
    mean = package.npairs_loss(tf.range(pairs), logits)
    return mean * tf.cast(pairs / classes, tf.float32)


ADDONS: dict[str, Addon] = {
    "addons/triplet_semi_hard": Addon(_triplet_semi_hard, native={"name": "triplet", "mining": "semi_hard"}),
    "addons/triplet_hard": Addon(_triplet_hard, native={"name": "triplet", "mining": "hard"}),
    "addons/contrastive": Addon(_contrastive, native={"name": "contrastive"}, needs_negatives=False),
    "addons/n_pairs": Addon(_n_pairs, native={"name": "n_pairs"}, normalize=False),
    "addons/lifted_structure": Addon(
        _lifted_structure, native={"name": "lifted_structure", "squared": True}, normalize=False
    ),
}


@keras.saving.register_keras_serializable("tfrank")
class AddonsLoss(Loss):
    """A loss of TensorFlow Addons, of integer labels and embeddings, over the whole global batch.

        addons/triplet_semi_hard: mean over positive pairs of [margin + d_ap - d_an]_+, where n is the
            nearest negative with d_an > d_ap, or the farthest negative if there is none
        addons/triplet_hard: mean over rows of [margin + max_p d_ap - min_n d_an]_+; with `soft` of
            log(1 + exp(max_p d_ap - min_n d_an)). A row without positives counts, with d_ap = 0
        addons/contrastive: mean over ordered pairs i != j of d_ij^2 if both have the same class, else of
            [margin - d_ij]_+^2
        addons/n_pairs: mean over classes of log(1 + sum over other classes k of exp(a_c p_k - a_c p_c)),
            where a_c and p_c are the first two rows of class c in the batch; other rows are not used
        addons/lifted_structure: half the mean over positive pairs of [d_ij + log(sum over negatives k of i
            of exp(margin - d_ik) + sum over negatives l of j of exp(margin - d_jl))]_+^2

    d is the Euclidean distance unless `distance_metric` says otherwise. The first three losses L2-normalise
    the embeddings; the last two take them as they are.

    The package is the extra `addons`, for Python 3.11 only. It is imported when the first loss is created.
    Its development ended before Keras 3, with which only its losses can be imported, without the package's
    top level. The top level would also warn that development has ended and about TensorFlow's version; these
    warnings are left out.

    Args:
        loss: a key of `ADDONS`.
        reduction: "mean" only, as a loss of the package is one value of the whole batch.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss; if None, its key.
        **hyper_parameters: hyper-parameters of that loss; `ADDONS` lists them with the package's defaults:
            margin, at least 0 (all but n_pairs; default 1); soft (triplet_hard; default False);
            distance_metric (triplets): "L2", "squared-L2" or "angular", which is 1 - cosine. Default "L2".

    Called as `loss(labels, embeddings)`:
        labels: `[batch]` or `[batch, 1]`, any integer dtype; compared as integers.
        embeddings: `[batch, dim]`, any float dtype; the package computes in float32.

    Every replica computes the loss of the batch gathered from all of them, and returns its share. The values
    of the replicas, and their gradients, are to be summed: N replicas then equal one device. `sample_weight`
    raises InputError. First derivatives only, see `RankingLoss`.

    A batch without a positive pair gives 0 and zero gradients. So does a batch without a negative pair if the
    formula needs one (all but contrastive). The package gives NaN there, or counts pairs that do not exist.

    References: Schroff et al., FaceNet, CVPR 2015, arXiv 1503.03832 (section 3.2); Hermans et al., In
    Defense of the Triplet Loss, 2017, arXiv 1703.07737 (eq. 5); Hadsell et al., Dimensionality Reduction
    by Learning an Invariant Mapping, CVPR 2006 (eq. 4, twice its value); Sohn, Multi-class N-pair Loss,
    NeurIPS 2016 (RLL's eq. 2); Song et al., Lifted Structured Feature Embedding, CVPR 2016,
    arXiv 1511.06452 (eq. 4). Memory: the package's semi-hard triplets and lifted structure take
    `[batch^2, batch]`, the others `[batch, batch]`; ours never take `[batch^2, batch]`.

    >>> loss = AddonsLoss("addons/triplet_hard", margin=0.2)  # doctest: +SKIP
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)  # doctest: +SKIP
    1.4212
    >>> ADDONS["addons/triplet_hard"].defaults
    {'margin': 1.0, 'soft': False, 'distance_metric': 'L2'}

    Attributes:
        iteration: see `RankingLoss`; not read, as none of these losses changes with the step.

    Raises:
        InputError: the package cannot be imported. The message says how to install it, and which of our
            losses to use instead.
    """

    def __init__(
        self,
        loss: str,
        *,
        reduction: str = "mean",
        ignore_label: int | None = None,
        name: str | None = None,
        **hyper_parameters: Any,
    ):
        self.loss = checks.one_of("loss", loss, ADDONS)
        defaults = ADDONS[loss].defaults
        for field in hyper_parameters:
            if field not in defaults:
                raise checks.InputError(
                    f"Loss {loss!r} has no hyper-parameter {field!r}. Expected one of {list(defaults)}."
                    + checks.did_you_mean(field, defaults)
                )
        if reduction != "mean":
            refusal = checks.invalid("reduction", "'mean'", reduction)
            raise checks.InputError(f"{refusal}. {self._one_value()}")
        super().__init__(reduction=reduction, ignore_label=ignore_label, name=loss if name is None else name)
        known, values = checks.checks_of(ADDONS[loss].formula), defaults | hyper_parameters
        self.hyper_parameters = {field: known[field](field, value) for field, value in values.items()}
        try:
            _package_losses()
        except ImportError as error:
            raise checks.InputError(
                f"{loss!r} is a loss of TensorFlow Addons, which cannot be imported: {error}. Install it by"
                f" pip install 'tfrank[addons]', under Python 3.11, or take ours: {self._native()}."
            ) from error

    def _native(self):
        """The call that creates our counterpart, as text."""
        (_, name), *settings = ADDONS[self.loss].native.items()
        arguments = [repr(name), *(f"{setting}={value!r}" for setting, value in settings)]
        return f"tfrank.losses.get({', '.join(arguments)})"

    def _one_value(self):
        return f"{self.loss!r} is one value of the whole batch. Ours has one for each row: {self._native()}"

    # Overrides `__call__`, not `call`; see `RankingLoss`.
    def __call__(self, y_true, y_pred, sample_weight=None):
        if sample_weight is not None:
            raise checks.InputError(f"`sample_weight` cannot apply. {self._one_value()}")
        addon = ADDONS[self.loss]
        with tf.name_scope(self.name):
            labels, embeddings, _ = checked_batch(y_true, y_pred, None)
            labels, embeddings = kept_rows(labels, embeddings, ignore_label=self.ignore_label)
            embeddings = l2_normalize(embeddings) if addon.normalize else embeddings
            labels = distributed.gather_rows(labels)
            embeddings = distributed.gather_rows(tf.cast(embeddings, tf.float32))
            formula = functools.partial(addon.formula, _package_losses(), labels, **self.hyper_parameters)
            loss = _value_where(_has_pairs(labels, addon.needs_negatives), formula, embeddings)
            return loss / distributed.replica_count()

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "loss": self.loss, **self.hyper_parameters}


def _has_pairs(labels, needs_negatives):
    """Whether some class has two rows and, if negatives are needed, there are two classes; a bool scalar."""
    same = tf.equal(labels[:, None], labels)
    positives = tf.math.count_nonzero(same) > tf.size(labels, tf.int64)
    return positives & ~tf.reduce_all(same) if needs_negatives else positives


def _value_where(scored, formula, embeddings):
    """The formula of the embeddings if `scored`, else 0; a scalar.

    The gradient is computed inside the branch. Otherwise TensorFlow would pass shapes from the branch to its
    gradient, and XLA would need to know them when it compiles.
    """

    @tf.custom_gradient
    def chosen(embeddings):
        def value_and_slopes():
            with tf.GradientTape() as tape:
                tape.watch(embeddings)
                value = formula(embeddings)
            return value, tape.gradient(value, embeddings)

        nothing = 0 * embeddings
        value, slopes = tf.cond(scored, value_and_slopes, lambda: (tf.reduce_sum(nothing), nothing))
        return value, lambda upstream: first_derivative(upstream * slopes, embeddings)

    return chosen(embeddings)


@functools.cache
def _package_losses() -> types.ModuleType:
    """Imports `tensorflow_addons.losses`, once.

    Raises:
        ImportError: the package is not installed, or cannot be imported here.
    """
    spec = importlib.util.find_spec("tensorflow_addons")
    if spec is None:
        raise ModuleNotFoundError("No module named 'tensorflow_addons'")
    # The top level imports names that Keras 3 lacks (first in its optimizers). The losses need only its path.
    top = types.ModuleType("tensorflow_addons")
    top.__path__ = list(spec.submodule_search_locations or [])
    # The losses look up the type KerasTensor in this module of Keras 2, for annotations of arguments.
    engine = types.ModuleType("keras.src.engine")
    vars(engine)["keras_tensor"] = keras
    with _temporary_modules({"tensorflow_addons": top, "keras.src.engine": engine}):
        package = importlib.import_module("tensorflow_addons.losses")
    # The losses are tf.functions that call each other. Across such calls XLA cannot see that only a shape is
    # needed, and would compile again for every batch. As plain functions they become part of the caller's
    # graph.
    for module in (package, package.metric_learning):
        for name, function in list(vars(module).items()):
            if hasattr(function, "python_function"):
                setattr(module, name, function.python_function)
    return package


@contextlib.contextmanager
def _temporary_modules(modules: dict[str, types.ModuleType]) -> Iterator[None]:
    """Adds these modules to `sys.modules`; afterwards restores the previous entries, submodules included."""

    def found():
        return {name: module for name, module in sys.modules.items() if name.startswith(tuple(modules))}

    before = found()
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in found():
            del sys.modules[name]
        sys.modules.update(before)
