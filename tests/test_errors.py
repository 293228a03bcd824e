"""What a user can get wrong, provoked by command lines: each ends with status 1 and one line of advice.

`{bad}` is a folder of bad input (see `bad_inputs.py`), `{new}` one that is not there yet, and `...` stands
for what is too long to be told here.
"""

import re

import pytest

from tests import bad_inputs
from tests.command_lines import PREPARE, command_lines, run_alone

pytestmark = pytest.mark.slow

# A run of seconds.
SMALL = (
    "--config.data.image_size=8",
    "--config.data.classes_per_batch=4",
    "--config.data.examples_per_class=4",
    "--config.model.filters=8",
    "--config.model.embedding_dim=8",
    "--config.train.steps=4",
    "--config.evaluation.baselines=False",
)
# The same on few digits.
DIGITS = (
    "--config.data.train=0",
    "--config.data.train=1",
    "--config.data.test=8",
    "--config.data.test=9",
)
# What a command line says where it has data of its own.
OWN_DATA = ("--config=", "config.data.train", "config.data.name", "config.data.test")

TRAIN = [
    (
        "--config.train.step=5",
        'Unknown config field `config.train.step`. Did you mean "steps"? The fields of config.train are: ...',
    ),
    (
        "--config.moel.filters=5",
        'Unknown config field `config.moel.filters`. Did you mean "model"? The fields of config'
        " are: data, dry_run, evaluation, loss, model, name, seed, train.",
    ),
    (
        "--config.data.features.labl=x",
        'Unknown config field `config.data.features.labl`. Did you mean "label"? The fields of'
        " config.data.features are: category, encoded, filename, id, label, text.",
    ),
    (
        "--config.data.image_size.x=1",
        "`config.data.image_size` is one value and has no fields. Write --config.data.image_size=VALUE",
    ),
    (
        "--config=configs/digits.py:smooth_ap --config.loss.alpha=3",
        "Unknown config field `config.loss.alpha`. The fields of loss 'smooth_ap' are:"
        " include_self, name, temperature.",
    ),
    (
        "--config=configs/digits.py:smooth-ap",
        "Unknown loss 'smooth-ap' after the colon of --config. Did you mean \"smooth_ap\"?"
        " Expected one of ....",
    ),
    (
        "--help --config=configs/digits.py:smoothap",
        "Unknown loss 'smoothap' after the colon of --config. Did you mean \"smooth_ap\"? Expected"
        " one of ....",
    ),
    (
        "--config.loss=smooth_ap",
        "Losses differ in their fields, so a loss is chosen with the config. Write"
        " --config=tfrank/configs/digits.py:smooth_ap in place of --config.loss=smooth_ap",
    ),
    (
        "--config=configs/sop.py --config.loss=rll",
        "Losses differ in their fields, so a loss is chosen with the config. Write"
        " --config=configs/sop.py:rll in place of --config.loss=rll",
    ),
    (
        "--config=configs/nothing.py",
        "There is no config file 'configs/nothing.py'. Give one, as in --config=configs/digits.py",
    ),
    (
        "--config=configs",
        "There is no config file 'configs'. Give one, as in --config=configs/digits.py",
    ),
    (
        "--config=",
        "There is no config file ''. Give one, as in --config=configs/digits.py",
    ),
    (
        "--config=README.md",
        "The config README.md cannot be loaded: SyntaxError: ... (README.md, line ...)",
    ),
    (
        "--config={bad}/none.py",
        "get_config() of the config {bad}/none.py returns no ConfigDict. End it by: return config",
    ),
    (
        "--config={bad}/cut_off.py",
        "The config {bad}/cut_off.py cannot be loaded: SyntaxError: ... (cut_off.py, line 1)",
    ),
    (
        "--config={bad}/unknown_field.py",
        "The config {bad}/unknown_field.py cannot be loaded: line 6, AttributeError: 'Key"
        ' "stepps" does not exist and cannot be added since the config is locked. Did you mean'
        ' "steps" instead of "stepps"?\'',
    ),
    (
        "--config={bad}/no_function.py",
        "The config {bad}/no_function.py cannot be loaded: AttributeError: the file has no"
        " attribute 'get_config'",
    ),
    (
        "--config={bad}/missing_module.py",
        "The config {bad}/missing_module.py cannot be loaded: line 1, ModuleNotFoundError: No"
        " module named 'no_such_module'",
    ),
    (
        "--worddir=x",
        'There is no flag --worddir. Did you mean "workdir"? --help lists them.',
    ),
    (
        "--workdir",
        "Missing value for flag --workdir. --help explains the flags.",
    ),
    (
        "steps",
        "What is 'steps'? Flags begin with -- and have no spaces around =.",
    ),
    (
        "--config.train.steps = 5",
        "Flags have no spaces around =. Write --config.train.steps=VALUE",
    ),
    (
        "--config.train.steps=many",
        "Invalid value for argument `config.train.steps`. Expected a whole number. Received:"
        " config.train.steps='many'",
    ),
    (
        "--config.train.steps=1.5",
        "Invalid value for argument `config.train.steps`. Expected a whole number. Received:"
        " config.train.steps='1.5'",
    ),
    (
        "--config.train.learning_rate=fast",
        "Invalid value for argument `config.train.learning_rate`. Expected a number. Received:"
        " config.train.learning_rate='fast'",
    ),
    (
        "--config.train.xla=maybe",
        "Invalid value for argument `config.train.xla`. Expected true or false. Received:"
        " config.train.xla='maybe'",
    ),
    (
        "--config.evaluation.published=x",
        "Invalid value for argument `config.evaluation.published`. Expected a dict of Python."
        " Received: config.evaluation.published='x'",
    ),
    (
        "--config.train.steps=0",
        "Give one of config.train.steps and config.train.epochs, and set the other to 0."
        " Received: steps=0, epochs=0.0",
    ),
    (
        "--config.train.epochs=3",
        "Give one of config.train.steps and config.train.epochs, and set the other to 0."
        " Received: steps=4, epochs=3.0",
    ),
    (
        "--config.train.steps=-2",
        "Invalid value for argument `config.train.steps`. Expected an integer of at least 0."
        " Received: config.train.steps=-2",
    ),
    (
        "--config.train.steps=0 --config.train.epochs=nan",
        "Invalid value for argument `config.train.epochs`. Expected a finite number of at least"
        " 0. Received: config.train.epochs=nan",
    ),
    (
        "--config.train.learning_rate=-0.001",
        "Invalid value for argument `config.train.learning_rate`. Expected a finite number above"
        " 0. Received: config.train.learning_rate=-0.001",
    ),
    (
        "--config.train.optimizer=adma",
        "Invalid value for argument `config.train.optimizer`. Expected one of ['adam', 'adamw',"
        " 'sgd']. Received: config.train.optimizer='adma'. Did you mean \"adam\"?",
    ),
    (
        "--config.train.schedule=cosin",
        "Invalid value for argument `config.train.schedule`. Expected one of ['constant',"
        " 'linear', 'cosine', 'steps']. Received: config.train.schedule='cosin'. Did you mean"
        ' "cosine"?',
    ),
    (
        "--config.train.schedule=steps",
        "Invalid value for argument `config.train.schedule_steps`. Expected a list of numbers."
        " Received: config.train.schedule_steps=()",
    ),
    (
        "--config.train.schedule=steps --config.train.schedule_steps=(3,2)",
        "Invalid value for argument `config.train.schedule_steps`. Expected steps in ascending"
        " order. Received: config.train.schedule_steps=(3, 2)",
    ),
    (
        "--config.train.schedule=steps --config.train.schedule_steps=(2,) --config.train.schedule_factor=-1",
        "Invalid value for argument `config.train.schedule_factor`. Expected a finite number"
        " above 0 and of at most 1. Received: config.train.schedule_factor=-1.0",
    ),
    (
        "--config.train.schedule_steps=(2,)",
        "Invalid value for argument `config.train.schedule_steps`. Expected none for the"
        ' schedule "constant", only for "steps". Received: config.train.schedule_steps=(2,)',
    ),
    (
        "--config.train.warmup_steps=100",
        "Invalid value for argument `config.train.warmup_steps`. Expected at most total_steps,"
        " which is 4. Received: config.train.warmup_steps=100",
    ),
    (
        "--config.train.momentum=0.5",
        'Invalid value for argument `config.train.momentum`. Expected 0.9, as "adam" has it;'
        ' another one is for "sgd". Received: config.train.momentum=0.5',
    ),
    (
        "--config.train.optimizer=sgd --config.train.momentum=2",
        "Invalid value for argument `config.train.momentum`. Expected a finite number of at"
        " least 0 and of at most 1. Received: config.train.momentum=2.0",
    ),
    (
        "--config.train.decoupled=0.1",
        'Invalid value for argument `config.train.decoupled`. Expected 0 for "adam"; for'
        ' decoupled decay use "adamw". Received: config.train.decoupled=0.1',
    ),
    (
        "--config.train.optimizer=adamw",
        "Invalid value for argument `config.train.decoupled`. Expected a number above 0 for"
        ' "adamw"; without decay use "adam". Received: config.train.decoupled=0.0',
    ),
    (
        "--config.train.no_decay=beta,,gamma",
        "Invalid value for argument `config.train.no_decay`. Expected parts of variables' paths"
        " with commas between. Received: config.train.no_decay='beta,,gamma'",
    ),
    (
        "--config.train.no_decay=nothing",
        "Invalid value for argument `config.train.no_decay`. Expected parts of the paths of"
        " variables, which are: .... Received: config.train.no_decay='nothing'.",
    ),
    (
        "--config.train.learning_rate_multipliers=embedding",
        "Invalid value for argument `config.train.learning_rate_multipliers`. Expected something"
        " like embedding=10, gem=0.5. Received: config.train.learning_rate_multipliers='embedding'",
    ),
    (
        "--config.train.learning_rate_multipliers=nothing=2",
        "Invalid value for argument `config.train.learning_rate_multipliers`. Expected parts of"
        " the paths of variables, which are: .... Received:"
        " config.train.learning_rate_multipliers='nothing'.",
    ),
    (
        "--config.train.learning_rate_multipliers=embedding=-2",
        "Invalid value for argument `config.train.learning_rate_multipliers`. Expected a finite"
        " number of at least 0. Received: config.train.learning_rate_multipliers=-2.0",
    ),
    (
        "--config.train.micro_batch_size=-1",
        "Invalid value for argument `config.train.micro_batch_size`. Expected an integer of at"
        " least 0. Received: config.train.micro_batch_size=-1",
    ),
    (
        "--config.train.memory_size=64",
        "The run ends after 4 steps, and its memory would only join in step 1,001: when"
        " config.train.memory_size=64 embeddings are there, and config.train.memory_warm_up=1000"
        " batches have passed. Lower them, or train for longer.",
    ),
    (
        "--config=configs/digits.py:arc_face --config.train.memory_size=64",
        "Loss 'arc_face' ranks no gallery that a memory could join. Set"
        " config.train.memory_size=0, or take one of pnp, ...",
    ),
    (
        "--config.train.weight_average=1",
        "Invalid value for argument `config.train.weight_average`. Expected a finite number of"
        " at least 0 and below 1. Received: config.train.weight_average=1.0",
    ),
    (
        "--config.train.precision=float16",
        "Invalid value for argument `config.train.precision`. Expected one of ['float32',"
        " 'mixed_bfloat16', 'mixed_float16']. Received: config.train.precision='float16'. Did you"
        ' mean "float32"?',
    ),
    (
        "--config.train.start_share=1",
        "Invalid value for argument `config.train.start_share`. Expected a finite number of at"
        " least 0 and below 1. Received: config.train.start_share=1.0",
    ),
    (
        "--config.train.strategy=mirored",
        "Invalid value for argument `config.train.strategy`. Expected one of ['one_device',"
        " 'mirrored', 'multi_worker']. Received: config.train.strategy='mirored'. Did you mean"
        ' "mirrored"?',
    ),
    (
        "--config.train.strategy=multi_worker",
        "strategy=multi_worker needs the environment variable TF_CONFIG on each machine, such as"
        ' {"cluster": {"worker": ["host0:12345", "host1:12345"]}, "task": {"type": "worker",'
        ' "index": 0}}, with its own index. It is not set.',
    ),
    (
        "--config.train.strategy=multi_worker --config.train.patience=3",
        "Only one of several machines evaluates, so the others do not know when to stop. Set"
        " config.train.patience=0.",
    ),
    (
        "--config.train.frozen_backbone=True",
        "config.train.frozen_backbone trains a head without offset. Set config.model.head=pca;"
        " received 'random'.",
    ),
    (
        "--config.train.frozen_backbone=True --config.model.head=pca",
        "config.train.frozen_backbone keeps the backbone as it is. Give it pretrained weights,"
        " --config.model.weights=PATH or imagenet.",
    ),
    (
        "--config.train.log_every=0",
        "Invalid value for argument `config.train.log_every`. Expected an integer of at least 1."
        " Received: config.train.log_every=0",
    ),
    (
        "--config.seed=4294967296",
        "Invalid value for argument `config.seed`. Expected an integer below 2^32. Received:"
        " config.seed=4294967296",
    ),
    (
        "--config.loss.temperature=0",
        "Invalid value for argument `config.loss.temperature`. Expected a finite number above 0."
        " Received: config.loss.temperature=0.0",
    ),
    (
        "--config.loss.variant=dp",
        "Invalid value for argument `config.loss.variant`. Expected one of ['o', 'iu', 'ib',"
        " 'ds', 'dq']. Received: config.loss.variant='dp'.",
    ),
    (
        "--config.loss.include_self=2",
        "Invalid value for argument `config.loss.include_self`. Expected true or false."
        " Received: config.loss.include_self='2'",
    ),
    (
        "--config.loss.name=smooth_ap",
        "Loss 'smooth_ap' has no field 'alpha'. Its fields are temperature, include_self. Choose"
        " a loss with its fields by --config=FILE.py:smooth_ap",
    ),
    (
        "--config=configs/digits.py:recall_at_k --config.loss.ks=1 --config.loss.ks=2",
        "Invalid value for argument `config.loss.k_temperatures`. Expected one number for each"
        " of config.loss.ks=(1, 2). Received: config.loss.k_temperatures=(1.0, 2.0, 4.0, 8.0,"
        " 16.0)",
    ),
    (
        "--config=configs/digits.py:map_q --config.loss.num_bins=1",
        "Invalid value for argument `config.loss.num_bins`. Expected an integer of at least 2."
        " Received: config.loss.num_bins=1",
    ),
    (
        "--config=configs/digits.py:soft_triple --config.loss.proxies_per_class=0",
        "Invalid value for argument `config.loss.proxies_per_class`. Expected an integer of at"
        " least 1. Received: config.loss.proxies_per_class=0",
    ),
    (
        "--config=configs/digits.py:triplet --config.loss.mining=hardest",
        "Invalid value for argument `config.loss.mining`. Expected one of ['semi_hard', 'hard',"
        " 'all']. Received: config.loss.mining='hardest'. Did you mean \"hard\"?",
    ),
    (
        "--config.data.image_size=0",
        "Invalid value for argument `config.data.image_size`. Expected an integer of at least 1."
        " Received: config.data.image_size=0",
    ),
    (
        "--config.data.resize=4",
        "Invalid value for argument `config.data.resize`. Expected 0 or an integer of at least"
        " config.data.image_size=8. Received: config.data.resize=4",
    ),
    (
        "--config.data.crop=wrap",
        "Invalid value for argument `config.data.crop`. Expected one of ['warp',"
        " 'random_resized', 'scaled']. Received: config.data.crop='wrap'. Did you mean \"warp\"?",
    ),
    (
        "--config.data.crop_area=(1,2)",
        "Invalid value for argument `config.data.crop_area`. Expected a finite number above 0"
        " and of at most 1. Received: config.data.crop_area=2",
    ),
    (
        "--config.data.crop_ratio=(2,1)",
        "Invalid value for argument `config.data.crop_ratio`. Expected two numbers, the lesser"
        " first. Received: config.data.crop_ratio=(2, 1)",
    ),
    (
        "--config.data.color_jitter=(0,0,0,1)",
        "Invalid value for argument `config.data.color_jitter`. Expected four numbers, the last"
        " at most 0.5. Received: config.data.color_jitter=(0, 0, 0, 1)",
    ),
    (
        "--config.data.rotation=10",
        "Invalid value for argument `config.data.rotation`. Expected 0, or"
        " config.data.crop=scaled, which alone turns images. Received: config.data.rotation=10.0",
    ),
    (
        "--config.data.region=boxes",
        "Invalid value for argument `config.data.region`. Expected one of ['image', 'box',"
        " 'face']. Received: config.data.region='boxes'. Did you mean \"box\"?",
    ),
    (
        "--config.data.region=box",
        "config.data.region is box, and 354 of 354 images to test on have no box. Prepare the"
        " records anew, from a source with a box for each image; or take whole images,"
        " --config.data.region=image, whose results compare with no others of boxes.",
    ),
    (
        "--config.data.region=face",
        "record ...: the image cannot be loaded. the record has no five landmarks of a face,"
        " which region=face needs",
    ),
    (
        "--config.dry_run --config.data.region=face",
        "record ...: the image cannot be loaded. the record has no five landmarks of a face,"
        " which region=face needs",
    ),
    (
        "--config.data.name=digit",
        "Invalid value for argument `config.data.name`. Expected one of .... Received:"
        " config.data.name='digit'. Did you mean \"digits\"?",
    ),
    (
        "--config.data.name=folder",
        "Nothing says where the images of 'folder' are. Give their folder or archive,"
        " --config.data.source=PATH, or records that `python -m tfrank.data.prepare` has written,"
        " --config.data.records=PATH.",
    ),
    (
        "--config.data.name=tfrecords",
        "Nothing says where the records are. Give the folder of the shards, --config.data.records=PATH.",
    ),
    (
        "--config.data.name=tfrecords --config.data.records={bad}/shards",
        "Invalid value for argument `config.data.train`. Expected patterns of shard files, such"
        " as train-*. Received: config.data.train=(0, 1, 2, 3, 4)",
    ),
    (
        "--config.data.train=11",
        "There are no digits [11]; the classes of this data set are 0 to 9.",
    ),
    (
        "--config.data.train=5",
        "config.data.train and config.data.test have [5] in common; test on unseen classes.",
    ),
    (
        "--config.data.validation_classes=1",
        "The weights cannot be chosen by a validation part of 178 images of 1 class: it takes"
        " two classes, one of them of two images. Set a higher config.data.validation_classes, or"
        " 0 for none.",
    ),
    (
        "--config.data.validation_classes=99",
        "Holding out 99 classes for validation leaves none of the 16 classes to train on. Lower"
        " validation_classes.",
    ),
    (
        "--config.data.merge_classes=99",
        "Merging every size=99 classes takes as many, but there are only 16.",
    ),
    (
        "--config.data.label_noise=1",
        "Invalid value for argument `config.data.label_noise`. Expected a finite number of at"
        " least 0 and below 1. Received: config.data.label_noise=1.0",
    ),
    (
        "--config.data.sampler=random",
        "Invalid value for argument `config.data.sampler`. Expected one of ['class_balanced',"
        " 'all_classes', 'category_pairs', 'uniform']. Received: config.data.sampler='random'.",
    ),
    (
        "--config.data.sampler=category_pairs",
        "2,880 of 2,880 records have no category. Pairs of categories need one for every record:"
        " prepare the records with categories, or sample classes whatever their category.",
    ),
    (
        "--config.data.sampler=category_pairs --config.data.merge_classes=2",
        "Merged classes, and false labels, span categories: there are no pairs of them to draw."
        " Take --config.data.sampler=class_balanced.",
    ),
    (
        "--config.data.sampler=all_classes --config.data.examples_per_class=2",
        "A batch of all 16 classes takes at least 32 images, two of each class (one of a class"
        " of one), but config.data.classes_per_batch x config.data.examples_per_class=8. Raise"
        " the batch size, or sample classes.",
    ),
    (
        "--config.data.sampler=uniform --config.data.examples_per_class=5000",
        "A batch takes config.data.classes_per_batch x config.data.examples_per_class=20000"
        " distinct images, but there are only 2880. Lower the batch size.",
    ),
    (
        "--config.data.classes_per_batch=99",
        "A batch takes config.data.classes_per_batch=99 distinct classes, but there are only 16"
        " to train on. Lower classes_per_batch.",
    ),
    (
        "--config.data.classes_per_batch=1",
        "Invalid value for argument `config.data.classes_per_batch`. Expected an integer of at"
        " least 2. Received: config.data.classes_per_batch=1",
    ),
    (
        "--config.data.examples_per_class=5000 --config.data.short_classes=drop",
        "A batch takes config.data.classes_per_batch=4 distinct classes, but there are only 0"
        " with at least 5000 images to train on. Lower classes_per_batch.",
    ),
    (
        "--config.data.short_classes=drp",
        "Invalid value for argument `config.data.short_classes`. Expected one of ['repeat',"
        " 'drop']. Received: config.data.short_classes='drp'. Did you mean \"drop\"?",
    ),
    (
        "--config.data.source=nowhere",
        "There is nothing at nowhere. Give the path of the data set's folder or archive.",
    ),
    (
        "--config.data.records=nowhere",
        "nowhere has no records of a split 'train'. Prepare it: python -m tfrank.data.prepare --help",
    ),
    (
        "--config.data.test_records={bad}/empty",
        "{bad}/empty has no records of a split 5. Prepare it: python -m tfrank.data.prepare --help",
    ),
    (
        "--config.data.features.encoded=x",
        "record ...: the image cannot be loaded. Feature: x (data type: string) is required but"
        " could not be found.",
    ),
    (
        "--config=configs/omniglot.py --config.data.source=nowhere.zip",
        "There is nothing at nowhere.zip. Give the path of the data set's folder or archive.",
    ),
    (
        "--config=configs/omniglot.py --config.data.source={bad}/empty",
        "{bad}/empty has no drawings <alphabet>/<character>/<drawing>.png. Is it an Omniglot archive?",
    ),
    (
        "--config=configs/sop.py",
        "There is no file resnet50-0676ba61.pth to load weights from. Give its path,"
        " --config.model.weights=PATH, or begin with --config.model.weights=random."
        " configs/papers.py says where published ones are from.",
    ),
    (
        "--config=configs/sop.py --config.data.source={bad}/empty --config.model.weights=random",
        "There is no list {bad}/empty/Ebay_train.txt. The folder should be"
        " Stanford_Online_Products, with Ebay_train.txt and Ebay_test.txt.",
    ),
    (
        "--config=configs/own_images.py --config.data.source={bad}/empty --config.model.weights=random",
        "{bad}/empty has no images. Expected {bad}/empty/<class>/<image>, or the same inside its"
        " folders train and test, or train, query and gallery, where an image ends in ...",
    ),
    (
        "--config=configs/own_images.py --config.data.source={bad}/three --config.model.weights=random",
        "It takes 4 classes, two to train on and two to test on. {bad}/three has 3, of 9 images."
        " Add classes.",
    ),
    (
        "--config=configs/own_records.py",
        "There is no file resnet50-0676ba61.pth to load weights from. Give its path,"
        " --config.model.weights=PATH, or begin with --config.model.weights=random."
        " configs/papers.py says where published ones are from.",
    ),
    (
        "--config=configs/own_records.py --config.data.records={bad}/shards --config.data.train=x-*",
        "There is no file resnet50-0676ba61.pth to load weights from. Give its path,"
        " --config.model.weights=PATH, or begin with --config.model.weights=random."
        " configs/papers.py says where published ones are from.",
    ),
    (
        "--config=configs/own_records.py --config.data.records={bad}/shards"
        " --config.data.train=text* --config.model.weights=random",
        "{bad}/shards/text.tfrecord at byte 12: not the start of a TFRecord. The file is damaged"
        " or of another kind.",
    ),
    (
        "--config=configs/own_records.py --config.data.records={bad}/shards"
        " --config.data.train=empty* --config.model.weights=random",
        "There are no records in {bad}/shards/empty.tfrecord.",
    ),
    (
        "--config=configs/own_records.py --config.data.records={bad}/shards"
        " --config.data.train=packed* --config.model.weights=random",
        "{bad}/shards/packed.tfrecord is compressed by gzip, and records are read by place: unpack it.",
    ),
    (
        "--config=configs/own_records.py --config.data.records={bad}/shards"
        " --config.data.train=nameless* --config.model.weights=random",
        "{bad}/shards/nameless.tfrecord at byte 12: the record lacks the bytes `image/encoded`"
        " or the integer or word `image/class/label`. It has class, picture: name them by"
        " config.data.features.",
    ),
    (
        "--config=configs/own_records.py --config.data.records={bad}/shards"
        " --config.data.train=mixed* --config.model.weights=random",
        "{bad}/shards/mixed.tfrecord: the feature image/class/label is a number in some records,"
        " in others a word.",
    ),
    (
        "--config=configs/own_records.py --config.data.records={bad}/shards"
        " --config.data.train=no_example* --config.model.weights=random",
        "{bad}/shards/no_example.tfrecord at byte 12: the record is no `tf.train.Example`.",
    ),
    (
        "--config=configs/own_records.py --config.data.records={bad}/shards"
        " --config.data.train=whole* --config.data.test=word* --config.model.weights=random",
        "Give one of config.train.steps and config.train.epochs, and set the other to 0."
        " Received: steps=4, epochs=20.0",
    ),
    (
        "--config.model.backbone=resnet5",
        "Invalid value for argument `config.model.backbone`. Expected one of .... Received:"
        " config.model.backbone='resnet5'. Did you mean \"resnet50\"?",
    ),
    (
        "--config.model.backbone=resnet50",
        "Invalid value for argument `config.model.preprocessing`. Expected one with colours for"
        " backbone 'resnet50'. Received: config.model.preprocessing='grey'",
    ),
    (
        "--config.model.weights=imagenet",
        "Invalid value for argument `config.model.weights`. Expected 'random' for the convnet,"
        " which has no published weights. Received: config.model.weights='imagenet'",
    ),
    (
        "--config.model.weights=",
        "There is no file '' to load weights from. Give its path, --config.model.weights=PATH,"
        " or begin with --config.model.weights=random. configs/papers.py says where published"
        " ones are from.",
    ),
    (
        "--config.model.weights=nowhere.pth",
        "There is no file nowhere.pth to load weights from. Give its path,"
        " --config.model.weights=PATH, or begin with --config.model.weights=random."
        " configs/papers.py says where published ones are from.",
    ),
    (
        "--config.model.weights={bad}/empty",
        "There is no file {bad}/empty to load weights from. Give its path,"
        " --config.model.weights=PATH, or begin with --config.model.weights=random."
        " configs/papers.py says where published ones are from.",
    ),
    (
        "--config.model.weights={bad}/text.h5",
        "Invalid value for argument `config.model.weights`. Expected 'random' for the convnet,"
        " which has no published weights. Received: config.model.weights='{bad}/text.h5'",
    ),
    (
        "--config.model.weights=package:nothing/x.pth",
        "The weights package:nothing/x.pth lie in the Python package nothing, which is not"
        " installed. Install it, or give a file.",
    ),
    (
        "--config.model.backbone=mobilenet_v2 --config.model.preprocessing=auto"
        " --config.data.image_size=32 --config.model.weights={bad}/text.pth",
        "{bad}/text.pth is no PyTorch file, or is damaged (UnpicklingError: invalid load key,"
        " 'n'.). Fetch it again.",
    ),
    (
        "--config.model.backbone=mobilenet_v2 --config.model.preprocessing=auto"
        " --config.data.image_size=32 --config.model.weights={bad}/empty.pth",
        "{bad}/empty.pth is no PyTorch file, or is damaged (EOFError: Ran out of input). Fetch it again.",
    ),
    (
        "--config.model.backbone=mobilenet_v2 --config.model.preprocessing=auto"
        " --config.data.image_size=32 --config.model.weights={bad}/text.h5",
        "{bad}/text.h5: for mobilenet_v2 give a PyTorch file, torchvision's mobilenet_v2-b0353104.pth.",
    ),
    (
        "--config.model.backbone=mobilenet_v2 --config.model.preprocessing=auto"
        " --config.data.image_size=32 --config.model.weights={bad}/text.npz",
        "{bad}/text.npz is no file of weights, or is damaged (This file contains pickled"
        " (object) data. If you trust the file you can load it unsafely using the `allow_pickle=`"
        " keyword argument or `pickle.load()`.). Fetch it again.",
    ),
    (
        "--config.model.backbone=mobilenet_v2 --config.model.preprocessing=auto"
        " --config.data.image_size=32 --config.model.weights={bad}/text.bin",
        "Invalid value for argument `config.model.weights`. Expected 'random', 'imagenet' or a"
        " file .pth, .pt, .weights.h5, .keras, .h5, .npz. Received:"
        " config.model.weights='{bad}/text.bin'",
    ),
    (
        "--config.model.backbone=mobilenet_v2 --config.model.preprocessing=auto"
        " --config.model.weights={bad}/text.pth",
        "Invalid value for argument `config.data.image_size`. Expected an integer of at least"
        " 32. Received: config.data.image_size=8",
    ),
    (
        "--config.model.preprocessing=gray",
        "Invalid value for argument `config.model.preprocessing`. Expected one of ['auto',"
        " 'rgb', 'grey', 'inverted_grey', 'raw', 'signed_rgb', 'imagenet_rgb', 'caffe_bgr',"
        " 'inception_bgr']. Received: config.model.preprocessing='gray'. Did you mean \"grey\"?",
    ),
    (
        "--config.model.pooling=mean",
        "Invalid value for argument `config.model.pooling`. Expected one of ['auto', 'flatten',"
        " 'average', 'max', 'gem', 'rmac']. Received: config.model.pooling='mean'.",
    ),
    (
        "--config.model.levels=LMH",
        "Invalid value for argument `config.model.levels`. Expected '' with backbone 'convnet';"
        " only bn_inception has levels. Received: config.model.levels='LMH'",
    ),
    (
        "--config.model.batch_norm=freeze",
        "Invalid value for argument `config.model.batch_norm`. Expected one of ['auto',"
        " 'frozen', 'trained']. Received: config.model.batch_norm='freeze'. Did you mean \"frozen\"?",
    ),
    (
        "--config.model.head=linear",
        "Invalid value for argument `config.model.head`. Expected one of ['none', 'pca',"
        " 'random']. Received: config.model.head='linear'.",
    ),
    (
        "--config.model.head=pca --config.model.embedding_dim=5000",
        "Invalid value for argument `config.model.embedding_dim`. Expected at most the"
        " backbone's 32 features with head 'pca'. Received: config.model.embedding_dim=5000",
    ),
    (
        "--config.model.filters=0",
        "Invalid value for argument `config.model.filters`. Expected an integer of at least 1."
        " Received: config.model.filters=0",
    ),
    (
        "--config.evaluation.recall_at=(0,)",
        "Invalid value for argument `config.evaluation.recall_at`. Expected an integer of at"
        " least 1. Received: config.evaluation.recall_at=0",
    ),
    (
        "--config.evaluation.recall_at=1 --config.evaluation.recall_at=354000",
        "K=354000 is too large: a query is ranked against 353 images. Choose Ks up to 353.",
    ),
    (
        "--config.evaluation.protocols=leave_one",
        "Invalid value for argument `config.evaluation.protocols`. Expected one of"
        " ['leave_one_out', 'query_gallery', 'random_gallery', 'revisited', 'template_pairs']. Received:"
        " config.evaluation.protocols='leave_one'. Did you mean \"leave_one_out\"?",
    ),
    (
        "--config.evaluation.protocols=query_gallery",
        "No image of the test set has the role 'query'. Choose leave_one_out.",
    ),
    (
        "--config.evaluation.protocols=revisited",
        "The test set has no graded relevance (ground_truth.json beside its records). Choose"
        " another protocol, such as leave_one_out.",
    ),
    (
        "--config.evaluation.scales=()",
        "Invalid value for argument `config.evaluation.scales`. Expected a list of numbers."
        " Received: config.evaluation.scales=()",
    ),
    (
        "--config.evaluation.scales=(1,0.5)",
        "Backbone 'convnet' with pooling 'flatten' takes images of one size only. For images at"
        " their own size take another backbone and config.model.pooling='gem', 'average' or 'max'.",
    ),
    (
        "--config.evaluation.whitening=1",
        "Invalid value for argument `config.evaluation.whitening`. Expected a finite number of"
        " at least 0 and of at most 0.5. Received: config.evaluation.whitening=1.0",
    ),
    (
        "--config.evaluation.rerank=True --config.evaluation.query_expansion=3",
        "Re-ranking takes a query that is in the gallery from there, where it is not expanded."
        " Use database augmentation in place of query expansion, or one of the two.",
    ),
    (
        "--config.evaluation.batch_size=0",
        "Invalid value for argument `config.evaluation.batch_size`. Expected an integer of at"
        " least 1. Received: config.evaluation.batch_size=0",
    ),
    (
        "--workdir={bad}/file",
        "Cannot write to {bad}/file (File exists). Choose another folder.",
    ),
    (
        "--workdir={bad}/file/below",
        "Cannot write to {bad}/file/below (Not a directory). Choose another folder.",
    ),
    (
        "--workdir={bad}/a[b]",
        "TensorFlow reads [...] and \\ in the path {bad}/a[b] as a pattern, and would not find"
        " the files that it writes there. Choose another folder, or change into it and give a"
        " relative path.",
    ),
    (
        "--workdir=gs://bucket/run",
        "Cannot write to gs://bucket/run: it is no local folder. Choose one, and copy it there.",
    ),
    (
        "--workdir={bad}/run --config.model.blocks=1",
        "The run in {bad}/run has another config (model.blocks: 2 before, 1 now). Choose another"
        " --workdir, or the same config.",
    ),
    (
        "--workdir={bad}/cut_config",
        "{bad}/cut_config/config.json is damaged (...). Choose another --workdir.",
    ),
    (
        "--workdir={bad}/empty_config",
        "{bad}/empty_config/config.json is damaged (...). Choose another --workdir.",
    ),
]

