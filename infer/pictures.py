"""Picture files to pixels: what `cv2.imread(path, IMREAD_COLOR)` gives, with every failure a named reason.

Reading (disk) and decoding (processor) are separate functions, because they are separate stages of a run. Everything that can be
known before decoding is checked before decoding: emptiness, kind, size, a missing end. Formats beyond 8-bit colour follow OpenCV:
16 bits are scaled to 8 by dropping the lower byte (in colour TIFF files by rounding value / 257), alpha is dropped, gray and palettes
become BGR, CMYK becomes BGR, an animation gives its first frame.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from roiline.core.errors import DataError
from roiline.core.signatures import HEAD_BYTES, recognise_content, recognise_plain_text
from roiline.core.structures import UInt8
from roiline.infer.picture_headers import ExifPolicy, HeaderError, PictureHeader, read_header
from roiline.infer.truncated_pictures import complete_picture, png_chunks

TruncatedPolicy: TypeAlias = Literal["skip", "accept", "stop"]
"""What becomes of a picture whose file is cut short: it fails, what is there of it is used and marked, or the run ends."""

MAX_PIXELS = 1 << 28
"""The default limit of a picture's size, 268 million pixels (0.8 GB as BGR): larger ones are refused before they are decoded."""

MOST_PIXELS = 1 << 30
"""The largest limit that can be asked for: the decoder itself takes no more."""

MAX_BYTES = (1 << 31) - 1
"""The limit of a picture file's size: the decoder takes no more."""

FRAME_SUFFIX = ".frame"
"""How the path of a video's frame ends: `VIDEO/NUMBER.frame`."""

JPEG_START = b"\xff\xd8"
"""How every JPEG file begins."""

_JPEG_END = b"\xff\xd9"
_PIECE = 1 << 20
_READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # what becomes a pipe meanwhile is not waited for

PICTURE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".dib", ".gif", ".webp", ".tif", ".tiff", ".avif", ".jp2"}
    | {".pbm", ".pgm", ".ppm", ".pnm"}
)

_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"8BPS", "a Photoshop document"),
    (b"\x1aE\xdf\xa3", "a Matroska or WebM video"),
    (b"\x80\x02", "a pickle"),
)
_IMAGE_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1")


class CutShortError(DataError):
    """Says that the end of a picture file is missing."""


@functools.cache
def open_cv2() -> Any:
    """Returns the module `cv2`, set up on first use: one thread (pools decode in their own threads), no messages on stderr."""
    import cv2

    cv2.setNumThreads(1)
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    return cv2


def set_decoder_threads(count: int) -> None:
    """Sets how many threads OpenCV may use inside one call; it is 1 unless this is called."""
    open_cv2().setNumThreads(max(1, count))


def read_bytes(path: str | Path) -> bytes:
    """Reads a picture file whole, whatever characters its name has; a frame of a video comes as an uncompressed picture file.

    Raises:
        DataError: the file is missing, not readable, not a regular file, empty or too large.
    """
    name = os.fspath(path)
    if name.endswith(FRAME_SUFFIX) and os.path.isfile(os.path.dirname(name)):
        from roiline.infer.video import encode_frame

        return encode_frame(Path(path))
    try:
        size = _check_file(name)
        descriptor = os.open(name, _READING)
        try:
            data = _read_whole(descriptor, size)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:  # a ValueError is a name that no file system can hold
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if not data:
        raise DataError(f"{path}: the file is empty (zero bytes)")
    return data


def prefetch(path: str | Path) -> None:
    """Asks the system to fetch a file, and waits for nothing; what is wrong with it is seen when it is read."""
    with contextlib.suppress(OSError, ValueError, DataError):
        _check_file(path)
        descriptor = os.open(path, _READING)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)


def decode_picture(
    data: bytes,
    *,
    where: object,
    exif: ExifPolicy = "apply",
    max_pixels: int = MAX_PIXELS,
    size_hw: tuple[int, int] | None = None,
    tolerant: bool = False,
) -> UInt8:
    """Decodes the bytes of a picture file to (H, W, 3) uint8 BGR.

    `exif` says whether JPEG and PNG pictures are turned upright by their EXIF orientation (`cv2.imread` does). `size_hw` is the
    (height, width) that the dataset states: a picture that is turned by EXIF is then given the way round that the dataset means, so
    that boxes are in the dataset's own pixels, and a picture of another size is refused. `where` is named in errors. With `tolerant` a
    JPEG or PNG file that is cut short gives what is there of it; the rest is gray (JPEG) or black (PNG).

    Raises:
        CutShortError: the end of the file is missing.
        DataError: not a picture (the message says what it is), larger than `max_pixels`, or of another size.
    """
    header = _check_bytes(data, where, max_pixels)
    if _is_cut_short(data, header):
        whole = complete_picture(data, header) if tolerant else None
        if whole is None:
            raise CutShortError(
                f"{where}: the {header.format} file is cut short ({len(data)} bytes, its end is missing); fetch or copy it again"
            )
        data = whole
    if size_hw is not None:
        exif = _policy_of_dataset(header, exif, size_hw)
    cv2 = open_cv2()
    flags = cv2.IMREAD_COLOR | (cv2.IMREAD_IGNORE_ORIENTATION if exif == "ignore" else 0)
    try:
        picture = cv2.imdecode(np.frombuffer(_without_colour_profile(data), np.uint8), flags)
    except cv2.error as error:
        raise DataError(f"{where}: the decoder refused it ({error.err or error})") from error
    if picture is None:
        raise DataError(
            f"{where}: cannot be decoded; the file is a damaged {header.format} picture, or of a kind not supported"
        )
    found = (int(picture.shape[0]), int(picture.shape[1]))
    if size_hw is not None and found != size_hw:
        raise DataError(
            f"{where}: the picture is {found[1]} x {found[0]} (width x height), the dataset says {size_hw[1]} x {size_hw[0]}; "
            "correct the size in the dataset, or remove it there (the file's own is used then)"
        )
    decoded: UInt8 = picture
    return decoded


