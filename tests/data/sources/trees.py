"""Data sets of objects as their archives unpack them, from lines of the official lists, and their images."""

import pathlib

import numpy as np
import scipy.io

from tfrank.data.sources.image import SourceImage

TRAIN_LIST, TEST_LIST = (f"Inat_dataset_splits/Inaturalist_{split}_set1.txt" for split in ("train", "test"))
LISTS = {
    "sop": {
        "Ebay_train.txt": """\
image_id class_id super_class_id path
1 1 1 bicycle_final/111085122871_0.JPG
2 1 1 bicycle_final/111085122871_1.JPG
""",
        "Ebay_test.txt": """\
image_id class_id super_class_id path
59552 11319 1 bicycle_final/251952414262_0.JPG
120053 22634 12 toaster_final/391109767443_4.JPG
""",
    },
    "in_shop": {
        "Eval/list_eval_partition.txt": """\
4
image_name item_id evaluation_status
img/WOMEN/Dresses/id_00000002/02_1_front.jpg                           id_00000002 train      
img/WOMEN/Dresses/id_00000002/02_2_side.jpg                            id_00000002 train      
img/WOMEN/Blouses_Shirts/id_00000001/02_1_front.jpg                    id_00000001 query      
img/WOMEN/Blouses_Shirts/id_00000001/02_2_side.jpg                     id_00000001 gallery    
""",
    },
    "vehicle_id": {
        "train_test_split/train_list.txt": "0058148 1891\n0000007 2\n",
        "train_test_split/test_list_800.txt": "0279029 23781\n0279028 23781\n",
        "train_test_split/test_list_1600.txt": "0279029 23781\n",
        "train_test_split/test_list_2400.txt": "0279029 23781\n0217649 18515\n",
        "train_test_split/test_list_6000.txt": "0217649 18515\n",
    },
    "inaturalist": {
        TRAIN_LIST: "train_val2018/Plantae/7477/3b60c9486db1d2ee875f11a669fbde4a.jpg\n",
        TEST_LIST: "train_val2018/Aves/2761/a.jpg\ntrain_val2018/Aves/2761/b.jpg\n",
    },
    "cub": {
        "images.txt": """\
1 001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg
2 001.Black_footed_Albatross/Black_Footed_Albatross_0009_34.jpg
5864 100.Brown_Pelican/Brown_Pelican_0122_94022.jpg
5865 101.White_Pelican/White_Pelican_0048_95837.jpg
""",
        "image_class_labels.txt": "1 1\n2 1\n5864 100\n5865 101\n",
        "bounding_boxes.txt": """\
1 60.0 27.0 325.0 304.0
2 139.0 30.0 153.0 264.0
5864 14.0 112.0 388.0 186.0
5865 112.0 90.0 255.0 242.0
""",
        "classes.txt": """\
1 001.Black_footed_Albatross
100 100.Brown_Pelican
101 101.White_Pelican
""",
    },
}
IMAGES = {
    "sop": [
        ("train", "bicycle_final/111085122871_0.JPG", 0, "bicycle 1", 0, "bicycle"),
        ("train", "bicycle_final/111085122871_1.JPG", 0, "bicycle 1", 0, "bicycle"),
        ("test", "bicycle_final/251952414262_0.JPG", 11318, "bicycle 11319", 0, "bicycle"),
        ("test", "toaster_final/391109767443_4.JPG", 22633, "toaster 22634", 11, "toaster"),
    ],
    "in_shop": [
        ("train", "img/WOMEN/Dresses/id_00000002/02_1_front.jpg", 2, "id_00000002", ""),
        ("train", "img/WOMEN/Dresses/id_00000002/02_2_side.jpg", 2, "id_00000002", ""),
        ("test", "img/WOMEN/Blouses_Shirts/id_00000001/02_1_front.jpg", 1, "id_00000001", "query"),
        ("test", "img/WOMEN/Blouses_Shirts/id_00000001/02_2_side.jpg", 1, "id_00000001", "gallery"),
    ],
    "vehicle_id": [
        ("train", "image/0058148.jpg", 1891, "1891", "0058148"),
        ("train", "image/0000007.jpg", 2, "2", "0000007"),
        ("test_800", "image/0279029.jpg", 23781, "23781", "0279029"),
        ("test_800", "image/0279028.jpg", 23781, "23781", "0279028"),
        ("test_1600", "image/0279029.jpg", 23781, "23781", "0279029"),
        ("test_2400", "image/0279029.jpg", 23781, "23781", "0279029"),
        ("test_2400", "image/0217649.jpg", 18515, "18515", "0217649"),
    ],
    "inaturalist": [
        (
            "train",
            "train_val2018/Plantae/7477/3b60c9486db1d2ee875f11a669fbde4a.jpg",
            7477,
            "Plantae/7477",
        ),
        ("test", "train_val2018/Aves/2761/a.jpg", 2761, "Aves/2761"),
        ("test", "train_val2018/Aves/2761/b.jpg", 2761, "Aves/2761"),
    ],
    "cub": [
        (
            "train",
            "images/001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg",
            0,
            "001.Black_footed_Albatross",
            (60.0, 27.0, 325.0, 304.0),
        ),
        (
            "train",
            "images/001.Black_footed_Albatross/Black_Footed_Albatross_0009_34.jpg",
            0,
            "001.Black_footed_Albatross",
            (139.0, 30.0, 153.0, 264.0),
        ),
        (
            "train",
            "images/100.Brown_Pelican/Brown_Pelican_0122_94022.jpg",
            99,
            "100.Brown_Pelican",
            (14.0, 112.0, 388.0, 186.0),
        ),
        (
            "test",
            "images/101.White_Pelican/White_Pelican_0048_95837.jpg",
            100,
            "101.White_Pelican",
            (112.0, 90.0, 255.0, 242.0),
        ),
    ],
    "cars": [
        ("train", "car_ims/000001.jpg", 0, "AM General Hummer SUV 2000", (112.0, 7.0, 741.0, 710.0)),
        ("train", "car_ims/000002.jpg", 1, "Model 2", (48.0, 24.0, 393.0, 178.0)),
        ("train", "car_ims/000098.jpg", 97, "Model 98", (1.0, 2.0, 3.0, 4.0)),
        ("test", "car_ims/000099.jpg", 98, "Model 99", (1.0, 2.0, 3.0, 4.0)),
    ],
}
CAR_FIELDS = ("relative_im_path", "bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "test")
CARS = [
    ("car_ims/000001.jpg", 112, 7, 853, 717, 1, 0),
    ("car_ims/000002.jpg", 48, 24, 441, 202, 2, 1),
    ("car_ims/000098.jpg", 1, 2, 4, 6, 98, 1),
    ("car_ims/000099.jpg", 1, 2, 4, 6, 99, 0),
]
CAR_NAMES = ["AM General Hummer SUV 2000"] + [f"Model {number}" for number in range(2, 197)]


def write(folder: pathlib.Path, name: str, content: str | bytes) -> pathlib.Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def touch(folder: pathlib.Path, *names: str) -> pathlib.Path:
    """Empty files in a folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def write_cars(path, annotations=CARS, fields=CAR_FIELDS, **changes):
    structs = None
    if annotations is not None:
        structs = np.array([annotations], [(field, object) for field in fields])
    content = {"annotations": structs, "class_names": np.array([CAR_NAMES], object), **changes}
    scipy.io.savemat(
        path, {name: value for name, value in content.items() if value is not None}, do_compression=True
    )


def lay_out(folder: pathlib.Path, key: str) -> pathlib.Path:
    """The lists of a data set, as its archive unpacks them."""
    folder.mkdir(exist_ok=True)
    for name, text in LISTS.get(key, {}).items():
        write(folder, name, text)
    if key == "cars":
        write_cars(folder / "cars_annos.mat")
    return folder


def expected(key: str) -> list[SourceImage]:
    """The images of `IMAGES`, whose last columns are others for each data set."""
    last = {
        "sop": ["category", "category_text"],
        "in_shop": ["role"],
        "vehicle_id": ["id"],
        "cub": ["box"],
        "cars": ["box"],
    }
    columns = ("split", "path", "label", "text", *last.get(key, []))
    rows = [dict(zip(columns, row, strict=True)) for row in IMAGES[key]]
    return [SourceImage(**{"id": row["path"].removeprefix("images/"), **row}) for row in rows]
