"""Foreign files are named by their content, whatever their name says."""

from __future__ import annotations

import gzip
import io
import lzma
import zipfile

import numpy as np
import pytest

from roiline.core.errors import WeightError
from roiline.core.pickles import loads_pickle
from roiline.core.signatures import HEAD_BYTES, recognise_content


def make_zip(*members: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for member in members:
            archive.writestr(member, "x")
    return out.getvalue()


def save_array() -> bytes:
    out = io.BytesIO()
    np.save(out, np.zeros(3))
    return out.getvalue()


def save_arrays() -> bytes:
    out = io.BytesIO()
    np.savez(out, conv1_w=np.zeros(3))
    return out.getvalue()


FOREIGN = {
    "empty": (b"", "empty file"),
    "zeros": (bytes(600), "zero bytes"),
    "html": (b"\n<!DOCTYPE html><html><body>Sign in</body></html>", "HTML page"),
    "bare html": (b"<html>404</html>", "HTML page"),
    "xml": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "XML document"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git lfs pull"),
    "torch zip": (make_zip("archive/data.pkl", "archive/version"), "PyTorch checkpoint"),
    "zip": (make_zip("readme.txt"), "zip archive"),
    "npz": (save_arrays(), "npz archive"),
    "npy": (save_array(), "npy array"),
    "gzip": (gzip.compress(b"x"), "gzip"),
    "xz": (lzma.compress(b"x"), "xz"),
    "parquet": (b"PAR1\x15\x04\x15\x20", "Parquet table"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(20), "HDF5"),
    "json": (b'{"images": []}', "JSON text"),
    "text": (b"model weights go here, please ask Bob\n", "plain text"),
    "yaml": (b"MODEL:\n  TYPE: generalized_rcnn\n", "plain text"),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(20), "PNG"),
    "netdef": (b"\x0a\x05model\x12\x10\x0a\x04data", "Caffe2 NetDef"),
    "safetensors": (b"\x40" + bytes(7) + b'{"a":{"dtype":"F32"}}', "safetensors"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files_are_named_with_advice(name):
    content, expected = FOREIGN[name]
    with pytest.raises(WeightError, match=expected):
        loads_pickle(content, kind="weights file", source="model.pkl", error=WeightError)


def test_an_onnx_model_is_named():
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [value], [value])
    content = recognise_content(helper.make_model(graph, producer_name="p").SerializeToString()[:HEAD_BYTES])
    assert content is not None
    assert "ONNX model" in content.name
