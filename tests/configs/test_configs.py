"""Configs: every field is declared and used, every loss has its own."""

import importlib
import inspect
import math
import pathlib
import re
import typing

import pytest

from tfrank import LOSSES
from tfrank.common.checks import InputError
from tfrank.configs import default
from tfrank.configs.fields import OPEN, fields_of, flatten, tree
from tfrank.evaluation.evaluators import EVALUATORS
from tfrank.evaluation.postprocessing.steps import STEPS
from tfrank.losses import ADDONS
from tfrank.losses.proxies import PROXY_LOSSES
from tfrank.models.weights import PUBLISHED
from tfrank.run import config_help, experiment, settings
from tfrank.run.config_flag import load
from tfrank.run.objective import build_loss

CLASSES = LOSSES | PROXY_LOSSES
ROOT = pathlib.Path(default.__file__).parents[2]
# `of_run` is the config of a run, whose tests are in test_config_of_run.py.
HELPERS = {"__init__", "fields", "papers", "of_run"}
CONFIGS = sorted({path.stem for path in (ROOT / "tfrank" / "configs").glob("*.py")} - HELPERS)


def config_of(name, loss=""):
    return importlib.import_module(f"tfrank.configs.{name}").get_config(loss)


@pytest.mark.parametrize("name", [*CLASSES, *ADDONS])
def test_the_fields_of_a_loss_are_its_name_and_what_its_constructor_takes_with_the_defaults_there(name):
    section = default.get_config(name).loss.as_dict()
    assert section.pop("name") == name
    if name in ADDONS:
        assert section == dict(ADDONS[name].defaults)
        return
    others = {"labels", "categories", "reduction", "ignore_label", "name"}
    parameters = inspect.signature(CLASSES[name]).parameters
    assert section == {key: one.default for key, one in parameters.items() if key not in others}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("loss", ["", *CLASSES])
def test_every_config_takes_every_loss_recipe_and_builds_it(name, loss):
    own = "map_q" if name == "landmarks" else "recall_at_k" if name.startswith("vit_") else "pnp"
    config = settings.resolved(config_of(name, loss))
    assert isinstance(build_loss(config.loss, labels=[0, 1]), CLASSES[loss or own])


def test_a_memory_is_put_around_any_loss_that_ranks_a_gallery():
    config = default.get_config("rll")
    loss = build_loss(config.loss, labels=[0], memory_size=100, memory_warm_up=7)
    assert (loss.size, loss.warm_up, loss.loss.name) == (100, 7, "rll")


@pytest.mark.parametrize("size, warm_up, joins", [(512, 0, 5), (513, 4, 6), (100, 7, 8)])
def test_a_run_that_ends_before_its_memory_joins_is_refused(size, warm_up, joins):
    """In batches of 128."""
    config = default.get_config()
    config.train.update(memory_size=size, memory_warm_up=warm_up)
    settings.check_memory(config.train, config.data.batch_size, steps=joins)
    with pytest.raises(
        InputError, match=rf"after {joins - 1} steps, before its memory is used from step {joins} on"
    ):
        settings.check_memory(config.train, config.data.batch_size, steps=joins - 1)


@pytest.mark.parametrize("name", ["proxy_nca", "addons/triplet_hard"])
def test_a_memory_is_refused_where_the_loss_has_no_gallery(name):
    config = default.get_config(name)
    with pytest.raises(InputError, match=r"ranks no gallery, .*memory_size=0, or take one of pnp"):
        build_loss(config.loss, labels=[0], memory_size=100)


