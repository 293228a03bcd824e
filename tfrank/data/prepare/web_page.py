"""Web pages that were saved in the place of a file that was to be downloaded."""

import re

_START = re.compile(rb"(\xef\xbb\xbf)?\s*(<(\?xml|!--)[^>]*>\s*)*<(!doctype\s+html|html|head|body)\b", re.I)


def reason_of_damage(path: str, error: object) -> object:
    """Why a downloaded file cannot be read: that it is a web page, where it is one, else `error`.

    A server that does not give a file, or asks something first, answers with a page in HTML, which is then
    saved under the file's name.
    """
    with open(path, "rb") as file:
        if _START.match(file.read(2**10)):
            return "it is a web page in HTML, such as a server's message, saved under this name"
    return error
