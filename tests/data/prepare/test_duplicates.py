"""Photos that occur more than once are reported."""

import csv
import os

from tests.data.prepare import prepare_folder
from tfrank.data.prepare.builder import prepare
from tfrank.data.record_folder import open_split


def test_a_photo_in_train_and_in_test_or_in_two_classes_is_told_and_listed(images, output, capsys):
    prepare_folder(images, output)
    train, test = ([name.decode() for name in open_split(output, split).id] for split in ("train", "test"))
    assert not os.path.exists(os.path.join(output, "duplicates.csv"))
    copies = {
        os.path.dirname(test[0]): "test",
        os.path.dirname(train[-1]): "train",
        os.path.dirname(train[0]): 0,
    }
    for folder in copies:
        (images / folder / "z.png").write_bytes((images / train[0]).read_bytes())
    capsys.readouterr()
    again = f"{output} again"
    prepare_folder(images, again)
    said = [line for line in capsys.readouterr().out.splitlines() if "byte for byte" in line]
    assert said[0].startswith(
        "Warning: 1 photo is both in train and in test, byte for byte, such as"
        f" {os.path.dirname(test[0])}/z.png and {train[0]}. Testing on training images gives wrong results."
        " Delete one of each, then the records"
    )
    assert said[1].startswith("Warning: 1 photo is both in two classes, byte for byte, such as ")
    assert said[2] == "Note: 1 photo is repeated in the same class, byte for byte."
    with open(os.path.join(again, "duplicates.csv"), newline="") as file:
        assert [row["image"] for row in csv.DictReader(file)] == [
            f"{name}/z.png" for name in list(copies)[:2]
        ]


def test_the_same_photo_with_another_box_is_not_a_copy(images, tmp_path, output, capsys):
    lines = [f"images/class {c}/{n}.png,{c},{n},0,5,5" for c in range(4) for n in range(2)]
    for c in range(1, 4):
        (images / f"class {c}" / "0.png").write_bytes((images / "class 0" / "0.png").read_bytes())
    manifest = tmp_path / "list.csv"
    manifest.write_text(
        "\n".join(["path,label,x,y,w,h", *(line for line in lines if "0.png" not in line[-9:])])
    )
    prepare("csv", str(manifest), output)
    assert "Warning: " in capsys.readouterr().out
    boxes = [f"images/class {c}/{n}.png,{c},{n + c},0,5,5" for c in range(4) for n in range(2)]
    manifest.write_text("\n".join(["path,label,x,y,w,h", *boxes]))
    prepare("csv", str(manifest), f"{output} again")
    assert "Warning: " not in capsys.readouterr().out