def test_every_field_is_read_somewhere():
    source = "".join(path.read_text() for path in (ROOT / "tfrank" / "run").glob("*.py"))
    config = default.get_config()
    options = {option for step in STEPS for option in step.options} | {one.field for one in EVALUATORS}
    for group in ("data", "train", "evaluation"):
        for field in getattr(config, group).as_dict():
            passed_on = field in (("train", "test") if group == "data" else options)
            assert passed_on or re.search(rf"\b({group}|options|self)\.{field}\b", source), field
    # The fields of the model are passed on as keywords.
    from tfrank.models.embedding import embedding_model
    from tfrank.models.vector_model import vector_model

    taken = inspect.signature(embedding_model).parameters | inspect.signature(vector_model).parameters
    assert {"image_size", "input_dim", *config.model.as_dict()} - {"weights"} == set(taken)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("loss", ["", "rll"])
def test_a_config_is_within_its_own_ranges(name, loss):
    experiment.check_config(settings.resolved(config_of(name, loss)))


@pytest.mark.parametrize("loss", ["", "proxy_anchor"])
def test_the_config_to_copy_is_within_its_ranges(loss):
    config = load(f"{ROOT}/configs/example.py:{loss}")
    assert (config.name, config.train.epochs) == ("example", 30.0)
    experiment.check_config(settings.resolved(config))


def test_the_page_of_fields_is_what_is_declared():
    """`python -m tfrank.run.config_help > docs/config.md` writes it anew."""
    assert (ROOT / "docs" / "config.md").read_text() == config_help.page() + "\n"


@pytest.mark.parametrize("name", sorted({*CONFIGS} - {"default", "letters"}))
def test_a_config_begins_with_its_command_and_runs_under_its_own_name(name):
    docstring = importlib.import_module(f"tfrank.configs.{name}").__doc__
    assert f"python train_main.py --config=configs/{name}.py" in docstring
    assert config_of(name).name == name


# Copied by hand from the papers: batch, images of a class, optimizer, rate, decay; network, numbers of an
# embedding, side of the warped image and of what the model sees, probability of a flip.
PNP = ("adam", 1e-5, 4e-4, "resnet50", 512, 256, 224, 0.5)
RLL = ("sgd", 1e-2, 2e-5, "bn_inception", 64, 256, 227, 0.5)
IN_SHOP = ("sgd", 1e-2, 2e-5, "bn_inception", 128, 256, 227, 0.5)
FACES = ("adam", 1e-5, 4e-4, "se_resnet50", 256, 0, 224, 0.5)
MAP_Q = ("adam", 1e-4, 1e-6, "resnet101", 2048, 0, 800, 0.0)


@pytest.mark.parametrize(
    "name, loss, batch, of_class, expected",
    [
        ("sop", "", 112, 4, PNP),
        ("sop", "smooth_ap", 112, 4, PNP),
        ("sop", "rll", 180, 3, RLL),
        ("in_shop", "", 112, 4, PNP),
        ("in_shop", "rll", 66, 3, IN_SHOP),
        ("vehicle_id", "", 112, 4, PNP),
        ("inaturalist", "", 224, 4, PNP),
        ("inaturalist", "fast_ap", 224, 4, PNP),
        ("cub", "rll", 66, 3, RLL),
        ("cars", "rll", 66, 3, RLL),
        ("vgg_face2", "smooth_ap", 224, 4, FACES),
        ("vgg_face2", "rll", 224, 4, FACES),
        ("landmarks", "", 4096, 8, MAP_Q),
        ("landmarks", "rll", 4096, 8, MAP_Q),
        # In none of RLL's tables: as all of its data sets but SOP.
        ("vehicle_id", "rll", 66, 3, RLL),
        ("inaturalist", "rll", 66, 3, RLL),
        ("own_records", "rll", 66, 3, RLL),
    ],
)
def test_a_config_has_the_settings_that_its_paper_prints(name, loss, batch, of_class, expected):
    config = config_of(name, loss)
    train, model, data = config.train, config.model, config.data
    assert (config.data.batch_size, data.examples_per_class) == (batch, of_class)
    network = (model.backbone, model.embedding_dim, data.resize, data.image_size, data.flip)
    assert (train.optimizer, train.learning_rate, train.l2, *network) == expected
    assert train.momentum == 0.9


