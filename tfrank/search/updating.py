"""Brings an index up to date with the images of a folder, a table or records, and says what it did."""

import contextlib
import glob
import hashlib
import itertools
import os
import shlex
import tempfile

from tfrank.common import checks, files
from tfrank.common.checks import InputError
from tfrank.evaluation.nearest.codes import STORAGES
from tfrank.export import joined
from tfrank.export.saved_model import saved_model_of
from tfrank.search import building
from tfrank.search.adaptation import adapt
from tfrank.search.embedder import Embedder
from tfrank.search.images import listed_images
from tfrank.search.index import open_index
from tfrank.search.index_folder import IndexFolder
from tfrank.search.originals import originals
from tfrank.search.start import export_start

# So many photos of an index are looked for in another folder.
LOOKED_FOR = 100


def update_from(
    folder: str,
    source: str,
    *,
    model: str = "",
    trusted: bool = False,
    target_recall: float | None = None,
    storage: str = "",
    first: int = 0,
    dim: int = 0,
    adapted: bool = False,
) -> None:
    """Brings an index up to date with a source of images; prints what it does.

    Args:
        folder: the index folder; made if it does not exist.
        source: folder of images or of records, or a table, see `images.listed_images`.
        model: folder of a run or of a SavedModel. "": the model of the index, or at first EfficientNet-Lite0.
            What an index has made of this model stays its model.
        trusted: whether the model may run any operation.
        target_recall: recall that an approximate search is built to. None: as before, at first 0.99.
        storage: what is held in memory of an embedding: float32, float16, int8 or binary, see `codes`. "": as
            it was, at first float32.
        first: a new index is first made of so many images, evenly spread over the source, so that they can
            be searched while the others are embedded. 0: of all at once.
        dim: the first dimensions of the model's embeddings to keep; 0: all.
        adapted: whether to adapt the model to the images, see `adaptation`. EfficientNet-Lite0 always is.

    Raises:
        InputError: the storage or the recall is bad, there is no image, none can be read, the model is
            refused or was adapted before it is cut to `dim`, or another process writes.
    """
    if storage:
        checks.one_of("storage", storage, STORAGES)
    if target_recall is not None:
        checks.number("target_recall", target_recall, above=0, at_most=1)
    index, images = IndexFolder(folder), listed_images(source)
    found = sum(not image.is_folder for image in images)
    print(f"{found:,} images in {source}", flush=True)
    # A reader may be in another folder.
    root = files.text_of(os.path.abspath(source))
    options = {"root": root, "target_recall": target_recall, "storage": storage}
    with tempfile.TemporaryDirectory() as start:
        embedder = Embedder(_model(index, model, os.path.join(start, "start")), trusted=trusted)
        if dim not in (0, embedder.dim):
            embedder = _shorter(embedder, dim, os.path.join(start, "shorter"), trusted=trusted)
        if model and (own := _descendant(index, embedder.fingerprint)):
            embedder = Embedder(own, trusted=trusted)
        if 0 < first < len(images) and index.current() is None:
            spread = [images[row * len(images) // first] for row in range(first)]
            done = building.update(folder, embedder, spread, **options)
            print(f"The first {done.version.rows:,} images can be searched.", flush=True)
        done = building.update(folder, embedder, images, **options)
    sent = f" ({done.uploads:,} of them from uploads)" if done.uploads else ""
    moved = f" {done.moved:,} moved," if done.moved else ""
    print(
        f"Version {done.version.number} of {folder} has {done.version.rows:,} images:"
        f" {done.embedded:,} embedded{sent}, {done.kept:,} unchanged,{moved} {done.removed:,} removed."
    )
    for sentence in done.followed.sentences():
        print(sentence)
    adapt(folder, asked=adapted, trusted=trusted, target_recall=target_recall)
    print(open_index(folder, trusted=trusted).matches.sentence)
    if done.unread:
        print(
            f"{done.unread:,} images of the version before cannot be read now and stay as they were. Another"
            " model embeds their thumbnails until they can be read. To remove them: tfrank index remove"
        )
    if done.skipped:
        image, reason = done.skipped[0]
        print(
            f"{len(done.skipped):,} images or folders cannot be read and are listed in"
            f" {index.path('skipped.csv')}; the first: {image}: {reason}."
        )


def index_of(photos: str) -> str:
    """Returns the folder of the index of a folder of photos, which no other folder has.

    It is not among the photos: where the working directory is one of their folders, it is beside theirs, if
    one may write there, as not beside a home directory.

    >>> index_of("/home/ada/Pictures")
    'runs/photos/Pictures-f7cd2dff'
    """
    path = os.path.realpath(photos)
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
    folder = os.path.join("runs", "photos", f"{os.path.basename(path) or 'root'}-{digest}")
    beside = os.path.dirname(path)
    if _is_here(path) and beside != path and os.access(beside, os.W_OK) and not os.path.exists(folder):
        return os.path.join(beside, folder)
    return folder


def _is_here(path):
    """Returns whether the working directory is a folder or inside it."""
    try:
        return os.path.commonpath([path, os.getcwd()]) == path
    except (ValueError, OSError):  # It is on another drive, or was deleted.
        return False


def index_for(photos: str) -> str:
    """Returns the folder of the index of a folder of photos: its own, or that of the folder that it was.

    A folder was moved or renamed if that of another index is gone, and half of its photos are here, by name
    and size. Which is printed. An index that went on with a renamed folder is not that of a new folder under
    the old name, which has one of another name.
    """
    own = index_of(photos)
    # Before an index lay beside photos, it could lie among them.
    places = dict.fromkeys([os.path.dirname(own), os.path.join("runs", "photos")])
    others = (sorted(glob.glob(os.path.join(place, "*"))) for place in places)
    for folder in [own, *itertools.chain.from_iterable(others)]:
        try:
            before = _was(folder, photos)
        except InputError:
            if folder == own:
                return own  # Whoever opens it says what is wrong.
            continue
        if before and not _is(before, photos):
            print(f"{photos} has the photos of {before}, which is gone. Its index goes on: {folder}")
        if before:
            return folder
    names = itertools.chain([own], (f"{own}-{number}" for number in itertools.count(2)))
    return next(name for name in names if IndexFolder(name).current() is None)


def _is(root, photos):
    """Returns whether the root of an index is a folder of photos, which a link may lead to."""
    return os.path.realpath(files.path_of(root)) == os.path.realpath(photos)


def _was(folder, photos):
    """Returns the folder that an index is of, if it is this one, or gone and its photos are here; else ""."""
    index = IndexFolder(folder)
    version = index.current()
    if version and version.root and _is(version.root, photos):
        return version.root  # It went on here before.
    if not version or not version.root or os.path.lexists(files.path_of(version.root)):
        return ""
    tables = [index.read_part(part, ["path", "bytes"]) for part in version.parts]
    rows = [row for table in tables for row in table.to_pylist() if row["path"]]
    some = rows[:: -(-len(rows) // LOOKED_FOR) or 1]
    here = 0
    for row in some:
        path = os.path.join(photos, os.path.relpath(row["path"], version.root))
        with contextlib.suppress(OSError):
            here += os.path.getsize(files.path_of(path)) == row["bytes"]
    return version.root if some and 2 * here >= len(some) else ""


def _shorter(embedder, dim, place, *, trusted):
    """The model of the first dimensions, written to `place`. Raises InputError if its copies would be lost.

    Near copies are told by the embeddings before a model was adapted, which take all dimensions of its own.
    """
    folder = embedder.folder
    if originals(folder):
        origin = os.path.join(os.path.dirname(folder), joined.origin_of(folder))
        way = "make a new index"
        if os.path.isdir(origin):
            way = f"cut the model that it was made of: --model={shlex.quote(origin)} --dim={dim} --adapt"
        raise InputError(
            f"The model was adapted, and tells near copies by all its {embedder.dim} dimensions, so it is not"
            f" cut to {dim}. Leave out --dim, or {way}"
        )
    with checks.called({"dim": "--dim"}):
        shorter = joined.shorten(folder, dim, place, trusted=trusted)
    return Embedder(shorter, trusted=trusted)


def _descendant(index, fingerprint):
    """Returns the model of an index if it was made of another, by adapting it or learning; else ""."""
    old = index.current()
    if not old or old.model == fingerprint:
        return ""
    folder = index.path("models", old.model)
    return folder if joined.origin_of(folder) == fingerprint else ""


def _model(index, given, start):
    """The SavedModel that is given, or that of the index, or else one that is written to `start`."""
    if given:
        return saved_model_of(given)
    if old := index.current():
        return index.path("models", old.model)
    print("EfficientNet-Lite0 with ImageNet weights embeds them.", flush=True)
    export_start(start)
    return start