EVAL = [
    (
        "--embeddings=nowhere.npz",
        "There is no file nowhere.npz. Give that of the embeddings, --embeddings=PATH.",
    ),
    (
        "--embeddings={bad}/text.npz",
        "{bad}/text.npz cannot be measured: it is no .npz, or is cut off. It should be an .npz"
        " with embeddings, ...",
    ),
    (
        "--embeddings={bad}/empty",
        "{bad}/empty cannot be measured: ... Is a directory: '{bad}/empty'. It should be an .npz"
        " with embeddings, ...",
    ),
    (
        "--embeddings={bad}/array_x.npz",
        "{bad}/array_x.npz cannot be measured: it is no .npz, or is cut off. It should be an"
        " .npz with embeddings, ...",
    ),
    (
        "--embeddings={bad}/no_embeddings_x.npz",
        "{bad}/no_embeddings_x.npz cannot be measured: it has no embeddings. It should be an"
        " .npz with embeddings, ...",
    ),
    (
        "--embeddings={bad}/no_labels_x.npz",
        "{bad}/no_labels_x.npz cannot be measured: it has no labels. It should be an .npz with"
        " embeddings, ...",
    ),
    (
        "--embeddings={bad}/flat_x.npz",
        "{bad}/flat_x.npz cannot be measured: embeddings are float32 of shape [4], and labels"
        " int64 of shape [4]. It should be an .npz with embeddings, ...",
    ),
    (
        "--embeddings={bad}/integers_x.npz",
        "{bad}/integers_x.npz cannot be measured: embeddings are int64 of shape [4, 4], and"
        " labels int64 of shape [4]. It should be an .npz with embeddings, ...",
    ),
    (
        "--embeddings={bad}/three_labels_x.npz",
        "{bad}/three_labels_x.npz cannot be measured: embeddings are float32 of shape [4, 4],"
        " and labels int64 of shape [3]. It should be an .npz with embeddings, ...",
    ),
    (
        "--embeddings={bad}/real_labels_x.npz",
        "{bad}/real_labels_x.npz cannot be measured: .... It should be an .npz with embeddings, ...",
    ),
    (
        "--embeddings={bad}/words_x.npz",
        "{bad}/words_x.npz cannot be measured: .... It should be an .npz with embeddings, ...",
    ),
    (
        "--embeddings={bad}/objects_x.npz",
        "{bad}/objects_x.npz cannot be measured: Object arrays cannot be loaded when"
        " allow_pickle=False. It should be an .npz with embeddings, ...",
    ),
    (
        "--embeddings={bad}/none_x.npz",
        "{bad}/none_x.npz cannot be measured: embeddings are float32 of shape [0, 4], and labels"
        " int64 of shape [0]. It should be an .npz with embeddings, ...",
    ),
    (
        "--embeddings={bad}/not_finite_x.npz",
        "The embedding of '0' is not finite. The model may have diverged.",
    ),
    (
        "--embeddings={bad}/same_ids_x.npz",
        "`ids` has 'a' more than once (1 repeated). Give each image an id of its own.",
    ),
    (
        "--embeddings={bad}/all_different_x.npz",
        "No image has another of its class, so there is nothing to retrieve.",
    ),
    (
        "--embeddings={bad}/roles_x.npz",
        "{bad}/roles_x.npz cannot be measured: a role is none of ('', 'query', 'gallery',"
        " 'distractor'). It should be an .npz with embeddings, ...",
    ),
    (
        "--embeddings={bad}/queries_x.npz",
        "No image of the test set has the role 'gallery'. Take leave_one_out.",
    ),
    (
        "--embeddings={bad}/no_classes_x.npz",
        "Images of the test set have no class (label -1), but leave_one_out needs classes. Label"
        " the images, or choose the protocol revisited, which uses graded relevance.",
    ),
    (
        "--embeddings={bad}/groups_x.npz",
        "Images of one group have different classes; one of them is '2'. A group shows one object:"
        " correct the groups of the test set.",
    ),
    (
        "--embeddings={bad}/good_x.npz --export",
        "Embeddings come without a model. Give --workdir, or leave out export.",
    ),
    (
        "--embeddings={bad}/good_x.npz --config.evaluation.whitening=0.5",
        "Embeddings come without a model. Give --workdir, or leave out whitening.",
    ),
    (
        "--embeddings={bad}/good_x.npz --config.evaluation.recall_at=(10,)",
        "K=10 is too large: a query is ranked against 3 images. Choose Ks up to 3.",
    ),
    (
        "--embeddings={bad}/good_x.npz --config.evaluation.protocols=query_gallery",
        "No image of the test set has the role 'query'. Choose leave_one_out.",
    ),
    (
        "--embeddings={bad}/good_x.npz --output_dir={bad}/file",
        "Cannot write to {bad}/file (File exists). Choose another folder.",
    ),
    (
        "--embeddings={bad}/good_x.npz --compare_with=nowhere",
        "There is no evaluation in nowhere (no metrics.json). Give the folder of an evaluation, such as"
        " RUN/evaluation/test.",
    ),
    (
        "--embeddings={bad}/good_x.npz --compare_with={bad}/good_x_evaluation",
        "{bad}/good_x_evaluation is the folder of this evaluation itself. Give the folder of another one.",
    ),
    (
        "--embeddings={bad}/again_x.npz --compare_with={bad}/no_json",
        "{bad}/no_json/metrics.json is damaged (...). Evaluate again.",
    ),
    (
        "--embeddings={bad}/again_x.npz --compare_with={bad}/no_text",
        "{bad}/no_text/metrics.json is damaged (...). Evaluate again.",
    ),
    (
        "--embeddings={bad}/again_x.npz --compare_with={bad}/other_schema",
        "{bad}/other_schema/metrics.json was not written by an evaluation, or has another schema (99)."
        " Give the folder of an evaluation, such as RUN/evaluation/test, or evaluate again.",
    ),
    (
        "--embeddings={bad}/again_x.npz --compare_with={bad}/no_curves",
        "{bad}/no_curves/curves.json is damaged (...). Evaluate again.",
    ),
    (
        "--embeddings={bad}/again_x.npz --compare_with={bad}/other_columns",
        "{bad}/other_columns/per_query/leave_one_out.csv is damaged (its columns are ['x',"
        " 'y']). Evaluate again.",
    ),
    (
        "--embeddings={bad}/again_x.npz --compare_with={bad}/no_queries",
        "There is no {bad}/no_queries/per_query/leave_one_out.csv: that evaluation has no"
        " ranking 'leave_one_out'. Evaluate again.",
    ),
    (
        "--embeddings={bad}/other_ids_x.npz --compare_with={bad}/good_x_evaluation",
        "{bad}/good_x_evaluation has none of the queries of this test set: no id is in both."
        " Compare with an evaluation of the same test set.",
    ),
    (
        "--embeddings={bad}/other_classes_x.npz --compare_with={bad}/good_x_evaluation",
        "{bad}/good_x_evaluation has other classes for the same ids, so its test set is another one.",
    ),
    (
        "--embeddings={bad}/more_x.npz --compare_with={bad}/good_x_evaluation",
        "{bad}/good_x_evaluation searched another gallery at leave_one_out (4 and 6 images), so"
        " its metrics do not compare. Evaluate it again on this one.",
    ),
    (
        "--neighbors=fast",
        "--neighbors=fast: value should be one of <exact|scann>.",
    ),
    (
        "--trust_saved_model=perhaps",
        "Invalid value for argument `--trust_saved_model`. Expected true or false. Received:"
        " --trust_saved_model='perhaps'",
    ),
    (
        "--max_skipped=1",
        "There is no flag --max_skipped. --help lists them.",
    ),
    (
        "workdir=runs/digits_pnp",
        "What is 'workdir=runs/digits_pnp'? Flags begin with -- and have no spaces around =.",
    ),
    (
        "--workdir",
        "Missing value for flag --workdir. --help explains the flags.",
    ),
    (
        "--workdir=nowhere",
        "There is no run in nowhere. Train one first, or give --workdir, --saved_model or --embeddings.",
    ),
    (
        "--workdir={bad}/file",
        "There is no run in {bad}/file. Train one first, or give --workdir, --saved_model or --embeddings.",
    ),
    (
        "--workdir={bad}/cut_config",
        "{bad}/cut_config/config.json is damaged, or of another version of tfrank (...). Give"
        " the config that the run was trained by, --config=FILE.py:LOSS",
    ),
    (
        "--workdir={bad}/empty_config",
        "{bad}/empty_config/config.json is damaged, or of another version of tfrank (...). Give"
        " the config that the run was trained by, --config=FILE.py:LOSS",
    ),
    (
        "--workdir={bad}/foreign_config",
        "{bad}/foreign_config/config.json is damaged, or of another version of tfrank (...)."
        " Give the config that the run was trained by, --config=FILE.py:LOSS",
    ),
    (
        "--workdir={bad}/list_config",
        "{bad}/list_config/config.json is damaged, or of another version of tfrank (...). Give"
        " the config that the run was trained by, --config=FILE.py:LOSS",
    ),
    (
        "--workdir={bad}/edited_config",
        "{bad}/edited_config/config.json is damaged, or of another version of tfrank (...). Give"
        " the config that the run was trained by, --config=FILE.py:LOSS",
    ),
    (
        "--workdir={bad}/other_loss",
        "{bad}/other_loss/config.json is damaged, or of another version of tfrank (...). Give"
        " the config that the run was trained by, --config=FILE.py:LOSS",
    ),
    (
        "--workdir={bad}/no_checkpoint",
        "There is no checkpoint in {bad}/no_checkpoint yet. Train it first, by train_main.py.",
    ),
    (
        "--workdir={bad}/empty_checkpoint",
        "No checkpoint in {bad}/empty_checkpoint/checkpoints is whole. Delete the folder to begin anew.",
    ),
    (
        "--workdir={bad}/empty_shards",
        "The shard {bad}/empty_shards/records/test-00000-of-00004.tfrecord has 0 bytes, and had"
        " ... when the record index {bad}/empty_shards/records/test.index.npz was made. If the"
        " shard is right, delete the index to have it rebuilt.",
    ),
    (
        "--workdir={bad}/no_shards",
        "The record index {bad}/no_shards/records/test.index.npz names the shard"
        " {bad}/no_shards/records/test-00000-of-00004.tfrecord, which does not exist. Bring it"
        " back, or prepare the records anew.",
    ),
    (
        "--workdir={bad}/no_index",
        "The record index {bad}/no_index/records/test.index.npz is damaged, or of an earlier"
        " version (...). Delete it to have it rebuilt.",
    ),
    (
        "--workdir={bad}/no_records",
        "{bad}/no_records/records/prepared.json is damaged (...). Delete the folder and prepare it again.",
    ),
    (
        "--workdir={bad}/flipped_record",
        "record 0 of {bad}/flipped_record/records/test-00000-of-00004.tfrecord at byte ..."
        " (image id '8/0008-0'): the bytes of this record changed since they were written"
        " (checksum). Prepare the records anew, or fetch the shard again.",
    ),
    (
        "--workdir={bad}/run --config=configs/nothing.py",
        "There is no config file 'configs/nothing.py'. Give one, as in --config=configs/digits.py",
    ),
    (
        "--workdir={bad}/run --config.evaluation.recal_at=1",
        'Unknown config field `config.evaluation.recal_at`. Did you mean "recall_at"? The fields'
        " of config.evaluation are: ...",
    ),
    (
        "--workdir={bad}/run --config.model.filters=9",
        "The run in {bad}/run has another config (model.filters: 8 before, 9 now). Choose"
        " another --workdir, or the same config.",
    ),
    (
        "--workdir={bad}/run --config.data.test=(7,)",
        "{bad}/run/records has records of digits with {'train': [0, 1], 'test': [8, 9]}, not of"
        " digits with {'train': [0, 1], 'test': [7]}. Name other records,"
        " --config.data.test_records=PATH, or choose another --workdir.",
    ),
    (
        "--workdir={bad}/run --config.data.test_records=nowhere",
        "nowhere has no records of a split 8. Prepare it: python -m tfrank.data.prepare --help",
    ),
    (
        "--workdir={bad}/run --config.evaluation.recall_at=(4000,)",
        "K=4000 is too large: a query is ranked against 353 images. Choose Ks up to 353.",
    ),
    (
        "--workdir={bad}/run --config.evaluation.whitening=0.5 --config.evaluation.whitening_dim=99",
        "Invalid value for argument `config.evaluation.whitening_dim`. Expected at most 8, the"
        " dim of the embeddings. Received: config.evaluation.whitening_dim=99",
    ),
    (
        "--workdir={bad}/run --compare_with={bad}/run",
        "{bad}/run/metrics.json was not written by an evaluation, or has another schema (None). Give"
        " the folder of an evaluation, such as RUN/evaluation/test, or evaluate again.",
    ),
    (
        "--saved_model=nowhere",
        "nowhere lies in no run, so its images are not known. Give --config or --workdir.",
    ),
    (
        "--saved_model={bad}/empty",
        "{bad}/empty lies in no run, so its images are not known. Give --config or --workdir.",
    ),
    (
        "--saved_model={bad}/empty --workdir={bad}/run",
        "{bad}/empty is not a SavedModel of an embedding model (...). Give the folder of one, or"
        " export it again.",
    ),
    (
        "--saved_model={bad}/empty_model/saved_model",
        "{bad}/empty_model/saved_model is not a SavedModel of an embedding model (...). Give the"
        " folder of one, or export it again.",
    ),
    (
        "--saved_model={bad}/cut_model/saved_model",
        "{bad}/cut_model/saved_model is not a SavedModel of an embedding model (...). Give the"
        " folder of one, or export it again.",
    ),
    (
        "--saved_model={bad}/edited_model/saved_model",
        "{bad}/edited_model/saved_model is damaged (tfrank.json: Expecting value: line 1 column"
        " 1 (char 0)). Export it again.",
    ),
    (
        "--saved_model={bad}/no_variables/saved_model",
        "{bad}/no_variables/saved_model is not a SavedModel of an embedding model (...). Give"
        " the folder of one, or export it again.",
    ),
    (
        "--saved_model={bad}/run/saved_model --export",
        "A SavedModel cannot be exported again. Give the run by --workdir.",
    ),
    (
        "--saved_model={bad}/run/saved_model --config.data.image_size=12",
        "{bad}/run/saved_model is not a SavedModel of an embedding model (...). Give the folder"
        " of one, or export it again.",
    ),
]

