"""The error of image files that cannot be used."""

from tfrank.common.checks import InputError


class BadImage(InputError):
    """An image file that cannot be used. The message is a short reason; the caller adds the file's name."""


class TooLarge(BadImage):
    """An image of more pixels than are read."""
