"""Taps: blobs of a network that become outputs too, chosen by Caffe2's names."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from roiline.core.errors import UsageError


def choose_taps(wanted: Sequence[str], blobs: Sequence[str], *, inputs: Sequence[str]) -> tuple[str, ...]:
    """Returns the wanted blobs, each once, in the order wanted.

    Raises:
        UsageError: names that are no blobs of the network; all of them are listed, with near ones.
    """
    known = set(blobs)
    unknown = [name for name in dict.fromkeys(wanted) if name not in known]
    if unknown:
        listing = "\n  ".join(_explain(name, blobs, inputs) for name in unknown)
        raise UsageError(f"--tap: the network has no such blobs:\n  {listing}")
    return tuple(dict.fromkeys(wanted))


def _explain(name: str, blobs: Sequence[str], inputs: Sequence[str]) -> str:
    if name in inputs:
        return f"{name}: is an input"
    near = difflib.get_close_matches(name, blobs, n=3)
    return f"{name}: {'near: ' + ', '.join(near) if near else 'nothing near'} (affine channels and in-place blobs are merged)"
