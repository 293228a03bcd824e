"""Archives are unpacked whole or not at all, and nothing of them lies outside of the folder."""

import collections
import io
import os
import random
import stat
import struct
import tarfile
import tracemalloc
import zipfile

import pytest

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.data.prepare.archives import is_archive, unpack
from tfrank.data.prepare.web_page import reason_of_damage

SUFFIXES = [".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"]
FILES = {
    "top/list.txt": b"a.jpg 1\n" * 99,
    "top/images/a.jpg": random.Random(0).randbytes(20_000),
    "b.jpg": b"",
}


def write(path, members):
    """An archive of these files, by name; a name with a slash at its end is a folder."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        return str(path)
    with tarfile.open(path, f"w:{path.suffix[1:].removeprefix('tar').replace('tgz', 'gz')}") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            member.size, member.mode, member.uid = len(data), 0o6777, 12345
            archive.addfile(member, io.BytesIO(data))
    return str(path)


def write_tar(path, *members):
    """A tar of members without data, with these attributes of `TarInfo`."""
    with tarfile.open(path, "w") as archive:
        for attributes in members:
            member = tarfile.TarInfo()
            for name, value in attributes.items():
                setattr(member, name, value)
            archive.addfile(member)
    return str(path)


def tree(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def assert_refused(archive, tmp_path, message):
    before = tree(tmp_path)
    with pytest.raises(InputError, match=message):
        unpack(archive, str(tmp_path / "data" / "out"))
    assert tree(tmp_path) == before
    assert os.listdir(tmp_path / "data") == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_kind_is_unpacked_file_by_file(tmp_path, suffix):
    archive = write(tmp_path / f"images{suffix}", {"top/empty/": b"", **FILES})
    folder = tmp_path / "data" / "out"
    assert is_archive(archive)
    assert unpack(archive, str(folder)) == str(folder)
    assert tree(folder) == FILES
    assert (folder / "top" / "empty").is_dir()
    assert os.listdir(tmp_path / "data") == ["out"]
    mode = (folder / "top" / "list.txt").stat()
    assert not mode.st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IXUSR) and mode.st_uid == os.getuid()


def test_a_name_of_no_archive_is_refused_with_what_can_be_unpacked(tmp_path):
    path = tmp_path / "images.rar"
    path.write_bytes(b"x")
    assert not is_archive(str(path)) and not is_archive(str(tmp_path)) and not is_archive("missing.zip")
    for name in (str(path), str(tmp_path / "missing.zip")):
        with pytest.raises(InputError, match=r"Its name must end with \.zip, \.tar, .*\.tar\.xz\."):
            unpack(name, str(tmp_path / "out"))


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_hidden_files_of_a_mac_are_left_out(tmp_path, suffix):
    hidden = {"__MACOSX/top/._list.txt": b"x", "top/._list.txt": b"x", "top/__MACOSX/a": b"x"}
    archive = write(tmp_path / f"images{suffix}", {**hidden, **FILES})
    assert tree(tmp_path / unpack(archive, str(tmp_path / "out"))) == FILES


def test_what_is_unpacked_is_left_as_it_is_and_what_was_interrupted_begins_anew(tmp_path):
    archive = write(tmp_path / "images.zip", FILES)
    left = tmp_path / "out.unpacking" / "half.jpg"
    left.parent.mkdir()
    left.write_bytes(b"x")
    folder = tmp_path / "out"
    folder.mkdir()  # Empty, it is not taken for unpacked.
    unpack(archive, str(folder))
    assert tree(folder) == FILES and not left.parent.exists()
    (folder / "b.jpg").write_bytes(b"mine")
    unpack(archive, str(folder))
    assert (folder / "b.jpg").read_bytes() == b"mine"


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
@pytest.mark.parametrize(
    "name", ["../out.txt", "/out.txt", "a/../../out.txt", "a/..", "..\\out.txt", "C:\\out.txt", "\\out.txt"]
)
def test_a_member_that_leads_out_is_refused_by_name(tmp_path, suffix, name):
    archive = write(tmp_path / f"images{suffix}", {**FILES, name: b"x"})
    last = name.replace("\\", r"\\").rsplit("/", 1)[-1]
    assert_refused(
        archive, tmp_path, rf"images.*: .*{last} would be written outside the folder\. Nothing was"
    )


@pytest.mark.parametrize(
    "attributes, reason",
    [
        ({"type": tarfile.SYMTYPE, "linkname": "/etc"}, "is a symbolic link, device or pipe"),
        ({"type": tarfile.SYMTYPE, "linkname": "a"}, "is a symbolic link, device or pipe"),
        ({"type": tarfile.FIFOTYPE}, "is a symbolic link, device or pipe"),
        ({"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}, "is a symbolic link, device or pipe"),
        ({"type": b"?"}, "is a symbolic link, device or pipe"),
        ({"type": tarfile.LNKTYPE, "linkname": "../images.tar"}, "would be written outside the folder"),
        ({"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"}, "would be written outside the folder"),
        ({"type": tarfile.LNKTYPE, "linkname": "later"}, "is a link to later, which is no file before it"),
    ],
)
def test_a_member_of_a_tar_that_is_no_file_is_refused_by_name(tmp_path, attributes, reason):
    later = {"name": "later", "type": tarfile.FIFOTYPE}
    archive = write_tar(tmp_path / "images.tar", {"name": "a"}, {"name": "odd", **attributes}, later)
    assert_refused(archive, tmp_path, rf"images\.tar: \S+ {reason}")


def test_a_hard_link_to_a_file_before_it_is_that_file(tmp_path):
    archive = tmp_path / "images.tar"
    write(archive, FILES)
    with tarfile.open(archive, "a") as file:
        link = tarfile.TarInfo("top/again.jpg")
        link.type, link.linkname = tarfile.LNKTYPE, "top/images/a.jpg"
        file.addfile(link)
    unpacked = tree(tmp_path / unpack(str(archive), str(tmp_path / "out")))
    assert unpacked == {**FILES, "top/again.jpg": FILES["top/images/a.jpg"]}


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_a_link_or_device_in_a_zip_is_refused_by_name(tmp_path, kind):
    member = zipfile.ZipInfo("top/odd")
    member.create_system, member.external_attr = 3, (kind | 0o777) << 16
    archive = write(tmp_path / "images.zip", {"a": b"x", member: b"/etc/passwd"})
    assert_refused(archive, tmp_path, r"images\.zip: top/odd is a link or device")


def write_zip(path, names, system=0, extra=b""):
    """A zip whose names are these bytes, not marked as UTF-8; `system` 0 is Windows, 3 Unix."""
    with zipfile.ZipFile(path, "w") as archive:
        for number, name in enumerate(names):
            member = zipfile.ZipInfo(f"{number:A>{len(name)}}")
            member.create_system, member.extra = system, extra
            archive.writestr(member, b"x")
    data = path.read_bytes()
    for number, name in enumerate(names):
        data = data.replace(f"{number:A>{len(name)}}".encode(), name)
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize(
    "encoding, names",
    [
        ("cp932", ["写真/桜/一本桜の写真.jpg", "表/ソース/2.jpg", "カタカナ/テスト/3.jpg"]),
        ("gbk", ["照片/樱花/图片一.jpg", "动物/狗/柴犬.jpg", "新建文件夹/图片.jpg"]),
        ("big5", ["照片/櫻花/圖片一.jpg", "動物/狗/柴犬.jpg"]),
        ("cp949", ["사진/벚꽃/하나.jpg", "동물/개/진돗개.jpg"]),
        ("cp866", ["Фото/Птицы/снегирь.jpg", "Животные/собака.jpg"]),
        ("cp437", ["Vögel/Müller/groß.jpg", "été/café.jpg"]),
        ("utf-8", ["Vögel/写真/1.jpg", "été/café.jpg"]),
    ],
)
def test_names_in_a_zip_are_those_that_were_written_in_any_encoding(tmp_path, encoding, names, capsys):
    archive = write_zip(tmp_path / "images.zip", [name.encode(encoding) for name in names])
    assert set(tree(tmp_path / unpack(archive, str(tmp_path / "out")))) == set(names)
    assert ("are not marked as UTF-8, and are read as" in capsys.readouterr().out) == (encoding != "utf-8")


def test_the_unicode_form_of_a_name_in_a_zip_is_taken(tmp_path):
    name = "桜/1.jpg".encode()
    extra = struct.pack("<HHBI", 0x7075, 5 + len(name), 1, 0) + name
    archive = write_zip(tmp_path / "images.zip", [b"\x8d\xf7/1.jpg"], extra=extra)
    assert set(tree(tmp_path / unpack(archive, str(tmp_path / "out")))) == {"桜/1.jpg"}


@pytest.mark.parametrize(
    "names, system, wanted",
    [
        ([b"a\\b\\1.jpg", b"a\\2.jpg"], 3, {"a/b/1.jpg", "a/2.jpg"}),
        ([b"a\\b\\1.jpg", b"a/2.jpg"], 0, {"a/b/1.jpg", "a/2.jpg"}),
        ([b"a/b\\1.jpg"], 3, {"a/b\\1.jpg"}),
    ],
)
def test_backslashes_of_windows_divide_folders(tmp_path, names, system, wanted):
    archive = write_zip(tmp_path / "images.zip", names, system)
    assert set(tree(tmp_path / unpack(archive, str(tmp_path / "out")))) == wanted


def test_a_zip_of_another_compression_is_no_damaged_one(tmp_path):
    path = tmp_path / "images.zip"
    write(path, FILES)
    data = bytearray(path.read_bytes())
    data[data.rindex(b"b.jpg") - 46 + 10] = 9  # In the list at the end.
    path.write_bytes(data)
    message = r"images\.zip: b\.jpg is compressed by deflate64, .*Unpack it with unzip or 7-Zip, and give"
    assert_refused(str(path), tmp_path, message)


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
@pytest.mark.parametrize("names", [("a", "./a"), ("a", "a/b"), ("a", "a/b/c"), ("a/b", "a")])
def test_two_members_of_one_place_are_refused_by_name(tmp_path, suffix, names):
    archive = write(tmp_path / f"images{suffix}", dict.fromkeys(names, b"x"))
    assert_refused(archive, tmp_path, rf"{names[1]} occurs twice")


def test_an_encrypted_zip_is_refused_by_name(tmp_path):
    path = tmp_path / "images.zip"
    write(path, FILES)
    data = bytearray(path.read_bytes())
    data[data.rindex(b"b.jpg") - 46 + 8] |= 1  # Its flags, in the list at the end.
    path.write_bytes(data)
    assert_refused(str(path), tmp_path, r"images\.zip: b\.jpg is encrypted")


def test_more_than_the_disk_has_room_for_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    disk = collections.namedtuple("disk", "free")
    size = sum(map(len, FILES.values()))
    for suffix in (".zip", ".tar"):
        archive = write(tmp_path / f"images{suffix}", FILES)
        # Each file of the tar by itself: it does not say at its start how much will come.
        most = size if suffix == ".zip" else max(map(len, FILES.values()))
        monkeypatch.setattr(files.shutil, "disk_usage", lambda path, most=most: disk(most - 1))
        assert_refused(archive, tmp_path, rf"takes {most:,} bytes, and the disk has {most - 1:,} left")
        monkeypatch.setattr(files.shutil, "disk_usage", lambda path, most=most: disk(most))
        assert tree(tmp_path / unpack(archive, str(tmp_path / suffix))) == FILES


def test_a_tar_is_read_member_by_member(tmp_path):
    archive = write(tmp_path / "images.tar", {f"{number}.jpg": b"" for number in range(3000)})
    tracemalloc.start()
    unpack(archive, str(tmp_path / "out"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(os.listdir(tmp_path / "out")) == 3000 and peak < 500_000


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_archive_cut_off_anywhere_is_refused(tmp_path, suffix):
    path = tmp_path / f"images{suffix}"
    write(path, FILES)
    data = path.read_bytes()
    whole = len(data)
    if suffix == ".tar":
        whole = len(data.rstrip(b"\0")) // 512 * 512 + 1024  # Of the zeros at its end it needs a block.
    for size in {0, 1, 9, 511, 512, 513, 1024, 1536, whole // 2, whole - 9, whole - 1}:
        path.write_bytes(data[:size])
        assert_refused(
            str(path), tmp_path, rf"images{suffix}.* is damaged or truncated .*Download the archive"
        )


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damage_anywhere_ends_in_a_message_or_does_not_matter(tmp_path, suffix):
    path = tmp_path / f"images{suffix}"
    write(path, FILES)
    data, refused = path.read_bytes(), 0
    for place in range(0, len(data), max(1, len(data) // 150)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x5A]) + data[place + 1 :])
        out = tmp_path / f"out{place}"
        try:
            unpack(str(path), str(out))
        except InputError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            assert not out.exists()
            refused += 1
        else:
            # A tar has checksums of its headers alone, and times and the like do not matter.
            assert suffix == ".tar" or tree(out) == FILES
    assert refused > 10


def test_a_damaged_file_in_a_zip_is_named(tmp_path):
    path = tmp_path / "images.zip"
    write(path, FILES)
    data = bytearray(path.read_bytes())
    data[data.index(b"a.jpg") + 30] ^= 0xFF
    path.write_bytes(data)
    assert_refused(str(path), tmp_path, r"images\.zip: top/images/a\.jpg is damaged")


def test_a_zip_with_a_place_before_its_start_is_refused(tmp_path):
    path = tmp_path / "images.zip"
    write(path, FILES)
    data = bytearray(path.read_bytes())
    data[-6] += 1  # Where the list begins, which shifts all places; the first is then before the start.
    path.write_bytes(data)
    assert_refused(str(path), tmp_path, r"images\.zip: top/list\.txt is damaged .*Invalid argument")


def test_a_tar_names_the_last_file_before_the_damage(tmp_path):
    path = tmp_path / "images.tar"
    write(path, FILES)
    data = bytearray(path.read_bytes())
    data[data.index(b"b.jpg")] ^= 0xFF
    path.write_bytes(data)
    assert_refused(str(path), tmp_path, r"images\.tar: after top/images/a\.jpg is damaged")


def test_a_full_disk_is_not_taken_for_a_damaged_archive(tmp_path, monkeypatch):
    def full(source, copy):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tfrank.data.prepare.archives.shutil.copyfileobj", full)
    with pytest.raises(OSError, match=r"No space left on device: .*out\.unpacking"):
        unpack(write(tmp_path / "images.zip", FILES), str(tmp_path / "out"))
    assert os.listdir(tmp_path) == ["images.zip"]


@pytest.mark.parametrize("size", ["-1536", "-512"])
@pytest.mark.parametrize("name", ["._x", "x"])
def test_a_size_below_zero_ends_the_reading(tmp_path, name, size):
    """Which leads `tarfile` back to where it has been, for ever."""
    path = str(tmp_path / "loop.tar")
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as file:
        file.addfile(tarfile.TarInfo("b"))
        member = tarfile.TarInfo(name)
        member.pax_headers = {"size": size}
        file.addfile(member)
    with pytest.raises(InputError, match=r"loop\.tar"):
        unpack(path, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "page",
    [
        "<!DOCTYPE html>\n<html><body>404</body></html>",
        '\ufeff\n<?xml version="1.0"?>\n<!-- saved -->\n<HTML lang="en">' + "x" * 20_000,
    ],
    ids=["short", "long"],
)
def test_a_web_page_in_place_of_an_archive_is_called_one(tmp_path, suffix, page):
    path = tmp_path / f"images{suffix}"
    path.write_text(page)
    message = rf"images{suffix} is damaged or truncated \(it is a web page in HTML.*Download the archive"
    assert_refused(str(path), tmp_path, message)


def test_what_is_no_web_page_is_damaged_for_its_own_reason():
    assert reason_of_damage(__file__, "cut off") == "cut off"