RECALL_AT_K = ("hub/vit_base", 512, "adamw", 4e-4, 4)
HYP_VIT = ("hub/vit_small", 128, "adamw", 0.01, 2)


@pytest.mark.parametrize(
    "name, loss, expected, batch, rate, epochs, schedule_steps, simix",
    [
        ("vit_sop", "", RECALL_AT_K, 4000, 5e-5, 55, (372, 744), False),
        ("vit_cub", "", RECALL_AT_K, 400, 1e-5, 40, (147, 293, 440), True),
        ("vit_cars", "", RECALL_AT_K, 392, 1e-5, 50, (411, 616, 822), True),
        ("vit_in_shop", "", RECALL_AT_K, 4000, 5e-5, 55, (162, 324), False),
        ("vit_sop", "sup_con", HYP_VIT, 400, 1e-5, 100, (), None),
        ("vit_cub", "sup_con", HYP_VIT, 200, 1e-5, 100, (), None),
    ],
)
def test_a_config_of_vision_transformers_has_the_settings_of_the_code(
    name, loss, expected, batch, rate, epochs, schedule_steps, simix
):
    """Copied by hand from the authors' code."""
    config = config_of(name, loss)
    train, model = config.train, config.model
    found = (model.backbone, model.embedding_dim, train.optimizer, train.decoupled)
    assert (*found, config.data.examples_per_class) == expected
    assert config.data.batch_size == batch
    assert (train.learning_rate, train.epochs, train.schedule_steps) == (rate, epochs, schedule_steps)
    assert getattr(config.loss, "simix", None) == simix
    assert (config.data.image_size, model.preprocessing) == (224, "imagenet_rgb")


RECALL_AT = {
    "sop": (1, 10, 100, 1000),
    "in_shop": (1, 10, 20, 30, 40, 50),
    "vehicle_id": (1, 5),
    "inaturalist": (1, 4, 16, 32),
    "cub": (1, 2, 4, 8),
    "cars": (1, 2, 4, 8),
}


@pytest.mark.parametrize("name", RECALL_AT)
def test_a_config_measures_the_ks_of_the_papers_tables(name):
    assert config_of(name).evaluation.recall_at == RECALL_AT[name]


@pytest.mark.parametrize(
    "name, loss, field, expected",
    [
        # RLL: section 4.1.2, 4.1.3 and 4.4; T_n of SOP and In-shop; m = 0.4 and alpha = 1 + m / 2.
        ("sop", "rll", "data.crop", "random_resized"),
        ("sop", "rll", "data.crop_area", (0.5, 1.0)),
        # Of the image itself, as in the code.
        ("vit_sop", "", "data.crop", "random_part"),
        ("vit_cub", "sup_con", "data.crop", "random_part"),
        ("sop", "rll", "data.crop_ratio", (3 / 4, 4 / 3)),
        ("sop", "rll", "train.learning_rate_multipliers.embedding", 10.0),
        ("sop", "rll", "loss.negative_temperature", 10.0),
        ("in_shop", "rll", "loss.negative_temperature", 12.0),
        ("in_shop", "rll", "loss.margin", 0.4),
        ("in_shop", "rll", "loss.alpha", 1.2),
        ("in_shop", "rll", "train.steps", 30_000),
        ("in_shop", "rll", "model.batch_norm", "trained"),
        ("sop", "", "model.batch_norm", "statistics"),
        ("cub", "rll", "model.batch_norm", "frozen"),
        ("cars", "rll", "model.batch_norm", "frozen"),
        # PNP draws classes at random; Smooth-AP mines on SOP, as FastAP and Blackbox AP do (section 5.3).
        ("sop", "", "data.sampler", "class_balanced"),
        ("sop", "smooth_ap", "data.sampler", "category_pairs"),
        ("sop", "fast_ap", "data.sampler", "category_pairs"),
        ("sop", "blackbox_ap", "data.sampler", "category_pairs"),
        ("vehicle_id", "smooth_ap", "data.sampler", "class_balanced"),
        # Smooth-AP's supplement, section 4.
        ("inaturalist", "", "train.learning_rate_multipliers.embedding", 2.0),
        ("inaturalist", "fast_ap", "loss.num_bins", 20),
        ("inaturalist", "blackbox_ap", "loss.interpolation", 4.0),
        ("inaturalist", "blackbox_ap", "loss.margin", 0.02),
        # mAP_Q, section 4.2.
        ("landmarks", "", "data.sampler", "all_classes"),
        ("landmarks", "", "model.pooling", "gem"),
        ("landmarks", "", "loss.class_weights", True),
        ("landmarks", "", "loss.num_bins", 20),
        ("landmarks", "", "train.schedule", "linear"),
        ("landmarks", "", "train.steps", 200),
        ("landmarks", "", "evaluation.full_size", True),
        ("landmarks", "", "data.test", ("test",)),
        ("landmarks", "", "data.test_region", "box"),
        ("landmarks", "", "evaluation.expansion_alpha", 2.0),
        ("landmarks", "", "data.validation_classes", 0),
        # VGGFace2's crops.
        ("vgg_face2", "", "data.region", "box"),
        ("vgg_face2", "", "data.box_margin", 0.3),
        ("vehicle_id", "", "data.test", ("test_800",)),
        ("vehicle_id", "", "evaluation.protocols", ("leave_one_out", "random_gallery")),
        # By the records: queries and gallery, graded relevance.
        ("in_shop", "", "evaluation.protocols", ()),
        ("landmarks", "", "evaluation.protocols", ()),
    ],
)
def test_a_config_has_what_its_paper_says_of_that_data_set_or_loss_alone(name, loss, field, expected):
    found = flatten(tree(config_of(name, loss)))[field]
    assert found == (list(expected) if isinstance(expected, tuple) else expected)


