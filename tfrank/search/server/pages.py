"""The pages: search, and the description of the endpoints."""

import functools
import importlib.resources
from collections.abc import Iterator
from typing import Any

import jinja2
from fastapi import FastAPI, Request, Response

# Files of the folder `page`, by address.
_FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/results.js": ("results.js", "text/javascript"),
    "/server.js": ("server.js", "text/javascript"),
    "/labels.js": ("labels.js", "text/javascript"),
    "/groups.js": ("groups.js", "text/javascript"),
    "/improve.js": ("improve.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/tick.svg": ("tick.svg", "image/svg+xml"),
}


def add(app: FastAPI) -> None:
    """Adds the pages to an application."""
    for path, (name, kind) in _FILES.items():
        app.add_api_route(path, functools.partial(_file, name, kind), include_in_schema=False)
    app.add_api_route("/docs", _endpoints, include_in_schema=False)


async def _file(name: str, kind: str) -> Response:
    return Response(_read(name), media_type=kind, headers={"Cache-Control": "no-cache"})


async def _endpoints(request: Request) -> Response:
    """Returns the description of the endpoints as a page, made from the OpenAPI description."""
    template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(_read("docs.html.jinja"))
    page = template.render(api=request.app.openapi(), endpoints=list(_described(request.app.openapi())))
    return Response(page, media_type="text/html")


def _described(api: dict[str, Any]) -> Iterator[tuple[str, str, str, dict[str, str], str]]:
    """Yields method, path, words, fields and statuses of each endpoint."""
    for path, methods in api["paths"].items():
        for method, one in methods.items():
            fields = {field["name"]: field.get("description", "") for field in one.get("parameters", [])}
            for content in one.get("requestBody", {}).get("content", {}).values():
                name = content["schema"].get("$ref", "").split("/")[-1]
                schema = api["components"]["schemas"].get(name, content["schema"])
                fields |= {
                    field: about.get("description", "") for field, about in schema["properties"].items()
                }
            words = one.get("description") or one.get("summary", "")
            yield method.upper(), path, words, fields, ", ".join(sorted(one["responses"]))


@functools.cache
def _read(name: str) -> str:
    return (importlib.resources.files(__package__) / "page" / name).read_text("utf-8")
