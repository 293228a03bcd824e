"""The endpoints of labels: what people say of them, and what is proposed."""

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Header, Request, Response

from tfrank.common.checks import InputError
from tfrank.search import labels
from tfrank.search.label_review import doubtful_labels
from tfrank.search.proposals import proposals
from tfrank.search.server import guard, schemas
from tfrank.search.server.errors import RequestError, shortened
from tfrank.search.server.schemas import Relabel, Undo
from tfrank.search.server.service import Service
from tfrank.search.server.versions import Opened

# Photos of a group that are named, and doubtful labels.
MOST_SHOWN, MOST_DOUBTS = 8, 50


def add(app: FastAPI, running: Service, parsed: Callable, answered: Callable, refused: dict) -> None:
    """Adds the endpoints.

    Args:
        app: the application.
        running: what answers.
        parsed: returns the fields of a request as a model, and its file.
        answered: returns the answer of a version.
        refused: the statuses of requests that are refused, as OpenAPI describes them.
    """
    secrets = (running.settings.token, running.settings.key)
    secret = "token" if running.settings.token else "key" if running.settings.key else ""
    authorized = guard.for_those_who_know(secrets, "labels")

    @app.get("/v1/labels", responses={200: {"model": schemas.Labels}, **refused}, tags=["labels"])
    async def read(authorization: Annotated[str, Header()] = "") -> Response:
        """Lists the groups of images with one label, and says who may change them and what can be undone."""
        opened, allowed = running.versions.current, guard.knows(authorization, secrets)
        state = await running.threads.run(running.threads.answers, _state, opened)
        return answered(opened, {**state, "may_change": allowed, "secret": secret})

    def adds(path: str, model: type[Undo], work: Callable[[Opened, Any], object], words: str) -> None:
        @app.post(
            path,
            dependencies=[authorized],
            openapi_extra=schemas.json_body(model),
            responses={200: {"model": schemas.Relabelled}, **refused},
            description=words,
            tags=["labels"],
        )
        async def change(request: Request) -> Response:
            asked, _ = await parsed(request, model)
            opened, changed = await running.threads.run(running.threads.files, _changed, running, work, asked)
            return answered(opened, {"labels_version": opened.index.said.version, "changed": changed})

    words = "Gives a label to images. All get it, or none: if another change came first, or an id is unknown."
    adds("/v1/labels", Relabel, _relabel, words)
    adds("/v1/labels/undo", Undo, _undo, "Takes back the last change of labels.")
    _add_proposals(app, running, answered, refused)


def _add_proposals(app, running, answered, refused):
    """Adds what takes longer than a look-up."""

    @app.get("/v1/proposals", responses={200: {"model": schemas.Proposals}, **refused}, tags=["labels"])
    async def propose() -> Response:
        """Lists groups of images without a label that likely show the same, the largest first."""
        opened = running.versions.current
        groups = await running.threads.run_long(_proposed, opened)
        return answered(opened, {"labels_version": opened.index.said.version, "groups": groups})

    @app.get("/v1/doubts", responses={200: {"model": schemas.Doubts}, **refused}, tags=["labels"])
    async def doubt() -> Response:
        """Lists labels that look wrong, the most doubtful first."""
        opened = running.versions.current
        found = await running.threads.run_long(_doubted, opened)
        return answered(opened, {"labels_version": opened.index.said.version, "doubts": found})


def _relabel(opened, asked):
    ids = opened.labelled.get(opened.kept(asked.group), []) if asked.group else asked.ids
    if asked.group and not ids:
        raise RequestError(404, f"The index has no group {shortened(asked.group)!r}.")
    if unknown := [key for key in ids if key not in opened.index]:
        more = f", nor {len(unknown) - 1:,} more of these" if unknown[1:] else ""
        message = f"The index has no image {shortened(unknown[0])!r}{more}. No image got the label."
        raise RequestError(404, message, unknown=unknown)
    labels.change(opened.index.files.folder, dict.fromkeys(ids, asked.label), asked.labels_version)


def _undo(opened, asked):
    labels.undo(opened.index.files.folder, asked.labels_version)


def _changed(running, work, asked):
    """Changes labels; returns the version that is served then, and the labels that are others in it by id."""
    before = running.versions.current.index.said.labels
    try:
        work(running.versions.current, asked)
    except labels.Stale as error:
        raise RequestError(409, str(error)) from None
    except InputError as error:
        if isinstance(cause := error.__cause__, OSError):
            full = cause.errno in guard.DISK_FULL
            why = "The server's disk is full" if full else f"The labels cannot be written ({cause.strerror})"
            raise RequestError(507 if full else 500, f"{why}. Nothing was changed.") from None
        raise
    running.versions.refresh()
    index = running.versions.current.index
    others = {key for key, label in {*before.items()} ^ {*index.said.labels.items()} if key in index}
    return running.versions.current, {key: index.metadata(key)["label"] or "" for key in others}


def _state(opened: Opened) -> dict[str, Any]:
    index = opened.index
    groups = [
        {"label": label, "images": len(ids), "ids": ids[:MOST_SHOWN]}
        for label, ids in opened.labelled.items()
        if label
    ]
    return {
        "labels_version": index.said.version,
        "images": len(index),
        "groups": groups,
        "undo": labels.undoable(index.files.folder),
        "note": labels.gone(index.ids.tolist(), index.said.labels),
    }


def _proposed(opened, check):
    """Returns groups of images that likely show the same."""
    ids, spoken = opened.index.ids.tolist(), opened.index.said.labels
    alone = [row for row, key in enumerate(ids) if spoken.get(key) == ""]
    found = proposals(*opened.nearest(check), opened.index.labels, alone)
    return [{"ids": [ids[row] for row in one.rows], "label": one.label} for one in found]


def _doubted(opened, check):
    """Returns labels that look wrong."""
    ids, texts = opened.index.ids, opened.index.labels
    names, numbers = np.unique(texts, return_inverse=True)
    check()
    found = doubtful_labels(opened.compressed(), np.where(np.array(texts) == "", -1, numbers))
    return [
        {"id": str(ids[row]), "label": texts[row], "suggestion": str(names[suggestion]), "margin": margin}
        for row, suggestion, margin in found[:MOST_DOUBTS]
    ]
