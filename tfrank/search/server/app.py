"""The endpoints of the server."""

import contextlib
import hashlib
import json
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, ValidationError
from starlette.datastructures import UploadFile as Uploaded

import tfrank
from tfrank.common.checks import did_you_mean
from tfrank.search.index import DUPLICATE
from tfrank.search.server import improving, labelling, pages, pictures, schemas, service
from tfrank.search.server.errors import RequestError, add_handlers, first_of, shortened
from tfrank.search.server.guard import VERSION, Guard, for_those_who_know
from tfrank.search.server.schemas import AddRequest, ClassifyRequest, SearchRequest, WithBox
from tfrank.search.server.service import Service
from tfrank.search.server.settings import Settings
from tfrank.search.server.versions import Opened, plain

# Below this nearly all images would be near copies of each other.
LEAST_DUPLICATE = 0.8
# Text of a form that is no file, and JSON.
MOST_FIELD_BYTES, MOST_JSON_BYTES = 2**20, 2**21
# The path comes as it was sent.
ImageId = Annotated[str, AfterValidator(urllib.parse.unquote)]
_REFUSED = {code: {"model": schemas.Error} for code in (400, 403, 408, 413, 415, 421, 422, 500, 503)}
_UNKNOWN = {**_REFUSED, 404: {"model": schemas.Error}}
_BY_IMAGE = {**_UNKNOWN, 409: {"model": schemas.Error}}
_CHANGES = {**_BY_IMAGE, 401: {"model": schemas.Error}}
_JPEG = {200: {"content": {"image/jpeg": {}}}, 304: {"description": "Unchanged."}}


