"""A model of its own that embeds the images to search by."""

import logging
import threading

from tfrank.common.checks import InputError
from tfrank.search.embedder import Embedder
from tfrank.search.server.errors import RequestError
from tfrank.search.server.versions import Opened

BEHIND = (
    "The index has another model by now than when the server started, to whose images those of --query_model"
    " say nothing. Start the server again with a query model that the new one has taught, or without one."
    " Searches by id go on."
)
_LOG = logging.getLogger("tfrank.search.server")


class QueryModel:
    """A model whose embeddings are compared with those of another, which has taught it.

    Args:
        folder: folder of its SavedModel.
        opened: the index when the server starts.
        trusted: whether it may run any operation.

    Attributes:
        embedder: the model.

    Raises:
        InputError: its embeddings have other dimensions than those of the index, or it is refused.
    """

    def __init__(self, folder: str, opened: Opened, *, trusted: bool = False):
        self.embedder = Embedder(folder, trusted=trusted)
        if self.embedder.dim != (dim := opened.index.version.dim):
            raise InputError(
                f"The embeddings of --query_model={folder} have {self.embedder.dim} dimensions, and those of"
                f" the index {dim}. Give a model that was taught by that of the index."
            )
        self._models, self._told = {opened.model, self.embedder.fingerprint}, False
        self._telling = threading.Lock()

    def fits(self, opened: Opened) -> bool:
        """Returns whether the index has the model that it had when the server started, or this very one."""
        return opened.model in self._models

    def check(self, opened: Opened) -> None:
        """Raises RequestError if the index has another model by now."""
        if not self.fits(opened):
            raise RequestError(503, BEHIND)

    def look(self, opened: Opened) -> None:
        """Logs once that the index has another model, whichever threads look."""
        with self._telling:
            behind = not self.fits(opened)
            if behind and not self._told:
                _LOG.error("Searches by a file or a vector are refused: %s", BEHIND)
            self._told = behind
