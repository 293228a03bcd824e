"""What the server may be told."""

import dataclasses
import re
import secrets
from collections.abc import Iterable

from tfrank.common import checks
from tfrank.common.checks import InputError

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a server.

    Attributes:
        token: what callers send to add and delete images; "": nobody may.
        key: what the page sends to change labels, where there is no token; "": nobody may.
        max_megabytes: largest request, in 10^6 bytes.
        max_megapixels: largest image, in 10^6 pixels.
        max_waiting: number of searches, embeddings and changes at a time; further ones get status 503.
        max_connections: number of connections at a time. One more closes the one that has waited longest for
            its client.
        hosts: names that the server may be called by, without a port; (): any. A name list protects a server
            on the loopback address from web pages whose own name leads to that address.
        trusted: whether the model of the index may run any operation.
        query_model: folder of a SavedModel that embeds the images to search by; "": the model of the index.
        poll_seconds: how often to look for a new version of the index.
        wait_seconds: how long an image waits for others, so that the model embeds them together.
        max_header_bytes: largest header of a request, its address included.
        header_seconds, body_seconds: how long the header and the body of a request may take to arrive.

    Raises:
        InputError: a setting is out of range.
    """

    token: str = ""
    key: str = ""
    max_megabytes: float = 20
    max_megapixels: float = 50
    max_waiting: int = 64
    max_connections: int = 256
    hosts: tuple[str, ...] = ()
    trusted: bool = False
    query_model: str = ""
    poll_seconds: float = 0.5
    wait_seconds: float = 0.002
    max_header_bytes: int = 32_768
    header_seconds: float = 10
    body_seconds: float = 60

    def __post_init__(self):
        for name in ("max_megabytes", "max_megapixels"):
            # At most a terabyte, and a terapixel.
            checks.number(name, getattr(self, name), at_least=0.001, at_most=1e6)
        for name in ("max_waiting", "max_connections"):
            checks.integer(name, getattr(self, name), at_least=1)
        if not re.fullmatch(r"|[!-~]([ -~]*[!-~])?", self.token):
            raise InputError(
                "The token cannot be sent in a header. Choose one of ASCII letters, digits and signs, without"
                " spaces or newlines at its ends."
            )
        if not all(re.fullmatch(r"[!-~]+", name) for name in self.hosts):
            raise InputError("A name of --hosts is empty or is not ASCII. Write --hosts=a.example,b.example")

    @property
    def max_bytes(self) -> int:
        """The largest request, in bytes."""
        return int(self.max_megabytes * 1e6)

    @property
    def max_pixels(self) -> int:
        """The largest image, in pixels."""
        return int(self.max_megapixels * 1e6)


def key_for(host: str, token: str = "") -> str:
    """Returns a new key of the page, on this machine and where there is no token; else "".

    >>> len(key_for("127.0.0.1")), key_for("127.0.0.1", "a token"), key_for("0.0.0.0")
    (22, '', '')
    """
    return secrets.token_urlsafe(16) if host in _LOOPBACK and not token else ""


def names_of(host: str, others: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns the names that a server goes by which listens at a host, for `Settings.hosts`.

    >>> names_of("127.0.0.1")
    ('localhost', '127.0.0.1', '[::1]')
    >>> names_of("0.0.0.0")
    ()
    """
    further = tuple(name.lower() for name in others)
    loopback = tuple(f"[{name}]" if ":" in name else name for name in _LOOPBACK)
    return (*loopback, *further) if host in _LOOPBACK or further else ()
