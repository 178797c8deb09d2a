"""What readers of picture headers share: what a header says, the error of one that is cut short, and reading an exact number of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Literal, TypeAlias

ExifPolicy: TypeAlias = Literal["apply", "ignore"]

# Orientations 5 to 8 exchange rows and columns (EXIF 2.3, tag 274).
_TRANSPOSING = range(5, 9)


class HeaderError(ValueError):
    """Says that the bytes of a header end early or contradict their format."""


@dataclass(frozen=True, slots=True)
class PictureHeader:
    """Is what a file says of its picture: `format`, stored `height` and `width`, EXIF or TIFF `orientation` (1: upright).

    `data_offset` is where the compressed data of a JPEG begin, 0 for other formats.
    """

    format: str
    height: int
    width: int
    orientation: int = 1
    data_offset: int = 0

    def size_hw(self, exif: ExifPolicy) -> tuple[int, int]:
        """Returns (height, width) as the decoder will give them under the policy."""
        turns = self.format == "TIFF" or exif == "apply"
        if turns and self.orientation in _TRANSPOSING:
            return self.width, self.height
        return self.height, self.width


def take(file: BinaryIO, count: int) -> bytes:
    """Reads exactly `count` bytes.

    Raises:
        HeaderError: the file ends before.
    """
    data = file.read(count)
    if len(data) != count:
        raise HeaderError("its header is cut short")
    return data
