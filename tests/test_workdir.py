"""What a run's folder remembers."""

import pytest

from configs import digits
from tfrank.checks import InputError
from tfrank.workdir import check_config_of


def test_a_run_has_begun_where_a_checkpoint_is_even_if_the_list_of_them_is_lost(tmp_path):
    config = digits.get_config()
    check_config_of(str(tmp_path), config)
    config.train.learning_rate = 0.5
    check_config_of(str(tmp_path), config)  # No step was saved, so this may still change.
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "ckpt-3.index").touch()
    config.train.learning_rate = 0.1
    with pytest.raises(InputError, match=r"train\.learning_rate: 0\.5 before, 0\.1 now"):
        check_config_of(str(tmp_path), config)
