"""Short codes of embeddings, and the search by an exact scan of them.

    float16  the values in half precision: 2 bytes a dimension
    int8     round(value / scale), the scale being the largest magnitude of the dimension / 127: 1 byte
    binary   whether the value is above the median of the dimension: 1 bit

Scales and medians are learnt on the images, for each dimension. Queries keep their full precision, but for
binary codes, which are compared by the number of differing bits (Hamming).
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tfrank.common import checks
from tfrank.evaluation.nearest import top_k
from tfrank.evaluation.nearest.exhaustive import ROUNDING
from tfrank.evaluation.parallel import cores, in_parallel

CODES = ("float16", "int8", "binary")
STORAGES = ("float32", *CODES)
# Most rows that scales and medians are learnt on.
LEARNT_FROM = 100_000
# Rows that a thread scans at a time, scores that it holds, and rows that it turns into float32 in its cache.
TILE_ROWS, TILE_SCORES, FLOAT_ROWS = 2**16, 2**21, 2**10
WORD_BITS = 64


class Coder(NamedTuple):
    """Turns embeddings into codes, and compares queries with codes.

    Attributes:
        storage: one of `CODES`.
        learnt: `[dim]` float32: the scale of each dimension (float16: 1), or its median (binary).
    """

    storage: str
    learnt: np.ndarray

    @classmethod
    def learn(cls, storage: str, rows: np.ndarray) -> "Coder":
        """Learns it of `[rows, dim]` float32.

        >>> Coder.learn("int8", np.float32([[0.5, 0], [-1, 0]])).learnt * 127
        array([1., 0.], dtype=float32)
        """
        some = rows[:: -(-len(rows) // LEARNT_FROM)]
        if checks.one_of("storage", storage, CODES) == "binary":
            return cls(storage, np.median(some, axis=0).astype(np.float32))
        scale = np.abs(some).max(axis=0) / np.float32(127)
        return cls(storage, scale if storage == "int8" else np.ones_like(scale))

    def encode(self, rows: np.ndarray) -> np.ndarray:
        """Returns the codes of `[rows, dim]` float32: one row each, and for binary codes 64 bits a column.

        >>> Coder("binary", np.zeros(3, np.float32)).encode(np.float32([[1, -1, 1], [0, 0, 2]])).tolist()
        [[5], [4]]
        """
        blocks = [self._encoded(rows[start : start + TILE_ROWS]) for start in range(0, len(rows), TILE_ROWS)]
        return self.laid_out(np.concatenate(blocks))

    def laid_out(self, codes: np.ndarray) -> np.ndarray:
        """Returns codes as a scan reads them: binary ones one column after the other."""
        return np.asfortranarray(codes) if self.storage == "binary" else np.ascontiguousarray(codes)

    def _encoded(self, rows):
        if self.storage == "binary":
            bits = np.pad(rows > self.learnt, [(0, 0), (0, -rows.shape[1] % WORD_BITS)])
            return np.packbits(bits, axis=1, bitorder="little").view("<u8")
        if self.storage == "float16":
            return rows.astype(np.float16)
        scale = np.where(self.learnt > 0, self.learnt, np.float32(1))
        return np.clip(np.rint(rows / scale), -127, 127).astype(np.int8)

    def scores(self, queries: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Returns `[queries, rows]` float32, larger for codes that are nearer to a query.

        It is the product of the query with what the code stands for, or minus the number of differing bits.

        Args:
            queries: of `prepared`.
            codes: of `encode`.
        """
        if self.storage != "binary":
            scores = np.empty([len(queries), len(codes)], np.float32)
            for row in range(0, len(codes), FLOAT_ROWS):
                some = slice(row, row + FLOAT_ROWS)
                np.matmul(queries, codes[some].astype(np.float32).T, out=scores[:, some])
            return scores
        differing = np.zeros([len(queries), len(codes)], np.uint16)
        for word in range(codes.shape[1]):
            differing += np.bitwise_count(queries[:, word, None] ^ codes[:, word])
        return -differing.astype(np.float32)

    def prepared(self, queries: np.ndarray) -> np.ndarray:
        """Returns `[queries, dim]` float32 as `scores` compares them."""
        return self.encode(queries) if self.storage == "binary" else queries * self.learnt

    def nearest(self, queries: np.ndarray, codes: np.ndarray, count: int) -> np.ndarray:
        """Returns `[queries, count]` int64, the rows of the nearest codes; the lower of equally near ones.

        All codes are compared, on all cores.

        Args:
            queries: `[queries, dim]` float32.
            codes: of `encode`.
            count: at most the number of rows.
        """
        queries, size = self.prepared(queries), TILE_SCORES // TILE_ROWS
        share = -(-len(codes) // cores())

        def searched(task: tuple[int, int]) -> tuple[int, np.ndarray]:
            start, first = task
            part = queries[start : start + size]
            keys, last = np.full([len(part), count], top_k.EMPTY), min(first + share, len(codes))
            for row in range(first, last, TILE_ROWS):
                scores = self.scores(part, codes[row : min(row + TILE_ROWS, last)])
                keys = top_k.merge_tile(keys, scores, row)
            return start, keys

        keys = np.full([len(queries), count], top_k.EMPTY)
        tasks = [
            (start, row) for start in range(0, len(queries), size) for row in range(0, len(codes), share)
        ]
        results: Iterable[tuple[int, np.ndarray]] = in_parallel(searched, tasks)
        for start, found in results:
            keys[start : start + size] = top_k.merge(keys[start : start + size], found)
        return top_k.unpack(keys)[0]

    def needed(self, queries: np.ndarray, codes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Returns `[queries, k]`: among how many rows of the nearest codes each of some rows is for certain.

        That is the number of codes at least as near to the query as the code of the row.

        Args:
            queries: `[queries, dim]` float32.
            codes: of `encode`.
            wanted: `[queries, k]` the rows.
        """
        queries = self.prepared(queries)

        def counted(number: int) -> np.ndarray:
            query, counts = queries[number : number + 1], np.zeros(wanted.shape[1] + 1, np.int64)
            # Products of other shapes round otherwise.
            scores = self.scores(query, codes[wanted[number]])[0] - ROUNDING
            order = np.argsort(scores)
            for row in range(0, len(codes), TILE_ROWS):
                tile = self.scores(query, codes[row : row + TILE_ROWS])[0]
                counts += np.bincount(
                    np.searchsorted(scores[order], tile, side="right"), minlength=len(counts)
                )
            found = np.empty(len(order), np.int64)
            found[order] = np.cumsum(counts[::-1])[::-1][1:]
            return found

        return np.stack(list(in_parallel(counted, range(len(queries)))))
