"""What the server may be told."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a server.

    Attributes:
        token: what callers send to add and delete images; "": nobody may.
        max_megabytes: largest request, in 10^6 bytes.
        max_megapixels: largest image, in 10^6 pixels.
        max_waiting: number of searches, embeddings and changes at a time; further ones get status 503.
        hosts: names that the server may be called by, without a port; (): any. A name list protects a server
            on the loopback address from web pages whose own name leads to that address.
        trusted: whether the model of the index may run any operation.
        poll_seconds: how often to look for a new version of the index.
        wait_seconds: how long an image waits for others, so that the model embeds them together.
        body_seconds: how long a request may take to arrive.
    """

    token: str = ""
    max_megabytes: float = 20
    max_megapixels: float = 50
    max_waiting: int = 64
    hosts: tuple[str, ...] = ()
    trusted: bool = False
    poll_seconds: float = 0.5
    wait_seconds: float = 0.002
    body_seconds: float = 60

    @property
    def max_bytes(self) -> int:
        """The largest request, in bytes."""
        return int(self.max_megabytes * 1e6)

    @property
    def max_pixels(self) -> int:
        """The largest image, in pixels."""
        return int(self.max_megapixels * 1e6)