def read_picture(path: Path, *, exif: ExifPolicy = "apply", max_pixels: int = MAX_PIXELS) -> UInt8:
    """Reads and decodes a picture file to (H, W, 3) uint8 BGR; see `read_bytes` and `decode_picture`."""
    return decode_picture(read_bytes(path), where=path, exif=exif, max_pixels=max_pixels)


def read_size(path: Path, *, exif: ExifPolicy = "apply") -> tuple[int, int]:
    """Returns the (height, width) that decoding a picture file will give, from its header.

    Raises:
        DataError: the file cannot be read, or is not a picture.
    """
    try:
        _check_file(path)
        with path.open("rb") as file:
            header = read_header(file)
    except HeaderError as error:
        raise DataError(f"{path}: {error}") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if header is None:
        raise DataError(f"{path}: cannot be decoded; the file is {describe_bytes(_read_head(path))}")
    if header.height <= 0 or header.width <= 0:
        raise DataError(
            f"{path}: the {header.format} file is damaged: its header says {header.width} x {header.height}"
        )
    return header.size_hw(exif)


def _read_head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def is_picture_file(path: Path) -> bool:
    """Says whether a file is meant as a picture: by its suffix, or by its first bytes where the suffix says nothing."""
    if path.suffix.lower() in PICTURE_SUFFIXES:
        return True
    try:
        with path.open("rb") as file:
            head = file.read(32)
    except OSError:
        return False
    known = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*")
    return head.startswith(known) or head[8:12] == b"WEBP" or _is_image_container(head)


def describe_bytes(data: bytes) -> str:
    """Says in words what a file is that is not a picture."""
    head = data[:HEAD_BYTES]
    for signature, name in _SIGNATURES:
        if head.startswith(signature):
            return name
    if head[4:8] == b"ftyp":
        return (
            "a HEIF or AVIF picture that this OpenCV cannot read"
            if _is_image_container(head)
            else "a video (MP4 or MOV)"
        )
    if head[:4] == b"RIFF":
        return "a video or sound (RIFF)"
    if b"<svg" in head.lower():
        return "an SVG drawing"
    content = recognise_content(head) or recognise_plain_text(head)
    return content.name if content is not None else f"of no known kind (first bytes {head[:8].hex(' ')})"


def _read_whole(descriptor: int, size: int) -> bytes:
    """Reads a file of about `size` bytes; by asking for one more its end is seen at once. Each call more would stop other threads."""
    data = os.read(descriptor, size + 1)
    if len(data) == size:
        return data
    parts = [data]
    while part := os.read(descriptor, _PIECE):
        parts.append(part)
    return b"".join(parts)


def _check_file(path: str | Path) -> int:
    """Returns the size of a file that may be opened as a picture; a pipe or a device is never opened, for that alone does something."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
        raise DataError(f"{path}: expected a picture file, it is {kind}")
    if status.st_size > MAX_BYTES:
        raise DataError(f"{path}: the file has {status.st_size} bytes, pictures may have {MAX_BYTES}")
    return status.st_size


def _check_bytes(data: bytes, where: object, max_pixels: int) -> PictureHeader:
    if not data:
        raise DataError(f"{where}: the file is empty (zero bytes)")
    try:
        header = read_header(BytesIO(data))
    except HeaderError as error:
        raise DataError(f"{where}: {error}; the file is damaged or cut short ({len(data)} bytes)") from error
    if header is None:
        raise DataError(f"{where}: cannot be decoded; the file is {describe_bytes(data)}")
    if header.height * header.width > max_pixels:
        raise DataError(
            f"{where}: the picture is {header.width} x {header.height}, {header.height * header.width} pixels; "
            f"the limit is {max_pixels} (make it smaller, or raise the limit with --max-pixels)"
        )
    return header


def _is_cut_short(data: bytes, header: PictureHeader) -> bool:
    """Says whether the end of the file is missing; decoders fill the rest of such a picture with gray without a word."""
    if header.format == "JPEG":
        whole = data.endswith(_JPEG_END, header.data_offset)  # the usual case, seen without a search
        return not whole and data.find(_JPEG_END, header.data_offset) < 0
    if header.format == "PNG":
        return not any(kind == b"IEND" for kind, _, _ in png_chunks(data))
    if header.format == "WebP":
        return int.from_bytes(data[4:8], "little") + 8 > len(data) + 1  # some writers leave out the last padding byte
    return False


def _without_colour_profile(data: bytes) -> bytes:
    """Returns a PNG file without its ICC profile: OpenCV never applies it, but its PNG library complains of odd ones on stderr."""
    if not data.startswith(b"\x89PNG"):
        return data
    for kind, start, end in png_chunks(data):
        if kind == b"iCCP":
            return data[:start] + data[end:]
        if kind == b"IDAT":
            break
    return data


def _policy_of_dataset(header: PictureHeader, exif: ExifPolicy, size_hw: tuple[int, int]) -> ExifPolicy:
    other: ExifPolicy = "ignore" if exif == "apply" else "apply"
    means_other = header.size_hw(exif) != size_hw and header.size_hw(other) == size_hw
    return other if means_other else exif


def _is_image_container(head: bytes) -> bool:
    return head[4:8] == b"ftyp" and head[8:12] in _IMAGE_BRANDS