def create_app(folder: str, settings: Settings | None = None) -> FastAPI:
    """Returns the application that serves an index folder.

    Args:
        folder: the index folder, as `tfrank index` makes it.
        settings: limits and the token; None: the defaults, which allow no changes.

    Raises:
        InputError: the folder is no index, is damaged, or its model is refused.
    """
    settings = settings or Settings()
    running = Service(folder, settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with running.running():
            yield

    app = FastAPI(
        title="tfrank",
        summary="Search for images by an image, the id of an image, or an embedding.",
        version=tfrank.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        # Redirects would repeat a name that the client chose.
        redirect_slashes=False,
        dependencies=[Depends(_check_names)],
    )
    app.state.service = running
    add_handlers(app)
    app.add_middleware(
        Guard,
        settings=settings,
        metrics=running.metrics,
        version=lambda: running.versions.current.number,
    )
    _add_searches(app, running)
    _add_items(app, running)
    _add_changes(app, running)
    _add_facts(app, running)
    labelling.add(app, running, _read, _answer, _CHANGES)
    improving.add(app, running, _read, _answer, _CHANGES)
    pages.add(app)
    return app


async def _check_names(request: Request) -> None:
    """Raises RequestError for a parameter that the endpoint does not know. Pages and probes may have any."""
    route = request.scope["route"]
    known = [field.alias for field in route.dependant.query_params]
    unknown = [name for name in request.query_params if name not in known]
    if unknown and route.include_in_schema and "server" not in route.tags:
        name, hint = shortened(unknown[0]), did_you_mean(unknown[0], known)
        they = f"Those of this address are: {', '.join(known)}" if known else "This address takes none"
        body = ", send it in the body" if request.method == "POST" else ""
        raise RequestError(422, f"{name}: There is no such parameter.{hint} {they}{body}.")


def _answer(opened: Opened, content: dict[str, Any], status: int = 200) -> Response:
    """Returns an answer of a version as JSON, which names the version."""
    return _json({"version": opened.number, **content}, status, opened.number)


def _json(content: dict[str, Any], status: int, version: int) -> Response:
    return JSONResponse(content, status, {VERSION: str(version)})


def _body(model: type[BaseModel], *, json_too: bool) -> dict[str, Any]:
    """Returns the OpenAPI description of a body that is a form with a file, or JSON."""
    schema = model.model_json_schema()
    file = {"type": "string", "format": "binary", "description": "An image file."}
    texts = {
        name: {"type": "string", "description": field.get("description", "")}
        for name, field in schema["properties"].items()
    }
    form = {"type": "object", "properties": {"file": file, **texts}, "additionalProperties": False}
    content = {"multipart/form-data": {"schema": form}}
    if json_too:
        content["application/json"] = {"schema": schema}
    return {"requestBody": {"content": content, "required": True}}


async def _read(request: Request, model: type[BaseModel]) -> tuple[Any, bytes | None]:
    """Returns the fields of a request as a model, and the file that it brings.

    Raises:
        RequestError: the body is neither a form nor JSON, or a field is bad.
    """
    kind, data = request.headers.get("content-type", "").split(";")[0].strip().lower(), None
    if kind == "application/json":
        fields = _parsed(await request.body())
    elif kind in ("multipart/form-data", "application/x-www-form-urlencoded"):
        async with request.form(max_files=1, max_fields=20, max_part_size=MOST_FIELD_BYTES) as form:
            fields = schemas.once(form.multi_items())
            file = fields.pop("file", None)
            if isinstance(file, Uploaded):
                data = await file.read() if file.filename or file.size else None
            elif file:
                raise RequestError(422, "file: Send it as a file, with a name.")
    else:
        raise RequestError(415, "Send a form (multipart/form-data) or JSON (application/json).")
    try:
        return model(**{str(name): value for name, value in fields.items()}), data
    except ValidationError as error:
        raise first_of(error) from None


def _parsed(body: bytes) -> dict[str, Any]:
    """Returns the fields of a JSON object. Raises RequestError if it is none, or too large."""
    if len(body) > MOST_JSON_BYTES:
        raise RequestError(413, f"JSON may have at most {MOST_JSON_BYTES:,} bytes.")
    try:
        fields = json.loads(body, object_pairs_hook=schemas.once)
    except (ValueError, RecursionError):
        raise RequestError(400, "The body is not JSON.") from None
    if not isinstance(fields, dict):
        raise RequestError(422, "The body has to be a JSON object.")
    return fields


def _add_searches(app: FastAPI, running: Service) -> None:
    """Adds search and embedding."""
    threads = running.threads

    @app.post(
        "/v1/search",
        openapi_extra=_body(SearchRequest, json_too=True),
        responses={200: {"model": schemas.SearchAnswer}, **_BY_IMAGE},
        tags=["search"],
    )
    async def search(request: Request) -> Response:
        """Finds the images that are most similar to an image: a file, an id, or a vector."""
        opened = running.versions.current
        asked, data = await _read(request, SearchRequest)
        found, vector = await running.search(opened, asked, data)

        def answer():
            rows = zip(found.ids, found.similarities.tolist(), found.matches, found.metadata)
            results = [
                {"id": key, "similarity": similarity, "match": match, "metadata": opened.metadata(row)}
                for key, similarity, match, row in rows
            ]
            text = None if vector is None else schemas.as_text(vector)
            about = {"promise": found.promise, "storage": found.storage, "searched": found.searched}
            about |= {"vector": text, "model": running.model(opened)}
            return _answer(opened, {"results": results, **about})

        return await threads.run(threads.answers, answer)

    @app.post(
        "/v1/classify",
        openapi_extra=_body(ClassifyRequest, json_too=True),
        responses={200: {"model": schemas.ClassifyAnswer}, **_BY_IMAGE},
        tags=["search"],
    )
    async def classify(request: Request) -> Response:
        """Returns which class of the index an image is of, or that it is of none: a file, id, or vector."""
        opened = running.versions.current
        asked, data = await _read(request, ClassifyRequest)
        found = await running.classify(opened, asked, data)
        return _answer(opened, {name: plain(value) for name, value in found._asdict().items()})

    @app.post(
        "/v1/embed",
        openapi_extra=_body(WithBox, json_too=False),
        responses={200: {"model": schemas.EmbedAnswer}, **_REFUSED},
        tags=["search"],
    )
    async def embed(request: Request) -> Response:
        """Returns the embedding of an image file."""
        opened = running.versions.current
        asked, data = await _read(request, WithBox)
        if data is None:
            raise RequestError(422, "file: Send an image.")
        embedder = running.embedder(opened, running.queries)
        embedding = await running.embed(embedder, data, asked.box, running.settings.max_pixels)
        return _answer(opened, {"model": embedder.fingerprint, "embedding": embedding.tolist()})


def _add_items(app: FastAPI, running: Service) -> None:
    """Adds what is known of single images."""
    threads = running.threads

    def picture(path: str, find: Callable[[Opened, str], Awaitable[tuple[bytes, str]]], summary: str) -> None:
        @app.get(
            path, responses={**_JPEG, **_UNKNOWN}, response_class=Response, summary=summary, tags=["images"]
        )
        async def send(request: Request, image_id: ImageId) -> Response:
            opened = running.versions.current
            service.known(opened, image_id)
            data, kind = await find(opened, image_id)
            tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
            headers = {"ETag": tag, "Cache-Control": "private, no-cache", VERSION: str(opened.number)}
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers=headers)
            return Response(data, media_type=kind, headers=headers)

    async def thumbnail(opened, image_id):
        return await threads.run(threads.files, pictures.thumbnail, opened, image_id), "image/jpeg"

    async def image(opened, image_id):
        data = await threads.run(threads.files, pictures.image_file, opened, image_id)
        return await threads.run(threads.images, pictures.shown, data)

    # Ids contain slashes, so that the longer addresses come first.
    picture("/v1/items/{image_id:path}/thumbnail", thumbnail, "A small JPEG of an image")
    picture("/v1/items/{image_id:path}/image", image, "The file of an image, upright")

    @app.get("/v1/items", responses={200: {"model": schemas.Items}, **_REFUSED}, tags=["images"])
    async def items(
        k: Annotated[int, Query(ge=1, le=1000)] = 20,
        label: Annotated[str | None, Query(description="Empty: none.")] = None,
    ) -> Response:
        """Lists k images, evenly spread over the index, or the first with a label."""
        opened = running.versions.current

        def answer():
            keys = opened.spread(k) if label is None else opened.labelled.get(opened.kept(label), [])[:k]
            rows = [opened.index.metadata(key) for key in keys]
            results = [{"id": row["id"], "metadata": opened.metadata(row)} for row in rows]
            return _answer(opened, {"images": len(opened.index), "results": results})

        return await threads.run(threads.answers, answer)

    @app.get(
        "/v1/items/{image_id:path}", responses={200: {"model": schemas.Item}, **_UNKNOWN}, tags=["images"]
    )
    async def item(image_id: ImageId) -> Response:
        """Returns the columns of an image."""
        opened = running.versions.current
        service.known(opened, image_id)
        metadata = opened.metadata(opened.index.metadata(image_id))
        return _answer(opened, {"id": image_id, "metadata": metadata})


