from __future__ import annotations

import numpy as np
import pytest
from golden_cases import golden_cases
from operator_forms import FORMS

from roiline.ops.box_coding import decode_boxes, write_clip, write_decode
from roiline.ops.nodes import FunctionWriter
from roiline.ops.operator import Operator

CLIP = float(np.log(1000.0 / 16.0))
KEYS = ("weights", "size_offset", "corner_offset", "delta_clip")


def _reference(boxes, deltas, **attributes):
    return (decode_boxes(boxes, deltas, **attributes),)


def _function(_inputs, attributes):
    w = FunctionWriter()
    w.rename(write_decode(w, "boxes", "deltas", **{key: attributes[key] for key in KEYS}), "decoded")
    return w.finish("Decode", ("boxes", "deltas"), ("decoded",))


DECODE = Operator(
    name="Decode",
    inputs=("boxes", "deltas"),
    outputs={"decoded": ("float32", 3)},
    attributes={"weights": (1.0, 1.0, 1.0, 1.0), "size_offset": 1.0, "corner_offset": 1.0, "delta_clip": CLIP},
    reference=_reference,
    function=_function,
)


@pytest.mark.golden
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", golden_cases("detectron_py", "bbox_transform"))
def test_matches_detectron(form, case):
    boxes, deltas = case.inputs
    arrays = boxes.astype(np.float32)[:, None], deltas.reshape(len(deltas), -1, 4)
    (decoded,) = FORMS[form](DECODE, arrays, weights=case.args["weights"])
    np.testing.assert_allclose(decoded.reshape(len(deltas), -1), case.outputs[0], rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("size", "corner", "expected"),
    [(1.0, 1.0, [10, 20, 29, 59]), (1.0, 0.0, [10, 20, 30, 60]), (0.0, 0.0, [10, 20, 29, 59])],
)
def test_no_delta_returns_the_box_under_each_convention(form, size, corner, expected):
    boxes, deltas = np.array([[[10, 20, 29, 59]]], np.float32), np.zeros((1, 1, 4), np.float32)
    (decoded,) = FORMS[form](DECODE, (boxes, deltas), size_offset=size, corner_offset=corner)
    assert decoded.tolist() == [[expected]]


@pytest.mark.parametrize("form", FORMS)
def test_growth_is_bounded_above_only(form):
    boxes = np.array([[[0, 0, 15, 15]]] * 2, np.float32)
    deltas = np.array([[[0, 0, 50, CLIP]], [[0, 0, -50, -1]]], np.float32)
    (decoded,) = FORMS[form](DECODE, (boxes, deltas), delta_clip=CLIP)
    sides = decoded[:, 0, 2:] - decoded[:, 0, :2] + 1
    np.testing.assert_allclose(sides, [[1000, 1000], [0, 16 * np.exp(-1)]], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("form", FORMS)
def test_no_rows_decode_to_no_rows(form):
    (decoded,) = FORMS[form](DECODE, (np.zeros((0, 1, 4), np.float32), np.zeros((0, 3, 4), np.float32)))
    assert decoded.shape == (0, 3, 4)


def _clip(_inputs, attributes):
    w = FunctionWriter()
    w.rename(write_clip(w, "boxes", "sizes", size_offset=attributes["size_offset"]), "clipped")
    return w.finish("Clip", ("boxes", "sizes"), ("clipped",))


@pytest.mark.golden
@pytest.mark.parametrize("case", golden_cases("detectron_py", "clip_tiled_boxes"))
def test_clipping_in_a_graph_matches_detectron(case):
    operator = Operator(
        "Clip", ("boxes", "sizes"), {"clipped": ("float32", 3)}, {"size_offset": 1.0}, _reference, _clip
    )
    boxes = case.inputs[0].reshape(len(case.inputs[0]), -1, 4)
    sizes = np.array([[case.args["im_shape"][:2]]], np.float32)
    (clipped,) = FORMS["function"](operator, (boxes, sizes))
    np.testing.assert_array_equal(clipped.reshape(case.outputs[0].shape), case.outputs[0])
