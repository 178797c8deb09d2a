"""Every gate is passed by an engine that does what it should, and failed by one that does not."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from roiline.engines.gates import (
    BOUNDS,
    GateError,
    check_batch_one,
    check_equal_rows,
    check_parity,
    check_scores,
    match_rows,
    read_rows,
    run_gate,
    take_rows,
)
from roiline.engines.tensorrt.audit import asked_precision, built_precision, check_precision, group_layers
from roiline.engines.tensorrt.passport import LayerGroup

SEAMS = {
    "detections": ("boxes", "scores", "classes", "count"),
    "masks": ("masks",),
    "proposals": ("rois", "logits", "found"),
}
SPEC = SimpleNamespace(seams=SEAMS)
LIMIT = 6
TIGHT = BOUNDS["fp32"]


class GoodEngine:
    """Answers each picture from its own pixels."""

    shift = 0.0
    noise = 0.0

    def run(self, feeds):
        data = feeds["data"]
        boxes = np.zeros((len(data), LIMIT, 4), np.float32)
        scores = np.full((len(data), LIMIT), -np.inf, np.float32)
        classes = np.zeros((len(data), LIMIT), np.int64)
        count = np.zeros(len(data), np.int64)
        masks = []
        for row, pixels in enumerate(data):
            random = np.random.default_rng(np.frombuffer(np.ascontiguousarray(pixels).tobytes(), np.uint32)[:8])
            count[row] = found = int(random.integers(2, LIMIT + 1))
            boxes[row, :found] = random.uniform(0, 50, (found, 4)) + self.shift
            scores[row, :found] = np.sort(random.uniform(0.1, 0.9, found))[::-1]
            classes[row, :found] = random.integers(1, 4, found)
            masks.append(random.uniform(0, 1, (found, 2, 2)).astype(np.float32))
            self.disturb(row, len(data), boxes[row], scores[row])
        return {
            "boxes": boxes,
            "scores": scores,
            "classes": classes,
            "count": count,
            "masks": np.concatenate(masks) + np.float32(self.noise),
        }

    def disturb(self, row, images, boxes, scores):
        """Does what a wrong engine does."""


def feeds(images: int = 3):
    return {"data": np.random.default_rng(5).normal(0, 1, (images, 3, 4, 4)).astype(np.float32)}


class RowDependent(GoodEngine):
    def disturb(self, row, images, boxes, scores):
        boxes[0, 0] += 0.25 * (row == 1)


class NeighbourDependent(GoodEngine):
    def run(self, given):
        found = super().run(given)
        found["scores"] += np.float32(0.001 * given["data"].std(axis=0).mean())
        return found


class BatchDependent(GoodEngine):
    def disturb(self, row, images, boxes, scores):
        boxes += 2.0 * (images == 1)


class LargeScores(GoodEngine):
    def disturb(self, row, images, boxes, scores):
        scores[0] = 1.5


class NoNumbers(GoodEngine):
    def disturb(self, row, images, boxes, scores):
        boxes[0, 2] = np.nan


class Shifted(GoodEngine):
    shift = 1.0


class OtherMasks(GoodEngine):
    noise = 0.2


def test_a_good_engine_passes_all():
    engine = GoodEngine()
    assert check_equal_rows(engine, feeds(), SPEC) == "3 rows, 3 orders"
    assert "0.00 % without a partner" in check_batch_one(engine, feeds(), SPEC, TIGHT)
    assert check_scores(engine.run(feeds()), SPEC).endswith("rows")
    assert "boxes within 0 px" in check_parity(engine, GoodEngine(), [feeds(1), feeds(2)], SPEC, TIGHT)


def test_rows_of_a_batch_must_not_matter():
    with pytest.raises(GateError, match=r"rows 0 and 1 of a batch of one picture: boxes differ by up to 0\.25"):
        check_equal_rows(RowDependent(), feeds(), SPEC)


def test_neighbours_must_not_matter():
    with pytest.raises(GateError, match="in row 2 among others: scores differ"):
        check_equal_rows(NeighbourDependent(), feeds(), SPEC)


def test_the_batch_size_must_not_matter():
    with pytest.raises(GateError, match=r"100\.0 % of the rows have no partner within 0\.5 pixels"):
        check_batch_one(BatchDependent(), feeds(), SPEC, TIGHT)


@pytest.mark.parametrize(("engine", "text"), [(LargeScores(), r"gives \[1\.5\]"), (NoNumbers(), "nan")])
def test_scores_and_boxes_are_real(engine, text):
    with pytest.raises(GateError, match=text):
        check_scores(engine.run(feeds()), SPEC)


def test_proposals_may_have_any_score():
    outputs = {"rois": np.ones((1, 2, 4), np.float32), "logits": np.array([[7.0, -3.0]]), "found": np.array([2])}
    assert check_scores(outputs, SPEC) == "2 rows"


def test_parity_is_held_within_the_bounds_of_the_precision():
    with pytest.raises(GateError, match="no partner"):
        check_parity(Shifted(), GoodEngine(), [feeds()], SPEC, TIGHT)
    assert "boxes within 1 px" in check_parity(Shifted(), GoodEngine(), [feeds()], SPEC, BOUNDS["fp16"])


def test_masks_are_compared_too():
    with pytest.raises(GateError, match=r"a mask differs by 0\.200 a pixel"):
        check_parity(OtherMasks(), GoodEngine(), [feeds()], SPEC, TIGHT)


def test_each_row_has_one_partner():
    rows = read_rows(GoodEngine().run(feeds(1)), SPEC)[0]
    twice = SimpleNamespace(
        boxes=np.concatenate([rows.boxes[:1]] * 2), scores=rows.scores[[0, 0]], classes=rows.classes[[0, 0]]
    )
    assert match_rows(rows, twice, TIGHT) == [(0, 0)]
    other_class = SimpleNamespace(boxes=rows.boxes, scores=rows.scores, classes=rows.classes + 1)
    assert match_rows(rows, other_class, TIGHT) == []


def test_answers_without_boxes_cannot_be_compared():
    with pytest.raises(GateError, match="nothing to compare"):
        read_rows({"features": np.zeros(3)}, SPEC)


def test_classes_of_whole_pictures_are_compared_as_scores():
    spec = SimpleNamespace(seams={"classification": ("prob",)})
    (rows,) = read_rows({"prob": np.array([[0.25, 0.75]], np.float32)}, spec)
    assert rows.scores.tolist() == [0.25, 0.75]
    assert rows.classes.tolist() == [0, 1]


def test_a_gate_is_skipped_by_name_and_says_so():
    def fail() -> str:
        raise GateError("no")

    assert run_gate("scores", ["scores"], fail) == "skipped"
    assert run_gate("scores", [], lambda: "fine") == "passed: fine"
    with pytest.raises(GateError, match="gate `scores`: no; --skip-gate scores goes on without it"):
        run_gate("scores", ["parity"], fail)


def test_rows_are_taken_of_all_feeds():
    taken = take_rows({"a": np.arange(4), "b": np.arange(8).reshape(4, 2)}, [2, 0])
    assert taken["a"].tolist() == [2, 0]
    assert taken["b"].tolist() == [[4, 5], [0, 1]]


def make_graph() -> onnx.ModelProto:
    half, whole = TensorProto.FLOAT16, TensorProto.FLOAT
    weights = [
        helper.make_tensor("w16", half, (1, 1, 1, 1), [1.0]),
        helper.make_tensor("w32", whole, (1, 1, 1, 1), [1.0]),
        helper.make_tensor("w8", TensorProto.INT8, (1, 1, 1, 1), [1]),
        helper.make_tensor("scale", whole, (), [1.0]),
    ]
    nodes = [
        helper.make_node("Cast", ["x"], ["x16"], name="cast", to=half),
        helper.make_node("Conv", ["x16", "w16"], ["a"], name="Conv_1"),
        helper.make_node("Conv", ["x", "w32"], ["b"], name="Conv_2"),
        helper.make_node("QuantizeLinear", ["x", "scale"], ["q"], name="quantize"),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["d"], name="dequantize"),
        helper.make_node("DequantizeLinear", ["w8", "scale"], ["w"], name="weights"),
        helper.make_node("Conv", ["d", "w"], ["c"], name="Conv_3"),
    ]
    ends = [
        helper.make_tensor_value_info(name, kind, [1, 1, 2, 2])
        for name, kind in (("a", half), ("b", whole), ("c", whole))
    ]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", whole, [1, 1, 2, 2])], ends, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def describe(**formats: str) -> str:
    layers = [
        {
            "Name": name,
            "Metadata": f"[ONNX Layer: {name}]\x1e[ONNX Layer: Relu_9]",
            "Inputs": [{"Format/Datatype": kind}],
        }
        for name, kind in formats.items()
    ]
    return json.dumps({"Layers": layers})


def test_the_audit_reads_what_was_asked_and_what_was_built():
    asked = asked_precision(make_graph())
    assert asked == {"Conv_1": ("Conv", "fp16"), "Conv_2": ("Conv", "fp32"), "Conv_3": ("Conv", "int8")}
    text = describe(
        Conv_1="Channel major FP16 format where C % 8 == 0", Conv_2="Row major linear FP32", Conv_3="Int8 NC/32HW32"
    )
    groups = group_layers(asked, built_precision(text))
    assert groups == (
        LayerGroup("Conv", "fp16", "fp16", 1),
        LayerGroup("Conv", "fp32", "fp32", 1),
        LayerGroup("Conv", "int8", "int8", 1),
    )
    assert check_precision(groups).startswith("3 of 3 heavy layers read")


@pytest.mark.parametrize(
    ("formats", "text"),
    [
        ({"Conv_1": "Row major linear FP32", "Conv_2": "FP32", "Conv_3": "Int8"}, "1 Conv asked fp16, built fp32"),
        ({"Conv_1": "Half", "Conv_2": "Float", "Conv_3": "Half"}, "1 Conv asked int8, built fp16"),
        ({"Other": "Half"}, "names none of the 3 heavy layers"),
    ],
)
def test_a_layer_in_a_higher_precision_than_asked_is_a_failure(formats, text):
    groups = group_layers(asked_precision(make_graph()), built_precision(describe(**formats)))
    with pytest.raises(GateError, match=text):
        check_precision(groups)


@pytest.mark.parametrize("text", ["no json", "[]", '{"Layers": ["Conv_1"]}'])
def test_a_description_of_another_form_is_said(text):
    with pytest.raises(GateError, match="TensorRT"):
        built_precision(text)
