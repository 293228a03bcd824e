"""The endpoints of improvement: the index learns from its labels, or goes back."""

from collections.abc import Callable

from fastapi import FastAPI, Request, Response

from tfrank.search.server import guard, schemas
from tfrank.search.server.service import Service


def add(app: FastAPI, running: Service, parsed: Callable, answered: Callable, refused: dict) -> None:
    """Adds the endpoints; the arguments are those of `labelling.add`."""
    improvement, threads, settings = running.improvement, running.threads, running.settings
    authorized = guard.for_those_who_know((settings.token, settings.key), "the index")

    def state(status: int = 200) -> Response:
        if improvement.state == "done":
            running.versions.refresh()
        opened = running.versions.current
        found = {"state": improvement.state, "lines": improvement.lines()}
        return answered(opened, {**found, "may_go_back": bool(opened.index.version.before)}, status)

    @app.get("/v1/improve", responses={200: {"model": schemas.Improved}, **refused}, tags=["labels"])
    async def read() -> Response:
        """Says how far the improvement is, and in the end what it did."""
        return await threads.run(threads.files, state)

    @app.post(
        "/v1/improve",
        status_code=202,
        dependencies=[authorized],
        openapi_extra=schemas.json_body(schemas.Improve),
        responses={202: {"model": schemas.Improved}, **refused},
        tags=["labels"],
    )
    async def start(request: Request) -> Response:
        """Lets the index learn from its labels, or go back to the model before, while it is searched."""
        asked, _ = await parsed(request, schemas.Improve)
        await threads.run(threads.looks, lambda: improvement.start(back=asked.back))
        return await threads.run(threads.files, state, 202)
