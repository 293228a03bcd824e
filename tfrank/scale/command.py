"""Prepares, embeds, evaluates and searches more images than one machine holds, on Apache Beam.

    tfrank scale prepare --images=gs://bucket/list.csv --output_dir=gs://bucket/records
    tfrank scale embed --model=runs/sop/saved_model --images=gs://bucket/list.csv --output_dir=gs://bucket/vectors
    tfrank scale evaluate --embeddings=gs://bucket/vectors --output_dir=gs://bucket/metrics
    tfrank scale index --embeddings=gs://bucket/vectors --output_dir=gs://bucket/index
    tfrank scale search --index_dir=gs://bucket/index --queries=gs://bucket/queries --output_dir=gs://bucket/near
    tfrank scale export --engine=qdrant --embeddings=gs://bucket/vectors --output_dir=gs://bucket/qdrant

Everything runs on this machine unless --runner names another runner: DataflowRunner, FlinkRunner and so on.
All options of Beam and of its runners may be given too. A stopped command of prepare or embed continues with
what is missing.
"""

import sys
from collections.abc import Sequence

from absl import flags, logging

from tfrank.common import checks, commands, files
from tfrank.common.checks import InputError
from tfrank.data.prepare.command_line import changes, parse_options, table
from tfrank.evaluation.report import terminal
from tfrank.export.saved_model import saved_model_of
from tfrank.scale import embed, evaluate, exchange, pipelines, records, sharded_index, storage
from tfrank.search.embedder import BATCH

