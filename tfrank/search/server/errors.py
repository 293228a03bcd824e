"""Errors that are answered, each as `{"error": "one sentence"}`."""

import http
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from tfrank.common.checks import InputError
from tfrank.common.files import Locked

# Characters of a request that an answer repeats.
MOST_SHOWN = 600


class RequestError(Exception):
    """A request that is refused.

    Args:
        status: the HTTP status.
        message: one sentence that says what is wrong and what to do.
        retry_after: seconds after which to try again; 0: not at all.
        unknown: ids that the request names and that the index does not have.
    """

    def __init__(self, status: int, message: str, retry_after: int = 0, *, unknown: Sequence[str] = ()):
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after
        self.unknown = list(unknown)

    def response(self) -> JSONResponse:
        """Returns the answer."""
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after else {}
        if self.status == http.HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        content: dict[str, Any] = {"error": self.message}
        if self.unknown:
            content["unknown"] = self.unknown
        return JSONResponse(content, self.status, headers)


def first_of(error: ValidationError | RequestValidationError) -> RequestError:
    """Returns the first of the errors that pydantic found, as a sentence that names the field."""
    first = error.errors()[0]
    names = [str(part) for part in first["loc"] if part not in ("body", "query", "path", "header")]
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    return RequestError(422, f"{shortened('.'.join(names)) or 'The request'}: {message}.")


def shortened(text: str) -> str:
    """Returns the first characters of a text that a client may have made as long as it liked."""
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def add_handlers(app: FastAPI) -> None:
    """Makes an application answer all errors alike."""

    @app.exception_handler(RequestError)
    async def refused(_: Request, error: RequestError):
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError):
        return first_of(error).response()

    @app.exception_handler(Locked)
    async def locked(_: Request, error: Locked):
        return RequestError(503, "The index is being changed by another program. Try again.", 5).response()

    @app.exception_handler(InputError)
    async def bad_input(_: Request, error: InputError):
        return RequestError(422, str(error)).response()

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException):
        phrase = {404: "There is nothing at this address", 405: f"{request.method} is not possible here"}
        response = RequestError(
            error.status_code, f"{phrase.get(error.status_code, error.detail)}."
        ).response()
        response.headers.update(error.headers or {})
        return response
