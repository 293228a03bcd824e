"""Trained models of a run or a SavedModel: opening, embedding, whitening and exporting."""

import dataclasses
import hashlib
import os
import zipfile
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tfrank.common import checks, files
from tfrank.common.checks import InputError
from tfrank.configs import letters, of_run
from tfrank.configs.default import Config
from tfrank.configs.sections import Data, Evaluation
from tfrank.data.index import RecordIndex, select
from tfrank.data.sources.embeddings import columns_of
from tfrank.data.sources.image import ROLES
from tfrank.evaluation.array_checks import check_unique, unit_rows
from tfrank.evaluation.embed import EmbedFn, embed_into, on_all_replicas
from tfrank.evaluation.postprocessing.mirror import with_mirror
from tfrank.evaluation.postprocessing.multi_scale import multi_scale
from tfrank.evaluation.postprocessing.whitening import Whitening, learn_whitening
from tfrank.evaluation.protocols import TestSet
from tfrank.export.fingerprint import fingerprint as fingerprint_of
from tfrank.export.saved_model import SIGNATURE, exported_contents, loading
from tfrank.run import evaluation_results, experiment
from tfrank.run.datasets import build_test_loader, test_size
from tfrank.run.embedding import embed_fn, fingerprint_of_weights, image_batches
from tfrank.run.export import export_model
from tfrank.run.shorter import sample_of
from tfrank.run.workdir import check_path

# Arrays of a file of embeddings that are measured.
_ARRAYS = ("embedding", "label", "id", "role", "group")


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A trained model to be evaluated.

    Attributes:
        config: defines how images are loaded, and at which scales they are embedded.
        function: maps images to embeddings, on all replicas.
        fingerprint: fingerprint of the weights.
        evaluations: default folder of its evaluations.
        model: the Keras model; None for a SavedModel.
    """

    config: Config
    function: EmbedFn
    fingerprint: str
    evaluations: str
    model: keras.Model | None

    def embed(self, index: RecordIndex, folder: str) -> np.ndarray:
        """Embeds all records to unit norm and stores the embeddings in a folder; resumes if interrupted."""
        data, evaluation = self.config.data, self.config.evaluation
        loader, precision = build_test_loader(data, evaluation), self.config.train.precision
        # Without it the key is that of embeddings which were stored before it could be on.
        steps = (evaluation.scales, "mirror") if evaluation.mirror else (evaluation.scales,)
        what = repr((self.fingerprint, precision, index.fingerprint(), loader, *steps))

        def batches_from(start):
            return image_batches(data, evaluation, select(index, np.arange(start, len(index))))

        key = hashlib.sha256(what.encode()).hexdigest()
        ids = evaluation_results.distinct_ids(index)
        return embed_into(folder, self.function, batches_from, ids=ids, labels=index.label, key=key)

    def embed_training(self, train: RecordIndex, folder: str) -> np.ndarray:
        """Embeds the training images, or a sample of them, as `embed` does."""
        sample = sample_of(self.config, train)
        what = "Whitening" if self.config.evaluation.whitening else "PCA"
        print(f"{what} is learnt on {len(sample):,} of {len(train):,} training images.")
        return self.embed(sample, folder)

    def learn_whitening(self, train: RecordIndex, folder: str) -> Whitening:
        """Learns PCA whitening as configured, on the training images or a sample of them."""
        options, embeddings = self.config.evaluation, self.embed_training(train, folder)
        with checks.as_fields("evaluation", (), dims="whitening_dim"):
            return learn_whitening(embeddings, power=options.whitening, dims=options.whitening_dim or None)

    def check_exportable(self, folder: str) -> None:
        """Raises InputError if there is no Keras model, or TensorFlow could not load one from `folder`."""
        check_path(folder)
        if self.model is None:
            raise InputError("A SavedModel cannot be exported again. Give the run by --workdir.")

    def export(self, folder: str, whitening: Whitening | None) -> str:
        """Writes a SavedModel that embeds at the config's scales and whitens if told to; returns its path."""
        self.check_exportable(folder)
        data, evaluation = self.config.data, self.config.evaluation
        scales, mirror = evaluation.scales, evaluation.mirror
        export_model(data, evaluation, self.model, folder, whitening, scales=scales, mirror=mirror)
        return folder