_IMAGES = flags.DEFINE_string("images", "", "List of images, CSV or parquet; or folder of records.")
_OUTPUT = flags.DEFINE_string("output_dir", "", "Folder of the result, local or remote.")
_MODEL = flags.DEFINE_string("model", "", "Folder of a run or of a SavedModel.")
_TRUST = flags.DEFINE_bool(
    "trust_model", False, "Use the model even if it may read and write files or run Python."
)
_EMBEDDINGS = flags.DEFINE_string("embeddings", "", "Folder of embeddings; for evaluate the gallery.")
_QUERIES = flags.DEFINE_string(
    "queries",
    "",
    "Folder of embeddings of the queries. Default of evaluate: the gallery.",
)
_TWO_MODELS = flags.DEFINE_bool(
    "two_models",
    False,
    "The queries are of another model, which was trained to search embeddings of the gallery's.",
)
_INDEX = flags.DEFINE_string("index_dir", "", "Folder of an index in shards.")
_KS = flags.DEFINE_list("ks", [], "The Ks of Recall@K. Default: those of 1, 10, 100 that are possible.")
_NEIGHBORS = flags.DEFINE_integer("neighbors", 10, "Number of nearest images that search finds.")
_SHARDS = flags.DEFINE_integer(
    "shards",
    0,
    "Shards of an index, default 8 or one a file; or of a split of records, see tfrank prepare.",
)
_ROWS = flags.DEFINE_integer("rows", embed.ROWS, "Images of a file of embeddings.", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch", BATCH, "Most images that the model embeds at a time.")
_RECALL = flags.DEFINE_float("target_recall", 0.99, "Share of the nearest that each shard of an index finds.")
_ENGINE = flags.DEFINE_enum("engine", None, sorted(exchange.FORMATS), "Engine to export to.")
_MAX_SKIPPED = flags.DEFINE_float("max_skipped", 0.01, "Share of images that prepare may skip.")
_ALLOW_COMMON = flags.DEFINE_bool(
    "allow_common_classes", False, "Whether train and test may have classes in common."
)
_OPTION = flags.DEFINE_multi_string("option", [], "Option of prepare, such as --option=test_share=0.2.")


def main(argv: Sequence[str]) -> None:
    """Does what the first word asks for."""
    # Beam warns of packages that it does not need here.
    logging.set_verbosity(logging.ERROR)
    action, *beam_flags = argv
    needed, function = _ACTIONS[action]
    own = [flag.name for flag in flags.FLAGS.flags_by_module_dict()[main.__module__]]
    options = pipelines.beam_options(beam_flags, own)
    commands.check_flags(main.__module__, f"tfrank scale {action}", (*needed, *_FURTHER[action]))
    for name in needed:
        if not flags.FLAGS[name].value:
            raise InputError(f"tfrank scale {action} needs --{name}. --help explains it.")
    with checks.called({argument: f"--{flag}" for argument, flag in _FLAGS.items()}):
        function(options)


def _prepare(options):
    summary = records.prepare(
        _IMAGES.value,
        _OUTPUT.value,
        options,
        source_options=parse_options(_OPTION.value),
        num_shards=_SHARDS.value,
        max_skipped=_MAX_SKIPPED.value,
        allow_common_classes=_ALLOW_COMMON.value,
    )
    print(table(summary))
    print(f"Images: {changes(summary)}")
    print(f"Records: {_OUTPUT.value}")


def _embed(options):
    model = _MODEL.value if files.is_remote(_MODEL.value) else saved_model_of(_MODEL.value)
    done = embed.embed(
        model,
        _IMAGES.value,
        _OUTPUT.value,
        options,
        rows=_ROWS.value,
        batch=_BATCH.value,
        trusted=_TRUST.value,
    )
    now = (
        f"{done.new:,} of them now, at {done.new / done.seconds:,.0f} images/s"
        if done.new
        else "none of them now"
    )
    print(f"{done.images:,} images are embedded in {_OUTPUT.value}, {now}.")
    if done.skipped:
        image, reason = done.skipped[0]
        path = storage.join(_OUTPUT.value, "skipped.csv")
        print(f"{len(done.skipped):,} images cannot be used: {path}. The first: {image}: {reason}")


def _evaluate(options):
    try:
        ks = [int(k) for k in _KS.value] or None
    except ValueError:
        raise InputError(f"--ks={','.join(_KS.value)}: expected whole numbers.") from None
    found = evaluate.evaluate(
        _EMBEDDINGS.value,
        _OUTPUT.value,
        options,
        queries=_QUERIES.value,
        two_models=_TWO_MODELS.value,
        ks=ks,
        neighbors=_NEIGHBORS.value if flags.FLAGS["neighbors"].present else 0,
    )
    note = found.pop("note", "")
    print(terminal.listing({"": found}))
    if note:
        print(note)
    print(storage.join(_OUTPUT.value, "metrics.json"))


def _index(options):
    built = sharded_index.build(
        _EMBEDDINGS.value,
        _OUTPUT.value,
        options,
        shards=_SHARDS.value,
        target_recall=_RECALL.value,
    )
    least = min(shard.recall for shard in built)
    rows = sum(shard.rows for shard in built)
    print(f"{rows:,} images in {len(built)} shards, which find at least {least:.1%} of the nearest.")


def _search(options):
    count = sharded_index.search(
        _INDEX.value,
        _QUERIES.value,
        _OUTPUT.value,
        options,
        k=_NEIGHBORS.value,
        two_models=_TWO_MODELS.value,
    )
    print(f"The nearest images of {count:,} queries are in {_OUTPUT.value}")


def _export(options):
    count = exchange.export(_EMBEDDINGS.value, _ENGINE.value, _OUTPUT.value, options)
    print(f"{count:,} images are in {_OUTPUT.value}, for {_ENGINE.value}")


# The flags that arguments of functions come from.
_FLAGS = {
    "k": "neighbors",
    "num_shards": "shards",
    **{name: name for name in ("max_skipped", "batch", "rows", "shards", "target_recall")},
    **{name: name for name in ("ks", "neighbors", "queries", "two_models")},
}
# The flags that an action needs, and what it does.
_ACTIONS = {
    "prepare": (("images", "output_dir"), _prepare),
    "embed": (("model", "images", "output_dir"), _embed),
    "evaluate": (("embeddings", "output_dir"), _evaluate),
    "index": (("embeddings", "output_dir"), _index),
    "search": (("index_dir", "queries", "output_dir"), _search),
    "export": (("embeddings", "engine", "output_dir"), _export),
}

# The flags that an action takes beside these.
_FURTHER = {
    "prepare": ("shards", "max_skipped", "allow_common_classes", "option"),
    "embed": ("rows", "batch", "trust_model"),
    "evaluate": ("queries", "two_models", "ks", "neighbors"),
    "index": ("shards", "target_recall"),
    "search": ("two_models", "neighbors"),
    "export": (),
}


def _parse(argv: list[str]) -> list[str]:
    """Sets the flags of tfrank; returns the action and the flags that are left, which are Beam's."""
    if commands.HELP & set(argv):
        print(commands.usage(main.__module__))
        sys.exit(0)
    with commands.flag_errors(flags.FLAGS):
        _, *rest = flags.FLAGS(argv, known_only=True)
    if not rest or rest[0] not in _ACTIONS:
        given = f"Unknown command {rest[0]!r}. " if rest else ""
        raise InputError(f"{given}Give one of {', '.join(_ACTIONS)}.")
    return rest


def command() -> None:
    """The command tfrank scale."""
    commands.run(main, parse=_parse)


if __name__ == "__main__":
    command()
