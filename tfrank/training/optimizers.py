"""The optimizers of the papers, with learning rates and weight decay that depend on variable paths."""

import itertools
import types
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from tfrank.common import checks

OPTIMIZERS = ("adam", "adamw", "sgd")


def build_optimizer(
    name: str = "adam",
    *,
    learning_rate: float | keras.optimizers.schedules.LearningRateSchedule,
    momentum: float = 0.9,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    decoupled: float = 0.0,
    no_decay: Sequence[str] = (),
    multipliers: Mapping[str, float] = types.MappingProxyType({}),
) -> keras.optimizers.Optimizer:
    """The optimizer of that name.

    With g the gradient of variable w at step t = 1, 2, ..., and

        rate  = learning_rate(t - 1) x the multiplier of w
        decay = decoupled, or 0 where no_decay names w

    a step is, after w <- w - rate decay w,

        adam, adamw  m <- beta_1 m + (1 - beta_1) g,  v <- beta_2 v + (1 - beta_2) g^2
                     w <- w - rate sqrt(1 - beta_2^t) / (1 - beta_1^t)  m / (sqrt(v) + epsilon)
        sgd          v <- momentum v - rate g
                     w <- w + v

    Adam is that of Kingma and Ba (arXiv 1412.6980), in the form at the end of their section 2; `epsilon` is
    their epsilon hat. PyTorch's is the epsilon of their Algorithm 1. In terms of that epsilon, ours is
    epsilon / sqrt(1 - beta_2^t). With the defaults, it is 3e-7 in the first step and 1e-8 in the limit. For
    gradients far above that, both take the same steps, to 1e-5 of a step.

    SGD is that of Caffe: v accumulates steps. In PyTorch v accumulates gradients: v <- momentum v + g and
    w <- w - rate v. Both agree while the rate is constant. When the rate falls, earlier gradients in v keep
    their old rate here, and get the new rate in PyTorch.

    Decoupled decay is that of Loshchilov and Hutter (arXiv 1711.05101), multiplied by the rate as in Keras
    and PyTorch. The papers use the other kind, `l2` of `build_step`, which is part of g.

    Args:
        name: one of `OPTIMIZERS`; "adamw" is "adam" with decoupled decay.
        learning_rate: above 0, or a schedule, see `build_schedule`.
        momentum: for "sgd" only, from 0 to 1.
        beta_1, beta_2: for "adam" and "adamw" only, from 0 to below 1.
        epsilon: for "adam" and "adamw" only, above 0.
        decoupled: decoupled weight decay; above 0 for "adamw", 0 for "adam", at least 0 for "sgd".
        no_decay: names of variables without decoupled decay, such as "bias". A name stands for the variables
            whose paths begin with it. If there are none, it stands for those whose paths have it as a part.
        multipliers: maps names of variables, as of `no_decay`, to a factor, at least 0, of their learning
            rate. It scales decoupled decay too, as with PyTorch's parameter groups. If several names stand
            for a variable, the longest counts. It scales the rate, not the gradient, which Adam would undo.
            10 for the new layers in RLL (arXiv 1903.03238, section 4.1.3); 2 for the last linear layer in
            Smooth-AP on INaturalist (arXiv 2007.12163, supplement).

    Raises:
        InputError: an argument is out of its range; an argument that the optimizer does not use has another
            value than its default; or, when the optimizer is built, a multiplier applies to no variable.

    >>> weight = keras.Variable([2.0], name="weight")
    >>> optimizer = build_optimizer("sgd", learning_rate=0.1, multipliers={"weight": 10})
    >>> optimizer.build([weight])
    >>> _ = optimizer.apply_gradients([(keras.ops.ones([1]), weight)])
    >>> float(weight[0])
    1.0
    """
    checks.one_of("optimizer", name, OPTIMIZERS)
    if not isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        learning_rate = checks.number("learning_rate", learning_rate, above=0)
    _check_unused(name, momentum=momentum, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)
    decoupled = checks.number("decoupled", decoupled, at_least=0)
    if name == "adam" and decoupled:
        raise checks.invalid("decoupled", '0 for "adam"; for decoupled decay use "adamw"', decoupled)
    if name == "adamw" and not decoupled:
        raise checks.invalid("decoupled", 'a number above 0 for "adamw"; without decay use "adam"', decoupled)
    by_path = dict(
        learning_rate=learning_rate, decoupled=decoupled, no_decay=no_decay, multipliers=multipliers
    )
    if name == "sgd":
        return SGD(momentum=checks.number("momentum", momentum, at_least=0, at_most=1), **by_path)
    return Adam(
        beta_1=checks.number("beta_1", beta_1, at_least=0, below=1),
        beta_2=checks.number("beta_2", beta_2, at_least=0, below=1),
        epsilon=checks.number("epsilon", epsilon, above=0),
        **by_path,
    )


def _check_unused(name, **arguments):
    """Raises InputError if an argument that the optimizer does not use differs from its default."""
    used = ("momentum",) if name == "sgd" else ("beta_1", "beta_2", "epsilon")
    for argument, value in arguments.items():
        default = build_optimizer.__kwdefaults__[argument]
        if argument not in used and value != default:
            raise checks.invalid(argument, f'{default}, the default, as "{name}" does not use it', value)


