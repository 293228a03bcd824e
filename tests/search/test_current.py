"""What is read of an index while others change it is of one version, the newest that is whole."""

import os
import shutil

import pytest

from tfrank.common.checks import InputError
from tfrank.search import building, earlier
from tfrank.search.current import read_current
from tfrank.search.index_folder import IndexFolder


def test_a_version_whose_files_go_while_it_is_read_is_read_again_in_the_newest(folder, tmp_path):
    index = IndexFolder(shutil.copytree(folder, tmp_path / "index").as_posix())
    tried = []

    def read(version):
        tried.append(version.number)
        if len(tried) == 1:
            for name in ("class 0/0.jpg", "class 1/1.jpg"):
                building.remove(index.folder, [name])
        return [image.id for image in earlier.as_indexed(index, version)]

    version, ids = read_current(index, read)
    assert tried == [1, 3] and version == index.current()
    assert len(ids) == 10 and not {"class 0/0.jpg", "class 1/1.jpg"} & {*ids}


def test_a_damaged_index_that_nobody_changes_is_said_to_be_damaged(folder, tmp_path):
    index = IndexFolder(shutil.copytree(folder, tmp_path / "index").as_posix())
    os.remove(index.path(index.existing().parts[0]))
    with pytest.raises(InputError, match="is damaged"):
        read_current(index, lambda version: [*earlier.as_indexed(index, version)])