def _add_changes(app: FastAPI, running: Service) -> None:
    """Adds what changes the index, for those who know the token."""

    authorized = for_those_who_know([running.settings.token], "the index")

    @app.post(
        "/v1/items",
        status_code=201,
        dependencies=[authorized],
        openapi_extra=_body(AddRequest, json_too=False),
        responses={201: {"model": schemas.Changed}, **_CHANGES},
        tags=["changes"],
    )
    async def add(request: Request) -> Response:
        """Adds an image. Once it is answered, searches find the image."""
        asked, data = await _read(request, AddRequest)
        if data is None:
            raise RequestError(422, "file: Send an image.")
        image_id = asked.id or f"uploads/{hashlib.sha256(data).hexdigest()[:16]}"
        version = await running.add(data, image_id, asked.label)
        return _json({"version": version, "id": image_id}, 201, version)

    @app.delete(
        "/v1/items/{image_id:path}",
        dependencies=[authorized],
        responses={200: {"model": schemas.Changed}, **_CHANGES},
        tags=["changes"],
    )
    async def delete(image_id: ImageId) -> Response:
        """Deletes an image. Once it is answered, no search finds the image."""
        version = await running.delete(image_id)
        return _json({"version": version, "id": image_id}, 200, version)


def _add_facts(app: FastAPI, running: Service) -> None:
    """Adds what is known of the whole index and of the server."""

    @app.get("/v1/columns", responses={200: {"model": schemas.Columns}, **_REFUSED}, tags=["index"])
    async def columns() -> Response:
        """Lists the columns, which conditions may name, with the values of text that has few."""
        opened = running.versions.current
        described = await running.threads.run(running.threads.answers, lambda: opened.columns)
        return _answer(opened, {"images": len(opened.index), "columns": described})

    @app.get("/v1/duplicates", responses={200: {"model": schemas.Duplicates}, **_REFUSED}, tags=["index"])
    async def duplicates(
        min_similarity: Annotated[float, Query(ge=LEAST_DUPLICATE, le=1)] = DUPLICATE,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Response:
        """Lists groups of images that are nearly the same, the largest first."""
        opened = running.versions.current
        groups = await running.threads.run_long(opened.duplicates, min_similarity)
        return _answer(
            opened, {"total": len(groups), "groups": groups[:limit], "min_similarity": min_similarity}
        )

    @app.get("/healthz", responses={200: {"model": schemas.Health}, **_REFUSED}, tags=["server"])
    async def healthz() -> Response:
        """Answers if the server is well, and whether it knows the current version of the index."""
        opened, age = running.versions.current, running.versions.age()
        status = "behind" if running.behind else "ok"
        return _answer(opened, {"status": status, "images": len(opened.index), "look_seconds": round(age, 1)})

    @app.get("/metrics", responses=_REFUSED, response_class=Response, tags=["server"])
    async def metrics() -> Response:
        """Returns counts and times for Prometheus."""
        opened = running.versions.current
        running.metrics.version.set(opened.number)
        running.metrics.images.set(len(opened.index))
        running.metrics.look.set(running.versions.age())
        return Response(running.metrics.text(), media_type="text/plain; version=0.0.4")
