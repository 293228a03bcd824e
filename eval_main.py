"""Measures a trained model on a config's test set.

python eval_main.py --config=configs/digits.py --workdir=runs/digits_pnp [--neighbors=exact|scann]
python eval_main.py --config=configs/digits.py --saved_model=runs/digits_pnp/saved_model
"""

import os

from absl import flags
from ml_collections import config_flags

from tfrank import commands, datasets, experiment, files, inference
from tfrank.evaluation import report
from tfrank.workdir import check_test_set_of, default_workdir

_DEFAULT_CONFIG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "configs", "digits.py")
_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "The config, and its loss: configs/digits.py:smooth_ap"
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run. Default: runs/<name of config>_<loss>")
_SAVED_MODEL = flags.DEFINE_string(
    "saved_model", None, "A SavedModel to measure, not the workdir's checkpoint"
)
_NEIGHBORS = flags.DEFINE_enum("neighbors", "exact", ["exact", "scann"], "How neighbours are searched")


def main(_):
    config = _CONFIG.value
    experiment.check_config(config)
    workdir = _WORKDIR.value or default_workdir(config)
    if _SAVED_MODEL.value:
        model = inference.load_saved_model(_SAVED_MODEL.value)
        files.make_folder(workdir)
        check_test_set_of(workdir, config)
    else:
        model = inference.embed_fn(experiment.load_trained(config, workdir))
    data = datasets.build_data(config, workdir)
    metrics = inference.evaluate(config, model, data.test, _NEIGHBORS.value)
    print(report.table({_SAVED_MODEL.value or workdir: metrics}))
    path = os.path.join(workdir, f"metrics_{_NEIGHBORS.value}.json")
    files.write_json(path, metrics)
    print(path)


if __name__ == "__main__":
    commands.run(main, default_config=_DEFAULT_CONFIG)
