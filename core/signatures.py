"""Names a file by its first bytes: people hand over web pages, half downloads and checkpoints of other programs."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

HEAD_BYTES = 512
"""How much of a file's beginning `recognise_content` wants to see."""

_TORCH_LEGACY_MAGIC = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
_TORCH_ADVICE = "use `roiline export detectron2` or `roiline export torchvision`"
_COMPRESSED_ADVICE = "unpack it first and give the file that is inside"


@dataclass(frozen=True, slots=True)
class Content:
    """Says what a file is and what to do with it."""

    name: str
    advice: str

    def __str__(self) -> str:
        return f"{self.name}; {self.advice}"


_FIXED: tuple[tuple[bytes, Content], ...] = (
    (b"\x1f\x8b", Content("gzip-compressed data", _COMPRESSED_ADVICE)),
    (b"\xfd7zXZ\x00", Content("xz-compressed data", _COMPRESSED_ADVICE)),
    (b"BZh", Content("bzip2-compressed data", _COMPRESSED_ADVICE)),
    (b"\x28\xb5\x2f\xfd", Content("zstd-compressed data", _COMPRESSED_ADVICE)),
    (b"7z\xbc\xaf\x27\x1c", Content("a 7z archive", _COMPRESSED_ADVICE)),
    (b"Rar!", Content("a rar archive", _COMPRESSED_ADVICE)),
    (b"\x89HDF\r\n\x1a\n", Content("an HDF5 file", "models of Keras or MATLAB are not read here")),
    (b"\x93NUMPY", Content("a NumPy .npy array", "one array has no blob names; give the original file")),
    (b"\x89PNG\r\n\x1a\n", Content("a PNG picture", "give the file that was meant")),
    (b"\xff\xd8\xff", Content("a JPEG picture", "give the file that was meant")),
    (b"%PDF-", Content("a PDF document", "give the file that was meant")),
    (b"\x7fELF", Content("a program or library (ELF)", "give the file that was meant")),
)


def recognise_content(head: bytes) -> Content | None:
    """Names the kind of a file that is not a pickle, from its first `HEAD_BYTES` bytes, or answers None."""
    if not head:
        return Content("an empty file (0 bytes)", "fetch it again and compare its size with the source's")
    if not head.strip(b"\x00"):
        return Content("nothing but zero bytes at its start", "the copy is damaged; fetch it again")
    for prefix, content in _FIXED:
        if head.startswith(prefix):
            return content
    return _recognise_archive(head) or _recognise_text(head) or _recognise_model(head)


def recognise_plain_text(head: bytes) -> Content | None:
    """Names plain text; asked last, because a pickle of protocol 0 is text too."""
    if not re.fullmatch(rb"[\t\r\n\x20-\x7e\x80-\xff]{8,}", head):
        return None
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the head may end inside a character
    except UnicodeDecodeError:
        return None
    start = head.lstrip()[:1]
    name = "JSON text" if start in (b"{", b"[") else "plain text"
    quoted = head[:40].decode("utf-8", "replace").splitlines()[:1]
    return Content(f"{name} that begins with {(quoted or [''])[0]!r}", "give the file that was meant")


def _recognise_archive(head: bytes) -> Content | None:
    if head.startswith(b"PK\x03\x04"):
        member = head[30 : 30 + int.from_bytes(head[26:28], "little")]
        if member.endswith((b"/data.pkl", b"/version", b"/byteorder", b"/.format_version")) or b"/data.pkl" in head:
            return Content("a PyTorch checkpoint (zip form)", _TORCH_ADVICE)
        if member.endswith(b".npy"):
            return Content("a NumPy .npz archive", "give the original weights file")
        return Content("a zip archive", _COMPRESSED_ADVICE)
    if _TORCH_LEGACY_MAGIC in head[:16]:
        return Content("a PyTorch checkpoint (form before version 1.6)", _TORCH_ADVICE)
    if head.startswith(b"PAR1"):
        return Content(
            "a Parquet table", "no command reads one; give the .pkl or .json file that --format can write too"
        )
    if head[257:262] == b"ustar":
        return Content("a tar archive", _COMPRESSED_ADVICE)
    return None


def _recognise_text(head: bytes) -> Content | None:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith(b"version https://git-lfs"):
        return Content("a Git LFS pointer, not the file it points to", "fetch the file itself with `git lfs pull`")
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return Content(
            "an HTML page", "a download probably answered with an error or log-in page; fetch the file again"
        )
    if text.startswith(b"<?xml"):
        return Content("an XML document", "a download probably answered with an error; fetch the file again")
    return None


def _recognise_model(head: bytes) -> Content | None:
    if re.match(rb"\x08[\x01-\x20][\x12\x3a\x42]", head):
        return Content(
            "an ONNX model (or another protobuf)", "an ONNX file is not weights: give it where MODEL is asked"
        )
    if re.match(rb"\x0a[\x01-\x7f][\x20-\x7e]+[\x12\x1a]", head):
        return Content("a protobuf, probably a Caffe2 NetDef", "use `roiline export caffe2 --net ... --init ...`")
    if head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < 1 << 32:
        return Content("a safetensors file", "give the original weights file")
    return None
