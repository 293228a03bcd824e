"""Published data sets in their official layout: each file turns one into `ImageRecord`s."""

from tfrank.data.sources.ijb_c import read_ijb_c
from tfrank.data.sources.image import Count, Source
from tfrank.data.sources.landmarks_clean import read_landmarks_clean
from tfrank.data.sources.revisited import read_roxford5k, read_rparis6k
from tfrank.data.sources.vgg_face2 import read_vgg_face2

SOURCES: dict[str, Source] = {
    "landmarks_clean": Source(
        read_landmarks_clean,
        {"train": Count(586, 42_410), "val": Count(None, 6_382)},
        "Papers count the train list alone.",
    ),
    "roxford5k": Source(read_roxford5k, {"test query": Count(None, 70), "test gallery": Count(None, 4_993)}),
    "rparis6k": Source(read_rparis6k, {"test query": Count(None, 70), "test gallery": Count(None, 6_322)}),
    "vgg_face2": Source(
        read_vgg_face2,
        {"train": Count(8_631, 3_141_890), "test": Count(500, 169_396)},
        "The 3.31 million images that papers print for train are those of train and test together.",
    ),
    "ijb_c": Source(
        read_ijb_c,
        {"test": Count(3_531, 148_824)},
        "Smooth-AP's numbers, from the subjects before those of fewer than 5 instances are left out: the"
        " data set has 3,531 in all.",
    ),
}