def open_model(
    config: Config, workdir: str, saved_model: str | None, *, trusted: bool = False
) -> TrainedModel:
    """Opens the model of a run, with its best or latest weights, or a SavedModel, on the config's devices.

    Args:
        config: defines how images are loaded, and on which devices.
        workdir: folder of the run.
        saved_model: folder of a SavedModel to open instead of the run's model; None for the run's.
        trusted: whether the SavedModel may run any operation; see `load_saved_model`.
    """
    strategy = experiment.build_evaluation_strategy(config.train)
    with strategy.scope():
        if saved_model:
            check_contents(saved_model, config.evaluation)
            shape = input_shape(config.data, config.evaluation)
            model, function = None, load_saved_model(saved_model, shape, trusted=trusted)
            fingerprint = fingerprint_of(saved_model)
            evaluations = f"{saved_model.rstrip('/')}_evaluation"
        else:
            model = experiment.load_trained(config, workdir)
            function, fingerprint = embed_fn(model), fingerprint_of_weights(model)
            evaluations = os.path.join(workdir, "evaluation")
    if config.evaluation.mirror:
        function = with_mirror(function)
    scales = config.evaluation.scales
    if scales != (1.0,):
        function = multi_scale(function, scales)
    return TrainedModel(config, on_all_replicas(function, strategy), fingerprint, evaluations, model)


def input_shape(data: Data, evaluation: Evaluation) -> tuple[int | None, ...]:
    """Returns the shape of the vectors or images of the data; None for any size."""
    if data.of_vectors:
        return (data.dim,)
    side = None if evaluation.any_size else test_size(data, evaluation)
    return side, side, 3


def check_contents(saved_model: str, options: Evaluation) -> None:
    """Raises InputError if the config asks for a step that the SavedModel already applies."""
    contents = exported_contents(saved_model)
    for field, asked, nothing, off in (
        ("whitening", options.whitening, 0.0, "0.0"),
        ("scales", list(options.scales), [1.0], "1.0"),
        ("mirror", options.mirror, False, "False"),
    ):
        if contents.get(field, nothing) != nothing and asked != nothing:
            raise InputError(
                f"{saved_model} was exported with {field} {contents[field]}, which would be done twice. Set"
                f" config.evaluation.{field} to {off}."
            )


