from __future__ import annotations

import pickle

import numpy as np
import onnx
import pytest
from onnx import helper

from roiline.core.errors import ModelError
from roiline.engines.model_file import cut_model, find_dependents, read_spec
from roiline.engines.protocol import Stage
from roiline.engines.registry import open_engine


def test_a_spec_is_read_back(digits_model):
    spec = read_spec(digits_model)
    assert spec.tasks == ("proposals", "detections")
    assert spec.class_names[:3] == ("zero", "one", "two")
    assert spec.images.pad_multiple == 32
    assert set(spec.seams) >= {"images", "features", "proposals", "raw", "detections"}


def _damage(kind: str, content: bytes) -> bytes:
    return {
        "empty": b"",
        "cut off": content[: len(content) // 2],
        "html": b"<!DOCTYPE html><html><body>404</body></html>",
        "pickle": b"\x80\x02}q\x00.",
        "zip": b"PK\x03\x04" + bytes(100),
        "zeros": bytes(1000),
        "noise": np.random.default_rng(0).bytes(5000),
        "text": b"hello, this is no model\n" * 10,
    }[kind]


@pytest.mark.parametrize("kind", ["empty", "cut off", "html", "pickle", "zip", "zeros", "noise", "text"])
def test_other_files_are_refused(kind, digits_model, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(_damage(kind, digits_model.read_bytes()))
    with pytest.raises(ModelError, match=str(path)):
        read_spec(path)


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(ModelError, match=r"model\.onnx: no such file"):
        read_spec(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="expected a file, this is a folder"):
        read_spec(tmp_path)


def test_a_model_that_was_cut_off_is_called_that(digits_model, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(digits_model.read_bytes()[:200_000])
    with pytest.raises(
        ModelError, match=r"not a whole ONNX file: a part at byte \d+ is longer than the rest of the file"
    ):
        read_spec(path)


def test_an_onnx_file_of_somebody_else(tmp_path):
    node = helper.make_node("Identity", ["x"], ["y"])
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    path = tmp_path / "other.onnx"
    onnx.save(helper.make_model(helper.make_graph([node], "g", info[:1], info[1:])), str(path))
    with pytest.raises(ModelError, match="carries no roiline specification"):
        read_spec(path)


@pytest.mark.parametrize(
    "change", ["{", '{"format_version": 99}', '{"format_version": 1}', "[]", "null", '"x"', "[" * 100000]
)
def test_a_damaged_spec(change, digits_model, tmp_path):
    model = onnx.load(str(digits_model))
    model.metadata_props[0].value = change
    path = tmp_path / "model.onnx"
    onnx.save(model, str(path))
    with pytest.raises(ModelError, match="specification"):
        read_spec(path)


def test_stages_compute_what_the_whole_computes(digits_model):
    spec = read_spec(digits_model)
    rng = np.random.default_rng(1)
    feeds = {
        "data": rng.normal(0, 60, (2, 3, 96, 128)).astype(np.float32),
        "im_info": np.array([[96, 128, 1.5], [96, 128, 1.25]], np.float32),
        "im_size": np.array([[64, 85], [76, 102]], np.float32),
    }
    with open_engine(digits_model) as whole:
        expected = whole.run(feeds)
    seams = spec.seams
    first = open_engine(digits_model, stage=Stage(outputs=(*seams["features"], *seams["raw"])))
    between = first.run({info.name: feeds[info.name] for info in first.inputs})
    second = open_engine(digits_model, stage=Stage(inputs=tuple(seams["raw"]), outputs=tuple(seams["detections"])))
    assert {info.name for info in second.inputs} == {*seams["raw"], "im_info", "im_size"}
    given = {info.name: between.get(info.name, feeds.get(info.name)) for info in second.inputs}
    found = second.run(given)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_stage_of_proposals_needs_no_original_size(digits_model):
    spec = read_spec(digits_model)
    with open_engine(digits_model, stage=Stage(outputs=tuple(spec.seams["proposals"]))) as engine:
        assert [info.name for info in engine.inputs] == ["data", "im_info"]


def test_unknown_tensors_are_named(digits_model):
    with pytest.raises(ModelError, match="no tensor named nowhere, never"):
        open_engine(digits_model, stage=Stage(outputs=("nowhere", "never")))


def test_a_cut_keeps_only_what_it_needs(digits_model):
    model = onnx.load(str(digits_model))
    cut = cut_model(model, Stage(outputs=("conv1",)), where="model")
    assert [node.op_type for node in cut.graph.node] == ["Conv", "Relu"]
    assert [info.name for info in cut.graph.input] == ["data"]
    assert len(cut.graph.initializer) == 2


def test_what_is_computed_from_a_tensor_is_found(digits_model):
    seams = read_spec(digits_model).seams
    rois, _, scores, _ = seams["raw"]
    asked = ("boxes", scores, "unheard of", rois, *seams["features"], *seams["proposals"])
    assert find_dependents(digits_model, asked, [rois]) == ("boxes", scores, rois)
    assert find_dependents(digits_model, asked, ["data"]) == tuple(name for name in asked if name != "unheard of")
    assert find_dependents(digits_model, asked, []) == ()


def test_what_depends_on_what_is_only_known_of_whole_files(tmp_path):
    path = tmp_path / "cut.onnx"
    path.write_bytes(b"\x08\x0a\x3a\x7f")
    with pytest.raises(ModelError, match="not a whole ONNX file"):
        find_dependents(path, ["boxes"], ["data"])


@pytest.mark.parametrize(
    "content",
    [
        b"\x72\x0b\x0a" + b"\xff" * 9 + b"\x01",  # metadata of which a text claims 2^64 - 1 bytes
        b"\x72\x02\x08\x00",  # a number where a text belongs
    ],
)
def test_damaged_metadata_is_refused(tmp_path, content):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="metadata is damaged"):
        read_spec(path)


def test_a_weights_file_is_named_as_one(tmp_path):
    path = tmp_path / "model_final.pkl"
    path.write_bytes(pickle.dumps({"blobs": {}}, 2))
    with pytest.raises(ModelError, match="pickle, as weights files are; make a model of it with `roiline export`"):
        read_spec(path)