PREPARE_DATA = [
    (
        "",
        "Give --source, --source_dir and --output_dir. --help explains them.",
    ),
    (
        "--source=foldr --source_dir={bad}/photos --output_dir={new}",
        "--source=foldr: value should be one of ....",
    ),
    (
        "--source=folder --source_dir=nowhere --output_dir={new}",
        "There is nothing at nowhere. Give the path of the data set's folder or archive.",
    ),
    (
        "--source=folder --source_dir={bad}/photos --output_dir={bad}/file",
        "Cannot write to {bad}/file (File exists). Choose another folder.",
    ),
    (
        "--source=folder --source_dir={bad}/photos --output_dir={bad}/photos",
        "{bad}/photos is the source itself. Choose another folder for the records.",
    ),
    (
        "--source=folder --source_dir={bad}/photos --output_dir={new} more",
        "What is 'more'? Flags begin with -- and have no spaces around =.",
    ),
    (
        "--source=folder --source_dir={bad}/photos --output_dir={new} --sorce=x",
        'There is no flag --sorce. Did you mean "source"? --help lists them.',
    ),
    (
        "--source=folder --source_dir={bad}/photos --output_dir={new} --config=configs/digits.py",
        "There is no flag --config. --help lists them.",
    ),
    (
        "--source=folder --source_dir={bad}/photos --output_dir={new} --shards=-1",
        "Invalid value for argument `--shards`. Expected an integer of at least 0. Received: --shards=-1",
    ),
    (
        "--source=folder --source_dir={bad}/photos --output_dir={new} --shards=x",
        "Invalid value for argument `--shards`. Expected a whole number. Received: --shards='x'",
    ),
    (
        "--source=folder --source_dir={bad}/photos --output_dir={new} --processes=-1",
        "Invalid value for argument `--processes`. Expected an integer of at least 0. Received:"
        " --processes=-1",
    ),
    (
        "--source=folder --source_dir={bad}/photos --output_dir={new} --max_skipped=2",
        "Invalid value for argument `--max_skipped`. Expected a finite number of at least 0 and"
        " of at most 1. Received: --max_skipped=2.0",
    ),
    (
        "--source=folder --source_dir={bad}/photos --output_dir={new} --allow_common_classes=x",
        "Invalid value for argument `--allow_common_classes`. Expected true or false. Received:"
        " --allow_common_classes='x'",
    ),
    (
        "--source=folder --source_dir={bad}/photos --output_dir={new} --option=test_share",
        "Invalid value for argument `option`. Expected something like test_share=0.2. Received:"
        " option='test_share'",
    ),
    (
        "--source=folder --source_dir={bad}/photos --output_dir={new} --option=test_shrae=1",
        "Source 'folder' has no option 'test_shrae'. Did you mean \"test_share\"? Its options are"
        " test_share, seed.",
    ),
    (
        "--source=folder --source_dir={bad}/photos --output_dir={new} --option=test_share=2",
        "Invalid value for argument `test_share`. Expected a finite number of at least 0 and of"
        " at most 1. Received: test_share=2",
    ),
    (
        "--source=folder --source_dir={bad}/photos --output_dir={new} --option=shorter_side=-1",
        "Invalid value for argument `shorter_side`. Expected an integer of at least 0. Received:"
        " shorter_side=-1",
    ),
    (
        "--source=folder --source_dir={bad}/photos --output_dir={new} --option=seed=x",
        "Invalid value for argument `seed`. Expected an integer of at least 0. Received: seed='x'",
    ),
    (
        "--source=folder --source_dir={bad}/empty --output_dir={new}",
        "{bad}/empty has no images. Expected {bad}/empty/<class>/<image>, or the same inside its"
        " folders train and test, or train, query and gallery, where an image ends in ...",
    ),
    (
        "--source=folder --source_dir={bad}/file --output_dir={new}",
        "Cannot read the folder {bad}/file (Not a directory). Give a folder, or an archive"
        " (.zip, .tar, .tar.gz).",
    ),
    (
        "--source=folder --source_dir={bad}/text.rar --output_dir={new}",
        "Cannot read the folder {bad}/text.rar (Not a directory). Give a folder, or an archive"
        " (.zip, .tar, .tar.gz).",
    ),
    (
        "--source=folder --source_dir=tfrank --output_dir={new}",
        "tfrank has no images. Expected tfrank/<class>/<image>, or the same inside its folders"
        " train and test, or train, query and gallery, where an image ends in ... ...",
    ),
    (
        "--source=folder --source_dir={bad}/loose --output_dir={new}",
        "{bad}/loose has 2 images and no folder with images. It takes one a class. Expected"
        " {bad}/loose/<class>/<image>, or the same inside its folders train and test, or train,"
        " query and gallery, where an image ends in ...",
    ),
    (
        "--source=folder --source_dir={bad}/three --output_dir={new}",
        "It takes 4 classes, two to train on and two to test on. {bad}/three has 3, of 9 images."
        " Add classes.",
    ),
    (
        "--source=folder --source_dir={bad}/one_each --output_dir={new}",
        "The 2 classes of test in {bad}/one_each have one image each. It takes two of a class to"
        " learn or to measure what is alike. Add images.",
    ),
    (
        "--source=folder --source_dir={bad}/half_divided --output_dir={new}",
        "{bad}/half_divided has the folders train, val. Is it divided? A division is train and"
        " test, or train, query and gallery; all of them, and named so. Else rename those classes.",
    ),
    (
        "--source=folder --source_dir={bad}/one_bad --output_dir={new} --max_skipped=0",
        "1 of 12 images cannot be used, and 0 may be left out. To leave them out give"
        " --max_skipped=0.084; what is done is kept. {new}/skipped.csv lists them: c0/1.png: no"
        " image in a known format (...), or its header is damaged",
    ),
    (
        "--source=folder --source_dir={bad}/all_bad --output_dir={new}",
        "12 of 12 images cannot be used, and 1 may be left out. {new}/skipped.csv lists them:"
        " c0/0.png: no image in a known format (...), or its header is damaged",
    ),
    (
        "--source=folder --source_dir={bad}/all_bad --output_dir={new} --max_skipped=1",
        "None of the images of 'test' can be used: see skipped.csv in {new}.",
    ),
    (
        "--source=folder --source_dir={bad}/text.zip --output_dir={new}",
        "{bad}/text.zip is damaged or cut off (File is not a zip file). Download the archive again.",
    ),
    (
        "--source=folder --source_dir={bad}/text.tar --output_dir={new}",
        "{bad}/text.tar is damaged or cut off (file could not be opened successfully). Download"
        " the archive again.",
    ),
    (
        "--source=folder --source_dir={bad}/text.tar.gz --output_dir={new}",
        "{bad}/text.tar.gz is damaged or cut off (file could not be opened successfully)."
        " Download the archive again.",
    ),
    (
        "--source=folder --source_dir={bad}/outside.zip --output_dir={new}",
        "{bad}/outside.zip: ../up.png leads out of the folder. Nothing was unpacked. Is it the"
        " archive that you meant?",
    ),
    (
        "--source=folder --source_dir={bad}/absolute.zip --output_dir={new}",
        "{bad}/absolute.zip: /up.png leads out of the folder. Nothing was unpacked. Is it the"
        " archive that you meant?",
    ),
    (
        "--source=folder --source_dir={bad}/empty.zip --output_dir={new}",
        "{bad}/empty.zip has no images. Expected {bad}/empty.zip/<class>/<image>, or the same"
        " inside its folders train and test, or train, query and gallery, where an image ends in"
        " ...",
    ),
    (
        "--source=folder --source_dir={bad}/cut_off.zip --output_dir={new}",
        "{bad}/cut_off.zip is damaged or cut off (File is not a zip file). Download the archive again.",
    ),
    (
        "--source=folder --source_dir={bad}/flipped.zip --output_dir={new}",
        "{bad}/flipped.zip: c0/0.png is damaged or cut off (Bad CRC-32 for file 'c0/0.png')."
        " Download the archive again.",
    ),
    (
        "--source=folder --source_dir={bad}/link.tar --output_dir={new}",
        "{bad}/link.tar: link is a symbolic link, device or pipe. Nothing was unpacked. Is it"
        " the archive that you meant?",
    ),
    (
        "--source=csv --source_dir={bad}/lists/empty.csv --output_dir={new}",
        "{bad}/lists/empty.csv, line 1: expected a header with the column path, but the line is ''.",
    ),
    (
        "--source=csv --source_dir={bad}/lists/header_only.csv --output_dir={new}",
        "The source has no images in {bad}/lists. Give another.",
    ),
    (
        "--source=csv --source_dir={bad}/lists/no_header.csv --output_dir={new}",
        "{bad}/lists/no_header.csv, line 1: expected a header with the column path, but the line"
        " is '../photos/c0/0.png,c0'.",
    ),
    (
        "--source=csv --source_dir={bad}/lists/no_label.csv --output_dir={new}",
        "{bad}/lists/no_label.csv, line 1: expected a header with the column label, but the line"
        " is 'path,class'.",
    ),
    (
        "--source=csv --source_dir={bad}/lists/misspelt.csv --output_dir={new}",
        "{bad}/lists/misspelt.csv, line 1: expected a header with the column split, but the line"
        " is 'path,label,splt'. Did you mean \"split\"?",
    ),
    (
        "--source=csv --source_dir={bad}/lists/short_line.csv --output_dir={new}",
        "{bad}/lists/short_line.csv, line 3: expected 2 values, one for each column, but the"
        " line is '../photos/c1/1.png'.",
    ),
    (
        "--source=csv --source_dir={bad}/lists/twice.csv --output_dir={new}",
        "{bad}/lists/twice.csv, line 1: expected each column once, and label is there 2 times,"
        " but the line is 'path,label,label'.",
    ),
    (
        "--source=csv --source_dir={bad}/lists/empty_box.csv --output_dir={new}",
        "{bad}/lists/empty_box.csv, line 2: expected the columns x (a number), y (a number), w"
        " (a positive number), h (a positive number), but the line is"
        " '../photos/c0/0.png,c0,1,1,0,5'.",
    ),
    (
        "--source=csv --source_dir={bad}/lists/word_in_box.csv --output_dir={new}",
        "{bad}/lists/word_in_box.csv, line 2: expected the columns x (a number), y (a number), w"
        " (a positive number), h (a positive number), but the line is"
        " '../photos/c0/0.png,c0,a,1,2,5'.",
    ),
    (
        "--source=csv --source_dir={bad}/lists/half_a_box.csv --output_dir={new}",
        "{bad}/lists/half_a_box.csv, line 2: expected the columns x (a number), y (a number), w"
        " (a positive number), h (a positive number), but the line is '../photos/c0/0.png,c0,1,1'.",
    ),
    (
        "--source=csv --source_dir={bad}/lists/elsewhere.csv --output_dir={new}",
        "12 of 12 images are not where the list says. The first, ../gone/c0/0.png, was looked"
        " for at {bad}/lists/../gone/c0/0.png, since paths are relative to {bad}/lists. Correct"
        " the paths.",
    ),
    (
        "--source=csv --source_dir={bad}/lists/backslashes.csv --output_dir={new}",
        "12 of 12 images are not where the list says. The first, ..\\photos\\c0\\0.png, was looked"
        " for at {bad}/lists/..\\photos\\c0\\0.png, since paths are relative to {bad}/lists. Correct"
        " the paths, with / in place of \\.",
    ),
    (
        "--source=csv --source_dir={bad}/lists/open_quote.csv --output_dir={new}",
        "{bad}/lists/open_quote.csv, line 2: the CSV is damaged (unexpected end of data). Quotes"
        " have to be closed, and doubled where they stand in quotes.",
    ),
    (
        "--source=csv --source_dir={bad}/lists/latin.csv --output_dir={new}",
        "{bad}/lists/latin.csv, line 2: not UTF-8 (unexpected end of data). Save it as UTF-8.",
    ),
    (
        "--source=csv --source_dir={bad}/lists/in_common.csv --output_dir={new}",
        "Both in train and in test: 1 class, 'c1'. A retrieval model is tested on classes that"
        " it was not trained on. Where this is meant, give `python -m tfrank.data.prepare`"
        " --allow_common_classes.",
    ),
    (
        "--source=csv --source_dir={bad}/lists/minus_one.csv --output_dir={new}",
        "{bad}/lists/minus_one.csv, line 13: expected another label than -1, which means that"
        " there is none, but the line is '../photos/c3/2.png,-1'.",
    ),
    (
        "--source=csv --source_dir={bad}/lists/bad_role.csv --output_dir={new}",
        "{bad}/lists/bad_role.csv, line 2: expected a role of query, gallery, distractor, or"
        " none, but the line is '../photos/c0/0.png,c0,test,querry'. Did you mean \"query\"?",
    ),
    (
        "--source=csv --source_dir={bad}/lists/label_missing.csv --output_dir={new}",
        "{bad}/lists/label_missing.csv, line 13: expected a label, but the line is '../photos/c3/2.png,'.",
    ),
    (
        "--source=csv --source_dir={bad}/photos --output_dir={new}",
        "{bad}/photos should hold one .csv file, and holds none. Give the path of the manifest itself.",
    ),
    (
        "--source=csv --source_dir=nowhere.csv --output_dir={new}",
        "There is nothing at nowhere.csv. Give the path of the data set's folder or archive.",
    ),
    (
        "--source=sop --source_dir={bad}/empty --output_dir={new}",
        "There is no list {bad}/empty/Ebay_train.txt. The folder should be"
        " Stanford_Online_Products, with Ebay_train.txt and Ebay_test.txt.",
    ),
    (
        "--source=sop --source_dir={bad}/sop --output_dir={new}",
        "{bad}/sop/Ebay_train.txt, line 2: expected the columns image_id (a whole number),"
        " class_id (a whole number), super_class_id (a whole number), path, but the line is '1 1"
        " x a.jpg'.",
    ),
    (
        "--source=in_shop --source_dir={bad}/empty --output_dir={new}",
        "There is no list {bad}/empty/Eval/list_eval_partition.txt. The folder should be that of"
        " In-shop Clothes Retrieval, with Eval and the images.",
    ),
    (
        "--source=vehicle_id --source_dir={bad}/empty --output_dir={new}",
        "There is no list {bad}/empty/train_test_split/train_list.txt. The folder should be"
        " VehicleID_V1.0, with train_test_split and image.",
    ),
    (
        "--source=inaturalist --source_dir={bad}/empty --output_dir={new}",
        "There is no list {bad}/empty/Inat_dataset_splits/Inaturalist_train_set1.txt. The folder"
        " should be that of Inat_dataset_splits and train_val2018.",
    ),
    (
        "--source=cub --source_dir={bad}/empty --output_dir={new}",
        "There is no list {bad}/empty/images.txt. The folder should be CUB_200_2011, with images"
        " and images.txt, image_class_labels.txt, bounding_boxes.txt, classes.txt.",
    ),
    (
        "--source=cars --source_dir={bad}/empty --output_dir={new}",
        "There is no list {bad}/empty/cars_annos.mat. The folder should be that of"
        " cars_annos.mat and car_ims, or of cars_train, cars_test and devkit.",
    ),
    (
        "--source=landmarks_clean --source_dir={bad}/empty --output_dir={new}",
        "There is no list {bad}/empty/annotations_landmarks/annotation_clean_train.txt. The"
        " folder should be that of the images, with the lists in it or in its"
        " annotations_landmarks.",
    ),
    (
        "--source=roxford5k --source_dir={bad}/empty --output_dir={new}",
        "There is no list {bad}/empty/gnd_roxford5k.pkl. The folder should be that of"
        " gnd_roxford5k.pkl and jpg.",
    ),
    (
        "--source=vgg_face2 --source_dir={bad}/empty --output_dir={new}",
        "There is no list {bad}/empty/train_list.txt. The folder should be that of train and"
        " test, with the lists in it or in its meta.",
    ),
    (
        "--source=ijb_c --source_dir={bad}/empty --output_dir={new}",
        "There is no list {bad}/empty/protocols/ijbc_metadata.csv. The folder should be that of"
        " IJB-C, with images and protocols/ijbc_metadata.csv, or InsightFace's, with loose_crop and meta.",
    ),
    (
        "--source=omniglot --source_dir={bad}/photos --output_dir={new}",
        "Source 'omniglot' takes the options train, test, as in --option=train=A,B",
    ),
    (
        "--source=omniglot --source_dir={bad}/photos --output_dir={new} --option=train=A --option=test=B",
        "Invalid value for argument `train`. Expected a list of alphabets. Received: train='A'",
    ),
    (
        "--source=folder --source_dir={bad}/three --output_dir={bad}/prepared",
        "{bad}/prepared has records of {bad}/photos. Choose another --output_dir.",
    ),
    (
        "--source=folder --source_dir={bad}/photos --output_dir={bad}/prepared --option=test_share=0.3",
        "{bad}/prepared has records of folder with options {'shorter_side': 512}, not of folder"
        " with options {'test_share': 0.3, 'shorter_side': 512}. Choose another folder.",
    ),
]