def load_saved_model(
    folder: str, shape: tuple[int | None, ...], *, trusted: bool = False
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the `serving_default` signature of a SavedModel as an embedding function.

    Args:
        folder: folder of the SavedModel.
        shape: (side, side, 3) of the square images that it embeds, None for any side; or (dim,) of vectors.
        trusted: whether it may run any operation; see `export.saved_model.loading`.
    """
    with loading(folder, trusted=trusted) as path:
        loaded = tf.saved_model.load(path)
        signature = loaded.signatures[SIGNATURE]
        inputs, outputs = signature.structured_input_signature[1], signature.structured_outputs
        name = "images" if len(shape) == 3 else "vectors"
        if set(inputs) != {name} or "embedding" not in outputs:
            raise ValueError(f"from {sorted(inputs)} to {sorted(outputs)}, not from {name} to embedding")
        if inputs[name].dtype != tf.float32 or outputs["embedding"].shape.rank != 2:
            raise ValueError(f"not from float32 {name} to [batch, dim]")
        takes = inputs[name].shape[1:]
        if not takes.is_compatible_with(shape) or (None in shape and None not in takes):
            raise ValueError(f"its {name} are of shape {_sizes(takes)}, not {_sizes(shape)}")

        # The function holds the model too: the signature alone does not keep the variables alive.
        def embed(batch, model=loaded):
            return model.signatures[SIGNATURE](**{name: batch})["embedding"]

        return embed


def load_embeddings(path: str) -> tuple[np.ndarray, TestSet]:
    """Loads embeddings and their test set from an .npz file; normalises the embeddings to unit norm.

    Required arrays are `embeddings`, `[images, dim]` floats of any norm, and `labels`, `[images]` integers.
    Optional ones are `ids` (`[images]` text), `role` ("query" or "gallery") and `group`; see `TestSet`.
    Names may be singular or plural. A note names arrays that are not used.

    Raises:
        InputError: the file is missing, damaged or holds something else, or an embedding is not finite.
    """
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise ValueError("it is no .npz, or is cut off")
        with np.load(path, allow_pickle=False) as arrays:
            columns = columns_of(arrays, _ARRAYS)
            unused = sorted({*arrays} - {*columns})
            found = {column: arrays[name] for name, column in columns.items()}
        if missing := {"embedding", "label"} - found.keys():
            raise ValueError(f"it has no {' and no '.join(f'{name}s' for name in sorted(missing))}")
        embeddings, labels = found["embedding"], found["label"].reshape(-1)
        images = len(embeddings)
        test = TestSet(
            labels=labels.astype(np.int64, casting="safe"),
            ids=found.get("id", np.arange(images).astype(str)),
            role=found.get("role", np.full(images, "")).astype(str),
            group=found.get("group", np.full(images, -1)).astype(np.int64, casting="safe"),
        )
        shapes = {column.shape for column in (test.labels, test.ids, test.role, test.group)}
        if embeddings.ndim != 2 or embeddings.dtype.kind != "f" or shapes != {(images,)} or not images:
            raise ValueError(f"embeddings are {_shape(embeddings)}, and labels {_shape(labels)}")
        if not np.isin(test.role, ROLES).all():
            raise ValueError(f"a role is none of {ROLES}")
    except FileNotFoundError:
        raise InputError(
            f"There is no file {path}. Give the file of the embeddings, --embeddings=PATH."
        ) from None
    except files.NPZ_ERRORS as error:
        raise InputError(
            f"{path} cannot be measured: {str(error).rstrip('.')}. It should be an .npz with embeddings,"
            " [images, dim] floats, labels, [images] integers, and if known ids, role and group."
        ) from None
    if unused:
        print(f"Note: arrays of {path} that are not used: {', '.join(unused)}.", flush=True)
    check_unique("ids", test.ids)
    rows, _ = unit_rows(embeddings, test.ids)
    return rows, test


def run_of(saved_model: str | None) -> str | None:
    """Returns the workdir that contains a SavedModel, or None."""
    if not saved_model:
        return None
    folder = os.path.dirname(os.path.abspath(saved_model))
    # A model exported by an evaluation lies in the evaluation's folder.
    of_evaluation = os.path.dirname(folder)
    places = [folder, *([os.path.dirname(of_evaluation)] if of_evaluation.endswith("evaluation") else [])]
    runs = [place for place in places if os.path.exists(os.path.join(place, "config.json"))]
    return os.path.relpath(runs[0]) if runs else None


def config_of_run(workdir: str | None, saved_model: str | None) -> str:
    """Returns the path of the config of a run, given its folder or its SavedModel.

    Returns the path of configs/letters.py, the first run, if there is no such run.

    Raises:
        InputError: the SavedModel lies outside any run, so its images are unknown.
    """
    folder = workdir or run_of(saved_model)
    path = os.path.join(folder or "", "config.json")
    if folder and os.path.exists(path):
        return f"{of_run.__file__}:{path}"
    if saved_model:
        raise InputError(
            f"{saved_model} is not in the folder of a run, so its config is unknown. Give --config or"
            " --workdir."
        )
    return letters.__file__


def _sizes(shape):
    return " x ".join("any" if size is None else str(size) for size in shape)


def _shape(array):
    return f"{array.dtype} of shape {list(array.shape)}"
