"""What requests and answers contain; the OpenAPI page is made from this."""

import base64
import binascii
import json
from collections.abc import Iterable
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from tfrank.search.server.errors import RequestError, shortened
from tfrank.search.server.uploads import Box

# Most images of an answer, so that one request takes little memory and time.
MOST_RESULTS = 1000
_PRINTED = r"^[^\x00-\x1f\x7f]*$"


def once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Returns pairs as a dict. Raises RequestError if a name is repeated, since a dict keeps only one."""
    fields = {}
    for name, value in pairs:
        if name in fields:
            raise RequestError(422, f"{shortened(name)}: It came twice. Send it once.")
        fields[name] = value
    return fields


def _from_json(value: Any) -> Any:
    """Returns the value of a JSON text, as form fields have it; other values as they are."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value, object_pairs_hook=once) if value else {}
    except (ValueError, RecursionError):
        raise ValueError("expected JSON") from None


def _from_commas(value: Any) -> Any:
    """Returns the numbers of a text such as 0.1,0.2,0.5,0.5; other values as they are."""
    return value.split(",") if isinstance(value, str) else value


def _vector(value: Any) -> Any:
    """Returns the numbers of a JSON list or of float16 bytes in base64; other values as they are."""
    if not isinstance(value, str):
        return value
    if value.startswith("["):
        return _from_json(value)
    try:
        data = base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True)
        return np.frombuffer(data, "<f2").tolist()
    except (binascii.Error, ValueError):
        raise ValueError("expected a list of numbers, or little-endian float16 in base64") from None


def as_text(vector: np.ndarray) -> str:
    """Returns a vector as little-endian float16 in URL-safe base64, which the server reads again.

    >>> as_text(np.array([1, -0.5])), _vector(as_text(np.array([1, -0.5])))
    ('ADwAuA', [1.0, -0.5])
    """
    return base64.urlsafe_b64encode(np.asarray(vector, "<f2").tobytes()).decode().rstrip("=")


_BOX = Field(
    None,
    description="Left, top, width and height of the part to search by, in shares of the upright image.",
    examples=[[0.25, 0.25, 0.5, 0.5]],
)


class WithBox(BaseModel):
    """A request that may mark a part of its image."""

    model_config = ConfigDict(extra="forbid")
    box: Annotated[Box | None, BeforeValidator(_from_commas)] = _BOX

    @field_validator("box")
    @classmethod
    def _check_box(cls, box):
        if box is not None:
            left, top, width, height = box
            inside = left >= 0 and top >= 0 and left + width <= 1 + 1e-6 and top + height <= 1 + 1e-6
            if not (inside and width > 0 and height > 0):
                raise ValueError("expected left, top, width and height in shares of the image, 0 to 1")
        return box


class SearchRequest(WithBox):
    """What to search for: an id, a vector, or an uploaded file."""

    id: str | None = Field(None, description="Id of an image of the index.")
    vector: Annotated[list[float] | None, BeforeValidator(_vector)] = Field(
        None, description="An embedding: numbers, or little-endian float16 in base64.", max_length=65_536
    )
    k: int = Field(
        20,
        ge=1,
        description=f"Number of images to find, up to {MOST_RESULTS:,}; more than the index has means all.",
    )
    where: Annotated[dict[str, Any], BeforeValidator(_from_json)] = Field(
        {},
        description="Conditions by column: a value, a list of values, or comparisons such as {'ge': 400}.",
        examples=[{"label": ["robin", "wren"], "width": {"ge": 400}}],
    )
    min_similarity: float | None = Field(None, ge=-1, le=1, description="Least cosine.")
    exclude_duplicates: bool = Field(False, description="Leave out near copies of the query.")


class AddRequest(BaseModel):
    """An image to add."""

    model_config = ConfigDict(extra="forbid")
    # No control characters, and none that UTF-8 cannot write.
    id: str = Field(
        "", description="A new id; made from the content if absent.", max_length=500, pattern=_PRINTED
    )
    label: str = Field("", description="Its class.", max_length=200, pattern=_PRINTED)

    @field_validator("id")
    @classmethod
    def _check_id(cls, image_id):
        if image_id.endswith(("/thumbnail", "/image")):
            raise ValueError("an id may not end in /thumbnail or /image, as addresses of pictures do")
        return image_id


class Versioned(BaseModel):
    """An answer, which names the version of the index that it is of."""

    version: int


class Result(BaseModel):
    """An image that was found."""

    id: str
    similarity: float
    match: str = Field(description="match, perhaps or no, as promised; empty if nothing can be promised.")
    metadata: dict[str, Any]


class SearchAnswer(Versioned):
    """What was found, the most similar first."""

    results: list[Result]
    promise: str = Field(
        description="What a match promises in an index of this size, or why no result is called one."
    )
    vector: str | None = Field(
        description="The embedding of an image that was sent, to search by again: float16 in base64."
    )


class EmbedAnswer(Versioned):
    """The embedding of an image, of norm 1, and the fingerprint of the model."""

    model: str
    embedding: list[float]


class Item(Versioned):
    """An image of the index and its columns."""

    id: str
    metadata: dict[str, Any]


class Items(Versioned):
    """Some images of the index."""

    images: int
    results: list[dict[str, Any]]


class Changed(Versioned):
    """The image that was added or deleted."""

    id: str


class Columns(Versioned):
    """The columns, which conditions may name."""

    images: int
    columns: list[dict[str, Any]]


class Duplicates(Versioned):
    """Groups of images that are nearly the same, the largest first, and how many there are in all."""

    total: int
    groups: list[list[str]]


class Health(Versioned):
    """The server answers."""

    status: str = Field(
        description="ok; or behind, if the current version of the index cannot be read, as the log says."
    )
    images: int
    look_seconds: float = Field(description="Seconds since the last look for a new version that succeeded.")


class Error(BaseModel):
    """What is wrong, in one sentence."""

    error: str