def named(paths: Iterable[str], names: Iterable[str]) -> set[str]:
    """Returns the paths of variables that any of `names` stands for.

    A name stands for the paths that begin with it. If there are none, it stands for those that have it as a
    part.

    >>> paths = ["clip_base/embedding/bias", "embedding/bias"]
    >>> sorted(named(paths, ["embedding"])), sorted(named(paths, ["bias"]))
    (['embedding/bias'], ['clip_base/embedding/bias', 'embedding/bias'])
    """
    paths = list(paths)
    meant = ([p for p in paths if p.startswith(name)] or [p for p in paths if name in p] for name in names)
    return set(itertools.chain.from_iterable(meant))


def check_names(variables: Iterable[keras.Variable], names: Iterable[str], field: str) -> None:
    """Raises InputError if one of `names`, the value of `field`, is not part of any variable's path.

    >>> weight = keras.Variable([2.0], name="embedding")
    >>> check_names([weight], ["embeding"], "no_decay")
    Traceback (most recent call last):
    tfrank.common.checks.InputError: Invalid value for argument `no_decay`. Expected parts of the paths of \
variables, which are: embedding. Received: no_decay='embeding'. Did you mean "embedding"?
    """
    paths = [variable.path for variable in variables]
    # Users mostly name the first or the last layers.
    some = paths if len(paths) <= 8 else [*paths[:4], f"{len(paths) - 8} more", *paths[-4:]]
    for name in _unmatched(names, paths):
        hint = checks.did_you_mean(name, {part for path in paths for part in path.split("/")})
        expected = f"parts of the paths of variables, which are: {', '.join(some)}"
        raise checks.InputError(f"{checks.invalid(field, expected, name)}.{hint}")


def _unmatched(names, paths):
    """Returns the names that are part of no path."""
    return [name for name in names if not any(name in path for path in paths)]


class _ByPath:
    """Mixin for Keras optimizers: rate multipliers and decoupled decay that depend on variables' paths.

    Keras' own `weight_decay` does not know the multipliers, so it stays unset.
    """

    def __init__(self, *, decoupled=0.0, no_decay=(), multipliers=types.MappingProxyType({}), **arguments):
        super().__init__(**arguments)
        self.decoupled = decoupled
        # Tuples, because lists and dicts in a Keras optimizer become nodes of its checkpoints.
        self.no_decay = _names("no_decay", no_decay)
        self.multipliers = _factors(multipliers)

    def build(self, variables):
        """Creates the variables' slots; raises InputError if a multiplier applies to no variable."""
        if self.built:
            return
        check_names(variables, [name for name, _ in self.multipliers], "multipliers")
        self._warn_of_names(variables)
        paths = [variable.path for variable in variables]
        meant = {pair: named(paths, pair[:1]) for pair in self.multipliers}
        matching = [[pair for pair in self.multipliers if path in meant[pair]] for path in paths]
        longest = [max(pairs, key=lambda pair: (len(pair[0]), pair), default=None) for pairs in matching]
        for name, factor in self.multipliers:
            if (name, factor) not in longest:
                expected = f'no longer names that match all variables of "{name}": the longest counts'
                raise checks.invalid("multipliers", expected, dict(self.multipliers))
        super().build(variables)
        self._multiplier = tuple(pair[1] if pair else 1.0 for pair in longest)
        spared = named(paths, self.no_decay)
        self._decay = tuple(0.0 if path in spared else self.decoupled for path in paths)

    def _warn_of_names(self, variables):
        """Warns of names that exclude nothing from decay: a list may be one for several models."""
        paths = [variable.path for variable in variables]
        unused = _unmatched(self.no_decay, paths)
        if self.decoupled and unused:
            warnings.warn(f"no_decay={unused} matches no variable: {', '.join(paths[:8])}", stacklevel=2)

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Raises InputError: Keras' own decay is not used."""
        raise checks.InputError("What is not to decay is named by no_decay=[...] of build_optimizer.")

    def update_step(self, gradient, variable, learning_rate):
        """Applies decay to one variable, then Keras' update, both at the variable's own rate."""
        # The argument is TensorFlow's variable on one device, which has no path.
        index = self._get_variable_index(variable)
        rate = keras.ops.cast(learning_rate, variable.dtype) * self._multiplier[index]
        if self._decay[index]:
            self.assign_sub(variable, variable * (rate * self._decay[index]))
        super().update_step(gradient, variable, rate)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "decoupled": self.decoupled,
            "no_decay": list(self.no_decay),
            "multipliers": dict(self.multipliers),
        }


@keras.saving.register_keras_serializable("tfrank")
class Adam(_ByPath, keras.optimizers.Adam):
    """Keras' Adam with settings that depend on variables' paths, see `build_optimizer`."""


@keras.saving.register_keras_serializable("tfrank")
class SGD(_ByPath, keras.optimizers.SGD):
    """Keras' SGD with settings that depend on variables' paths, see `build_optimizer`."""


def _names(argument, names):
    """Returns the names as a tuple. An empty name is invalid: it would match every variable."""
    if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
        raise checks.invalid(argument, "a list of parts of variables' paths", names)
    return tuple(names)


def _factors(multipliers):
    if not isinstance(multipliers, Mapping):
        raise checks.invalid("multipliers", "a dict from parts of variables' paths to factors", multipliers)
    names = _names("multipliers", multipliers)
    return tuple((name, checks.number("multipliers", multipliers[name], at_least=0)) for name in names)