PROGRAMS = {"train_main.py": TRAIN, "eval_main.py": EVAL, PREPARE: PREPARE_DATA}


@pytest.fixture(scope="module")
def commands():
    """Runs commands in forked children of one process."""
    with command_lines() as running:
        yield running


@pytest.fixture(scope="module")
def bad(commands, tmp_path_factory):
    """A folder of bad input, and of a run, an evaluation and records that are damaged in many ways."""
    folder = tmp_path_factory.mktemp("bad")
    bad_inputs.make(folder)
    for program, *arguments in (
        ("train_main.py", f"--workdir={folder}/run", *SMALL, *DIGITS),
        ("eval_main.py", f"--embeddings={folder}/good_x.npz"),
        (PREPARE, "--source=folder", f"--source_dir={folder}/photos", f"--output_dir={folder}/prepared"),
    ):
        done = commands.run(program, arguments)
        assert done.status == 0, done.errors
    bad_inputs.damage_evaluations(folder)
    bad_inputs.damage_runs(folder)
    return folder


def filled(program, arguments, bad, new):
    """The words of a command line, where a training is to be small and in a folder of its own."""
    words = arguments.replace("{bad}", str(bad)).replace("{new}", str(new)).split()
    if program != "train_main.py":
        return words
    own_data = any(name in arguments for name in OWN_DATA)
    workdir = [] if "--workdir" in arguments else [f"--workdir={new}"]
    return [*workdir, *SMALL, *(() if own_data else DIGITS), *words]


