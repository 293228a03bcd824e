"""Published data sets in their official layout, and users' own images: each file reads one."""

from tfrank.data.sources.cars import read_cars
from tfrank.data.sources.csv_manifest import read_csv
from tfrank.data.sources.cub import read_cub
from tfrank.data.sources.digits import read_digits
from tfrank.data.sources.folder import read_folder
from tfrank.data.sources.image import Count, Source
from tfrank.data.sources.in_shop import read_in_shop
from tfrank.data.sources.inaturalist import read_inaturalist
from tfrank.data.sources.omniglot import read_omniglot
from tfrank.data.sources.sop import read_sop
from tfrank.data.sources.vehicle_id import read_vehicle_id

SOURCES: dict[str, Source] = {
    "digits": Source(read_digits),
    "omniglot": Source(read_omniglot),
    "folder": Source(read_folder),
    "csv": Source(read_csv),
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
}