@pytest.mark.parametrize("name", ["sop", "in_shop", "landmarks", "vgg_face2"])
@pytest.mark.parametrize("loss", ["", "rll"])
def test_weights_are_the_published_file_of_the_network(name, loss):
    model = config_of(name, loss).model
    assert model.weights in PUBLISHED[model.backbone]


@pytest.mark.parametrize("name, size", [("digits", 16), ("omniglot", 28)])
def test_the_first_runs_see_whole_images_that_are_only_shifted(name, size):
    data = config_of(name).data
    assert (data.region, data.resize, data.image_size, data.crop, data.max_shift) == (
        "image",
        0,
        size,
        "warp",
        2,
    )
    assert (data.flip, data.rotation, data.scale, set(data.color_jitter)) == (0.0, 0.0, (1.0, 1.0), {0.0})
    assert (data.sampler, data.merge_classes, data.label_noise) == ("class_balanced", 1, 0.0)


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("merge_classes", 0, "an integer of at least 1"),
        ("shards", -1, "an integer of at least 0"),
        ("label_noise", 1.0, "a finite number of at least 0 and below 1"),
        ("sampler", "class_balance", 'Did you mean "class_balanced"'),
        # By the view and the loader, whose own tests are theirs.
        ("image_size", 0, r"at least 1\. Received: config\.data\.image_size=0"),
        ("resize", 223, r"at least config\.data\.image_size=224\. Received: config\.data\.resize=223"),
        ("box_margin", -0.1, r"Received: config\.data\.box_margin=-0\.1"),
        ("box_min_aspect", -1, r"Received: config\.data\.box_min_aspect=-1"),
        ("region", "boxes", r'Received: config\.data\.region=\'boxes\'\. Did you mean "box"'),
        ("test_region", "boxes", r'Received: config\.data\.test_region=\'boxes\'\. Did you mean "box"'),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_the_name_of_its_field(field, value, message):
    config = config_of("sop")
    setattr(config.data, field, value)
    with pytest.raises(InputError, match=message) as error:
        experiment.check_config(config)
    assert f"`config.data.{field}`" in str(error.value)


