"""Writes weights as Detectron's own files are: a pickle of protocol 2 with Python 2 byte strings.

`pickle.dumps(..., protocol=2)` of Python 3 stores an array's bytes as UTF-8 text, which is a third larger and has
another shape than the files that Detectron wrote. Bytes here depend on the values alone, not on the version of numpy.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt


def encode_weights(blobs: Mapping[str, npt.NDArray[np.float32]], configuration: str) -> bytes:
    """Encode `{"blobs": {name: float32 array}, "cfg": text}`, blobs in the order of their names."""
    encoded = {_encode_string(name): _encode_array(blobs[name]) for name in sorted(blobs)}
    fields = {_encode_string("blobs"): _encode_dict(encoded)}
    fields[_encode_string("cfg")] = _encode_string(configuration)
    return b"\x80\x02" + _encode_dict(fields) + b"."


def _encode_dict(fields: Mapping[bytes, bytes]) -> bytes:
    return b"}(" + b"".join(key + value for key, value in fields.items()) + b"u"


def _encode_string(text: str) -> bytes:
    return _encode_bytes(text.encode("latin1"))


def _encode_bytes(content: bytes) -> bytes:
    """Encode a Python 2 `str`: opcode BINSTRING with a signed 32-bit length."""
    return b"T" + struct.pack("<i", len(content)) + content


def _encode_int(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def _encode_array(array: npt.NDArray[np.float32]) -> bytes:
    """Encode an array as numpy pickles it: `_reconstruct(ndarray, (0,), "b")`, then its state."""
    if array.dtype != np.float32:
        raise TypeError(f"a Detectron weight is float32, got {array.dtype}")
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + _encode_int(0) + b"t" + _encode_string("b")
    shape = b"(" + b"".join(_encode_int(side) for side in array.shape) + b"t"
    dtype = b"cnumpy\ndtype\n(" + _encode_string("f4") + _encode_int(0) + _encode_int(1) + b"tR"
    # The dtype's state: version, byte order, no sub-array, names or fields, sizes by default, no flags.
    layout = b"(" + _encode_int(3) + _encode_string("<") + b"NNN" + _encode_int(-1) * 2 + _encode_int(0) + b"tb"
    content = _encode_bytes(np.ascontiguousarray(array, "<f4").tobytes())
    # The array's state: version, shape, dtype, not in Fortran order (opcode NEWFALSE), bytes.
    state = b"(" + _encode_int(1) + shape + dtype + layout + b"\x89" + content + b"t"
    return empty + b"tR" + state + b"b"
