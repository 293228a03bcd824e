"""Recognises web pages that were saved instead of the file that should have been downloaded."""

import re

_START = re.compile(rb"(\xef\xbb\xbf)?\s*(<(\?xml|!--)[^>]*>\s*)*<(!doctype\s+html|html|head|body)\b", re.I)


def reason_of_damage(path: str, error: object) -> object:
    """Returns why a downloaded file cannot be read: that it is a web page, if it is one, else `error`.

    If a server refuses a file or asks something first, it answers with an HTML page, which is then saved
    under the file's name.
    """
    with open(path, "rb") as file:
        if _START.match(file.read(2**10)):
            return "it is a web page in HTML, such as a server's message, saved under this name"
    return error
