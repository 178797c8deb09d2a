"""Pictures as bytes of JPEG files."""

from __future__ import annotations

from roiline.core.errors import DataError
from roiline.core.structures import UInt8

JPEG_QUALITY = 92


def encode_jpeg(picture: UInt8, *, where: object, quality: int = JPEG_QUALITY) -> bytes:
    """Returns a BGR picture (H, W, 3) as a JPEG file; `where` is named in errors.

    Raises:
        DataError: it is too large for one.
    """
    import cv2

    try:
        fits, content = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, quality])
    except cv2.error as failure:
        raise DataError(f"{where}: {_name_size(picture)} cannot be a JPEG") from failure
    if not fits:
        raise DataError(f"{where}: {_name_size(picture)} cannot be a JPEG")
    encoded: bytes = content.tobytes()
    return encoded


def shrink(picture: UInt8, long_side: int) -> UInt8:
    """Returns a picture whose longer side is at most `long_side` pixels, itself where it is that small."""
    import cv2

    factor = long_side / max(picture.shape[:2])
    if factor >= 1:
        return picture
    width, height = (max(1, round(side * factor)) for side in picture.shape[1::-1])
    smaller: UInt8 = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
    return smaller


def _name_size(picture: UInt8) -> str:
    return f"a picture of {picture.shape[1]} x {picture.shape[0]} pixels"
