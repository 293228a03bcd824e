"""What requests and answers contain; the OpenAPI page is made from this."""

import base64
import binascii
import json
from collections.abc import Iterable
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from tfrank.evaluation.votes import FAR
from tfrank.search.labels import MOST_LETTERS, PRINTED
from tfrank.search.server.errors import RequestError, shortened
from tfrank.search.server.uploads import Box

# Most images of an answer, so that one request takes little memory and time.
MOST_RESULTS = 1000
# Most images of a change of labels.
MOST_LABELLED = 10_000
_PRINTED = rf"^{PRINTED}$"


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


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """Returns the OpenAPI description of a body that is JSON."""
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"content": content, "required": True}}


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


class QueryRequest(WithBox):
    """An image: an id, a vector, or an uploaded file."""

    id: str | None = Field(None, description="Id of an image of the index.")
    vector: Annotated[list[float] | None, BeforeValidator(_vector)] = Field(
        None, description="An embedding: numbers, or little-endian float16 in base64.", max_length=65_536
    )
    model: str | None = Field(
        None,
        description="The model of the vector, as an answer named it: refused if the index has another now."
        " Absent: the one that embeds the files of this endpoint.",
    )


class ClassifyRequest(QueryRequest):
    """What to classify, and how rarely an image of no class may be taken for one of a class."""

    far: float = Field(
        FAR, gt=0, lt=1, description="Share of the images of other classes that may get a class."
    )


class SearchRequest(QueryRequest):
    """What to search for: an id, a vector, or an uploaded file."""

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
    label: str = Field("", description="Its class.", max_length=MOST_LETTERS, pattern=_PRINTED)

    @field_validator("id")
    @classmethod
    def _check_id(cls, image_id):
        if image_id.endswith(("/thumbnail", "/image")):
            raise ValueError("an id may not end in /thumbnail or /image, as addresses of pictures do")
        if image_id in (".", ".."):
            raise ValueError('an id may not be "." or "..", which programs take out of addresses')
        return image_id


class Undo(BaseModel):
    """A change of labels to take back."""

    model_config = ConfigDict(extra="forbid")
    labels_version: str = Field(description="Version of the labels that were seen.", max_length=100)


class Relabel(Undo):
    """A label for images, which are named by their ids or by the label that they have."""

    ids: list[str] = Field([], description="Ids of images.", max_length=MOST_LABELLED)
    group: str = Field("", description="Instead of ids: all images with this label.")
    label: str | None = Field(
        description="Their label; empty: they belong to no group; null: the one they came with.",
        max_length=MOST_LETTERS,
        pattern=_PRINTED,
    )

    @model_validator(mode="after")
    def _check_images(self):
        if bool(self.ids) == bool(self.group):
            raise ValueError("expected either ids or a group")
        return self


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
    storage: str = Field(description="What was searched: float32, or the codes float16, int8 or binary.")
    searched: str = Field(description="How the images were compared, and what an approximate search finds.")
    vector: str | None = Field(
        description="The embedding of an image that was sent, to search by again: float16 in base64."
    )
    model: str = Field(description="The model that embeds what is sent; to be sent with its vector.")


class ClassifyAnswer(Versioned):
    """The class of an image, by its nearest images."""

    label: str | None = Field(description="The class; null if no class of the index is near enough.")
    nearest: str = Field(description="The class with most votes, near enough or not.")
    share: float = Field(description="Its share of the votes of the nearest images, 0 to 1.")
    score: float = Field(description="How near it is, and how clear of other classes.")
    threshold: float | None = Field(
        description="The score from which on an image is of a class; null if nothing can be promised."
    )
    promise: str = Field(description="What the threshold promises, or why there is none.")


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
    min_similarity: float = Field(description="Each is connected by pairs that are at least so similar.")


class Group(BaseModel):
    """Images of one label."""

    label: str
    images: int
    ids: list[str] = Field(description="Ids of the first of them.")


class Labels(Versioned):
    """The labels of the images, as people corrected them."""

    labels_version: str = Field(description="Changes when a label does; a change has to name it.")
    images: int
    groups: list[Group]
    may_change: bool = Field(description="Whether the request's token or key allows changes.")
    secret: str = Field(
        description="What allows changes: token; key, that of the printed address; or empty: nothing does."
    )
    undo: int = Field(description="Number of images that an undo would change.")
    note: str = Field(description="A sentence on labels of images that are gone; empty if there are none.")


class Relabelled(Versioned):
    """Images whose label is another now, with that label."""

    labels_version: str
    changed: dict[str, str]


class Proposed(BaseModel):
    """Images that likely show the same, and the label of those that they resemble, which may be empty."""

    ids: list[str]
    label: str


class Doubted(BaseModel):
    """An image whose label looks wrong, and how much likelier another is, 0 to 1."""

    id: str
    label: str
    suggestion: str
    margin: float


class Proposals(Versioned):
    """Groups to confirm, the largest first."""

    labels_version: str
    groups: list[Proposed]


class Doubts(Versioned):
    """Labels that look wrong, the most doubtful first."""

    labels_version: str
    doubts: list[Doubted]


class Health(Versioned):
    """The server answers."""

    status: str = Field(
        description="ok; or behind, as the log says: the current version of the index cannot be read, or has"
        " another model than the one that taught the query model."
    )
    images: int
    look_seconds: float = Field(description="Seconds since the last look for a new version that succeeded.")


class Improve(BaseModel):
    """What to do: learn from the labels, or go back."""

    model_config = ConfigDict(extra="forbid")
    back: bool = Field(False, description="Go back to the model that the index had before.")


class Improved(Versioned):
    """How far an improvement is."""

    state: str = Field(description="none, running, done or failed.")
    lines: list[str] = Field(description="What it said last; why, if it failed.")
    may_go_back: bool = Field(description="Whether the index had another model before.")


class Error(BaseModel):
    """What is wrong, in one sentence."""

    error: str
    unknown: list[str] = Field(
        [], description="Where images cannot get a label: the ids that the index does not have."
    )