def check(ended, expected, bad, new):
    """Status 1, and on the standard error the one line that is expected."""
    assert ended.status == 1, ended
    line = f"Error: {expected}".replace("{bad}", str(bad)).replace("{new}", str(new))
    pattern = ".*".join(re.escape(part) for part in line.split("..."))
    assert re.fullmatch(pattern, ended.errors.removesuffix("\n")), ended.errors


@pytest.mark.parametrize("arguments, expected", TRAIN, ids=[line for line, _ in TRAIN])
def test_train_main_says_in_one_line_what_is_wrong_and_what_to_do(
    commands, bad, tmp_path, arguments, expected
):
    words = filled("train_main.py", arguments, bad, tmp_path / "new")
    check(commands.run("train_main.py", words), expected, bad, tmp_path / "new")


@pytest.mark.parametrize("arguments, expected", EVAL, ids=[line for line, _ in EVAL])
def test_eval_main_says_in_one_line_what_is_wrong_and_what_to_do(commands, bad, arguments, expected):
    words = filled("eval_main.py", arguments, bad, "")
    check(commands.run("eval_main.py", words), expected, bad, "")


@pytest.mark.parametrize("arguments, expected", PREPARE_DATA, ids=[line for line, _ in PREPARE_DATA])
def test_prepare_says_in_one_line_what_is_wrong_and_what_to_do(commands, bad, tmp_path, arguments, expected):
    words = filled(PREPARE, arguments, bad, tmp_path / "new")
    check(commands.run(PREPARE, words), expected, bad, tmp_path / "new")


@pytest.mark.parametrize(
    "program, arguments",
    [
        ("train_main.py", "--config.train.step=5"),
        ("train_main.py", "--config.data.name=folder"),
        ("eval_main.py", "--workdir=nowhere"),
        ("eval_main.py", "--embeddings={bad}/flat_x.npz"),
        (PREPARE, "--source=folder --source_dir={bad}/text.zip --output_dir={new}"),
        (PREPARE, "--source=csv --source_dir={bad}/lists/no_header.csv --output_dir={new}"),
    ],
)
def test_a_process_of_its_own_ends_as_a_forked_one(bad, tmp_path, program, arguments):
    new = tmp_path / "new"
    ended = run_alone(program, filled(program, arguments, bad, new))
    check(ended, dict(PROGRAMS[program])[arguments], bad, new)


def test_the_table_holds_at_least_150_errors_each_with_a_line():
    rows = [*TRAIN, *EVAL, *PREPARE_DATA]
    assert len(rows) >= 150 and all(len(expected) > 30 for _, expected in rows)
