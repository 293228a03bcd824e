"""Readers of data sets, one per file: published ones in their official layout, and users' own images."""

import functools

from tfrank.data.sources.cars import read_cars
from tfrank.data.sources.csv_manifest import read_csv
from tfrank.data.sources.cub import read_cub
from tfrank.data.sources.digits import read_digits
from tfrank.data.sources.embeddings import read_embeddings
from tfrank.data.sources.folder import read_folder
from tfrank.data.sources.ijb_c import has_metadata, read_ijb_c
from tfrank.data.sources.ijb_c_templates import has_templates, read_ijb_c_templates, templates
from tfrank.data.sources.image import Count, Source
from tfrank.data.sources.in_shop import read_in_shop
from tfrank.data.sources.inaturalist import read_inaturalist
from tfrank.data.sources.landmarks_clean import read_landmarks_clean
from tfrank.data.sources.letters import read_letters
from tfrank.data.sources.omniglot import read_omniglot
from tfrank.data.sources.revisited import ground_truth, read_roxford5k, read_rparis6k
from tfrank.data.sources.sop import read_sop
from tfrank.data.sources.vehicle_id import read_vehicle_id
from tfrank.data.sources.vgg_face2 import read_vgg_face2

SOURCES: dict[str, Source] = {
    "digits": Source(read_digits),
    "letters": Source(read_letters),
    "omniglot": Source(read_omniglot),
    "folder": Source(read_folder, config=("own_images.py",), own=True),
    "csv": Source(read_csv, config=("own_images.py",), own=True),
    "embeddings": Source(read_embeddings, config=("own_embeddings.py",), own=True),
    "sop": Source(read_sop, {"train": Count(11_318, 59_551), "test": Count(11_316, 60_502)}),
    "in_shop": Source(
        read_in_shop,
        {
            "train": Count(3_997, 25_882),
            "test query": Count(3_985, 14_218),
            "test gallery": Count(3_985, 12_612),
        },
    ),
    "vehicle_id": Source(
        read_vehicle_id,
        {
            "train": Count(13_164, 113_346),
            "test_800": Count(800, 6_493),
            "test_1600": Count(1_600, 13_377),
            "test_2400": Count(2_400, 19_777),
        },
        "Of VehicleID the papers print 13,134 classes of 110,178 images to train on, and 7,332, 12,995 and"
        " 20,038 images to test on; the official lists have 13,164 of 113,346, and 6,493, 13,377 and 19,777.",
    ),
    "inaturalist": Source(read_inaturalist, {"train": Count(5_690, 325_846), "test": Count(2_452, 136_093)}),
    "cub": Source(read_cub, {"train": Count(100, 5_864), "test": Count(100, 5_924)}),
    "cars": Source(read_cars, {"train": Count(98, 8_054), "test": Count(98, 8_131)}),
    "landmarks_clean": Source(
        read_landmarks_clean,
        {"train": Count(586, 42_410), "val": Count(None, 6_382)},
        "Papers count the train list alone.",
        "The web keeps changing: of the 48,792 images listed 31,365 could still be downloaded.",
        config=("landmarks.py", "--config.data.test_records=records/roxford5k"),
    ),
    "roxford5k": Source(
        read_roxford5k,
        {"test query": Count(None, 70), "test gallery": Count(None, 4_993)},
        ground_truth=functools.partial(ground_truth, name="roxford5k"),
        run="runs/landmarks_map_q",
    ),
    "rparis6k": Source(
        read_rparis6k,
        {"test query": Count(None, 70), "test gallery": Count(None, 6_322)},
        ground_truth=functools.partial(ground_truth, name="rparis6k"),
        run="runs/landmarks_map_q",
    ),
    "vgg_face2": Source(
        read_vgg_face2,
        {"train": Count(8_631, 3_141_890), "test": Count(500, 169_396)},
        "The 3.31 million images that papers print for train are those of train and test together.",
        config=("vgg_face2.py:smooth_ap",),
    ),
    "ijb_c": Source(
        read_ijb_c,
        {"test": Count(3_531, 148_824)},
        "Smooth-AP's numbers, from the subjects before those of fewer than 5 instances are left out: the"
        " data set has 3,531 in all.",
        run="runs/vgg_face2_smooth_ap",
        matches=has_metadata,
        alternative=Source(
            read_ijb_c_templates,
            {"test": Count(None, 469_375)},
            templates=templates,
            matches=has_templates,
        ),
    ),
}