@pytest.mark.parametrize("field, value", [("merge_classes", 3), ("label_noise", 0.1)])
def test_pairs_of_categories_are_refused_where_classes_span_them(field, value):
    config = config_of("sop", "smooth_ap")
    setattr(config.data, field, value)
    with pytest.raises(InputError, match=r"span categories.* Set --config\.data\.sampler=class_balanced"):
        settings.check_fields(config)
    config.data.sampler = "class_balanced"
    settings.check_fields(config)


def test_the_same_split_of_another_data_set_may_be_tested_on():
    config = config_of("sop")
    config.data.test = ("train",)
    with pytest.raises(InputError, match=r"have \['train'\] in common"):
        settings.check_fields(config)
    config.data.test_records = "elsewhere"
    settings.check_fields(config)


# Of the fields that are declared with bounds or choices: values that none of them allows.
DECLARED = [field for field in fields_of(default.get_config()) if field.declaration.allowed()]


def outside(field):
    """Values that are not allowed: just beyond each bound, what is no number, and what is no choice."""
    bounds, several = field.declaration.bounds(), isinstance(field.value, tuple)
    whole = int in (field.kind, *typing.get_args(field.kind))
    bad = ["no such choice"] if field.declaration.choices else [math.nan, math.inf]
    if whole:
        bad = [2**63, 1.5]
    for name, bound in bounds.items():
        step = {"at_least": -1 if whole else -1e-6, "at_most": 1e-6}.get(name, 0)
        bad.append(bound + step)
    return [(value,) if several else value for value in bad if value != OPEN or not field.declaration.by_data]


@pytest.mark.parametrize("field", DECLARED, ids=lambda field: field.path)
def test_what_is_beyond_the_declared_bounds_is_refused_by_the_name_of_the_field(field):
    for value in outside(field):
        with pytest.raises(InputError, match=rf"`config\.{field.path}`"):
            field.declaration.check(f"config.{field.path}", value, field.kind)


@pytest.mark.parametrize("field", DECLARED, ids=lambda field: field.path)
def test_a_default_is_within_its_declared_bounds(field):
    field.declaration.check(f"config.{field.path}", field.value, field.kind)


def test_every_number_has_declared_bounds():
    without = {
        field.path
        for field in fields_of(default.get_config())
        if isinstance(field.value, int | float) and not isinstance(field.value, bool)
        if not field.declaration.allowed() and not field.path.startswith("loss.")
    }
    assert without == {"data.resize"}  # Its bounds are those of `image_size`.


def test_an_unknown_loss_names_the_known_ones():
    with pytest.raises(ValueError, match=r"Unknown loss 'smoothap'.*'pnp', 'smooth_ap'"):
        default.get_config("smoothap")


def test_a_field_of_another_loss_is_refused_with_the_fields_of_this_one():
    config = default.get_config()
    config.loss.name = "smooth_ap"
    message = r"Loss 'smooth_ap' has no field '(alpha|b|variant)'.* Its fields are temperature, include_self"
    with pytest.raises(InputError, match=message):
        build_loss(config.loss, labels=[0, 1])


@pytest.mark.parametrize("steps, epochs, expected", [(600, 0.0, 600), (0, 2, 28), (-1, 2, 28), (0, 0.01, 1)])
def test_steps_and_epochs_are_both_accepted(steps, epochs, expected, capsys):
    config = default.get_config()
    config.train.steps, config.train.epochs = steps, epochs
    assert settings.total_steps(config.train, config.data.batch_size, 1800) == expected
    said = "1 step" if expected == 1 else f"{expected} steps"
    assert f"{said} of 128 images" in capsys.readouterr().out


@pytest.mark.parametrize("steps, epochs", [(0, 0.0), (5, 5.0)])
def test_one_of_steps_and_epochs_is_wanted(steps, epochs):
    config = default.get_config()
    config.train.steps, config.train.epochs = steps, epochs
    with pytest.raises(InputError, match="Give one of"):
        settings.total_steps(config.train, config.data.batch_size, 1800)
