"""A store for tests: Beam finds it by its scheme, and it keeps its files in a local folder."""

import os

from apache_beam.io.filesystem import FileMetadata, FileSystem
from apache_beam.io.localfilesystem import LocalFileSystem

SCHEME = "store"
# The folder that store:// stands for; an environment variable, so that worker processes know it.
FOLDER = "TFRANK_TEST_STORE"


class RemoteStore(FileSystem):
    """Files of store://..., which no function of `os` can open."""

    def __init__(self, pipeline_options):
        super().__init__(pipeline_options)
        self._local = LocalFileSystem(pipeline_options)

    @classmethod
    def scheme(cls):
        return SCHEME

    def _path(self, url):
        return os.path.join(os.environ[FOLDER], url.removeprefix(f"{SCHEME}://"))

    def _url(self, path):
        return f"{SCHEME}://{os.path.relpath(path, os.environ[FOLDER])}"

    def join(self, basepath, *paths):
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path):
        return tuple(path.rsplit("/", 1))

    def has_dirs(self):
        return False

    def mkdirs(self, path):
        raise OSError("a store has no folders")

    def _list(self, dir_or_prefix):
        top = os.environ[FOLDER]
        for folder, _, names in os.walk(top):
            for name in names:
                path = os.path.join(folder, name)
                if self._url(path).startswith(dir_or_prefix):
                    yield FileMetadata(self._url(path), os.path.getsize(path), os.path.getmtime(path))

    def create(self, path, mime_type="application/octet-stream", compression_type="auto"):
        os.makedirs(os.path.dirname(self._path(path)), exist_ok=True)
        return self._local.create(self._path(path), mime_type, compression_type)

    def open(self, path, mime_type="application/octet-stream", compression_type="auto"):
        return self._local.open(self._path(path), mime_type, compression_type)

    def copy(self, source_file_names, destination_file_names):
        for source, target in zip(source_file_names, destination_file_names):
            os.makedirs(os.path.dirname(self._path(target)), exist_ok=True)
            self._local.copy([self._path(source)], [self._path(target)])

    def rename(self, source_file_names, destination_file_names):
        self.copy(source_file_names, destination_file_names)
        self.delete(source_file_names)

    def exists(self, path):
        return os.path.isfile(self._path(path))

    def size(self, path):
        return os.path.getsize(self._path(path))

    def last_updated(self, path):
        return os.path.getmtime(self._path(path))

    def checksum(self, path):
        return str(self.size(path))

    def metadata(self, path):
        return FileMetadata(path, self.size(path), self.last_updated(path))

    def delete(self, paths):
        for path in paths:
            os.remove(self._path(path))
