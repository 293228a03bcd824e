"""The names of a zip archive's members, which tools write in many encodings, and some with backslashes."""

import struct
import zipfile
from collections.abc import Sequence

import charset_normalizer

_UTF_8 = 0x800
_UNICODE_PATH = 0x7075
# What zip tools write that do not mark names as UTF-8: what systems of these languages use for file names.
ENCODINGS = ("cp437", "cp850", "cp852", "cp866", "cp932", "gb18030", "big5", "cp949", "cp1252", "cp1251")
# So many bytes of names are enough to know the encoding.
ENOUGH = 20_000


def member_names(members: Sequence[zipfile.ZipInfo]) -> tuple[list[str], str]:
    """Returns the names of members, with slashes, and the encoding that was guessed for some; "" if for none.

    A name that is marked as UTF-8, has its Unicode form beside it or is UTF-8 is known. The encoding of the
    others follows from all of them. Backslashes divide folders where Windows wrote the archive, or where no
    name has a slash.
    """
    names = [_known(member) for member in members]
    unknown = {name for name in names if isinstance(name, bytes)}
    encoding = _encoding(b"\n".join(sorted(unknown))) if unknown else ""
    texts = [
        name if isinstance(name, str) else name.decode(encoding, errors="surrogateescape") for name in names
    ]
    flat = not any("/" in name for name in texts)
    slashed = [
        name.replace("\\", "/") if flat or member.create_system == 0 else name
        for name, member in zip(texts, members)
    ]
    return slashed, encoding


def _known(member: zipfile.ZipInfo) -> str | bytes:
    """Returns a name, or its bytes if their encoding is not known."""
    if member.flag_bits & _UTF_8 or member.filename.isascii():
        return member.filename
    # Python decodes what is not marked by this encoding, which has a character for each byte.
    raw = member.filename.encode("cp437")
    try:
        return (_unicode_path(member.extra) or raw).decode()
    except UnicodeDecodeError:
        return raw


def _unicode_path(extra: bytes) -> bytes:
    """Returns the name in UTF-8 from a member's extra fields, as Info-ZIP writes it; b"" if there is none."""
    while len(extra) >= 4:
        kind, size = struct.unpack("<HH", extra[:4])
        if kind == _UNICODE_PATH:
            return extra[9 : 4 + size]  # Behind a version and a checksum.
        extra = extra[4 + size :]
    return b""


def _encoding(names: bytes) -> str:
    """Returns the most likely encoding of names."""
    found = charset_normalizer.from_bytes(names[:ENOUGH], cp_isolation=list(ENCODINGS)).best()
    return found.encoding if found else "cp437"
