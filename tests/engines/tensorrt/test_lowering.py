"""What lowering refuses, and what it leaves: no functions, no nodes of no use, no sizes that depend on data."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from lowered_runs import C4, FAMILIES
from onnx import TensorProto, helper, numpy_helper
from thin_models import export_thin

from roiline.core.errors import EngineError, ModelError
from roiline.engines.tensorrt.lowering import lower_model, read_attributes
from roiline.engines.tensorrt.plugins import check_plugin_layers, name_plugins
from roiline.engines.tensorrt.trimming import OutputTrim
from roiline.export.half_precision import BF16, FP16, convert_to_half
from roiline.ops.trim import TRIM


def make_model(nodes, *, constants=(), outputs=("out",), inputs=("x",)):
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", "M"]) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("roiline", 1)])


@pytest.fixture(scope="module")
def masks(tmp_path_factory):
    path = export_thin(FAMILIES["masks on one level"], tmp_path_factory.mktemp("masks")).path
    return lower_model(onnx.load(path), where="masks")


def test_a_lowered_model_has_fixed_sizes_and_no_functions(masks):
    kinds = {(node.domain, node.op_type) for node in masks.model.graph.node}
    assert not masks.model.functions
    assert not {kind for domain, kind in kinds if domain == ""} & {
        "NonZero",
        "NonMaxSuppression",
        "TopK",
        "Where",
        "RoiAlign",
    }
    assert {node.name for node in masks.model.graph.node if node.domain == "roiline"} == set(masks.kernels)
    names = [node.name for node in masks.model.graph.node]
    assert len(names) == len(set(names))
    made = {info.name for info in masks.model.graph.input} | {tensor.name for tensor in masks.model.graph.initializer}
    for node in masks.model.graph.node:
        assert set(node.input) <= made
        made.update(node.output)


def test_trims_say_which_rows_are_real(masks):
    assert masks.trims == (
        OutputTrim("boxes", "padded", "count"),
        OutputTrim("scores", "padded", "count"),
        OutputTrim("classes", "padded", "count"),
        OutputTrim("count", "batch"),
        OutputTrim("masks", "rows", "count"),
    )


def test_a_count_that_is_no_output_becomes_one(tmp_path):
    model = onnx.load(export_thin(C4, tmp_path).path)
    kept = [info for info in model.graph.output if info.name == "boxes"]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    lowered = lower_model(model, where="boxes")
    assert [info.name for info in lowered.model.graph.output] == ["boxes", "count"]
    assert [trim.output for trim in lowered.trims] == ["boxes"]


def test_plugin_nodes_keep_only_what_finds_their_plugin(masks):
    model, plugins = name_plugins(masks)
    nodes = [node for node in model.graph.node if node.op_type in plugins]
    assert len(nodes) == len(masks.kernels)
    assert all(read_attributes(node) == {"plugin_namespace": "roiline", "plugin_version": "1"} for node in nodes)
    assert {node.op_type for node in nodes} == set(plugins)


class Layer:
    def __init__(self, name: str, kind: str) -> None:
        self.name, self.type = name, kind


class Network:
    def __init__(self, layers) -> None:
        self._layers = layers
        self.num_layers = len(layers)

    def get_layer(self, index: int) -> Layer:
        return self._layers[index]


class FakeTensorRt:
    class LayerType:
        PLUGIN_V3 = "plugin"


def test_a_missing_plugin_layer_is_named(masks):
    model, plugins = name_plugins(masks)
    layers = [Layer(node.name, "plugin" if node.op_type in plugins else "other") for node in model.graph.node]
    check_plugin_layers(FakeTensorRt, Network(layers), model, plugins)
    lost = next(layer for layer in layers if layer.type == "plugin")
    lost.type = "other"
    kind = next(node.op_type for node in model.graph.node if node.name == lost.name)
    with pytest.raises(EngineError, match=rf"version 1, namespace roiline\) for: {kind} x 1\n  {lost.name}"):
        check_plugin_layers(FakeTensorRt, Network(layers), model, plugins)


@pytest.mark.parametrize("kind", ["NonZero", "Compress", "Unique", "MaxRoiPool"])
def test_what_has_no_fixed_size_is_refused_by_name(kind):
    inputs = ["x"] if kind in ("NonZero", "Unique") else ["x", "x"]
    with pytest.raises(EngineError, match=rf"graph.onnx: .*\n  `here`: {kind} "):
        lower_model(make_model([helper.make_node(kind, inputs, ["out"], name="here")]), where="graph.onnx")


def test_too_large_a_choice_is_refused():
    node = helper.make_node("TopK", ["x", "k"], ["out", "places"], name="best")
    assert lower_model(make_model([node], constants=[("k", np.array([3840], np.int64))]), where="graph")
    with pytest.raises(EngineError, match="`best`: TopK of 3841, TensorRT's takes 3840 at most"):
        lower_model(make_model([node], constants=[("k", np.array([3841], np.int64))]), where="graph")


@pytest.mark.parametrize(("kind", "widened"), [(BF16, True), (FP16, False)])
def test_a_transposed_convolution_in_bf16_is_computed_in_single_precision(kind, widened, tmp_path):
    path = export_thin(FAMILIES["pyramid with keypoints"], tmp_path).path
    model = lower_model(convert_to_half(onnx.load(path), kind), where="half").model
    types = {
        info.name: info.type.tensor_type.elem_type for info in onnx.shape_inference.infer_shapes(model).graph.value_info
    }
    deconvolutions = [node for node in model.graph.node if node.op_type == "ConvTranspose"]
    assert deconvolutions
    for node in deconvolutions:
        stored = {tensor.name for tensor in model.graph.initializer}
        assert (node.input[1] not in stored) == widened
        if widened:
            assert types[node.input[1]] == TensorProto.FLOAT


def test_unknown_operators_are_refused():
    node = helper.make_node("Enlarge", ["x"], ["out"], name="here", domain="roiline")
    with pytest.raises(ModelError, match=r"unknown operator roiline\.Enlarge"):
        lower_model(make_model([node]), where="graph")


def test_an_operator_without_kernels_is_refused(monkeypatch):
    from dataclasses import replace

    from roiline.engines.tensorrt import lowering

    monkeypatch.setitem(lowering.OPERATORS, "Trim", replace(TRIM, lower=None))
    node = helper.make_node("Trim", ["x", "x"], ["out"], name="rows", domain="roiline")
    with pytest.raises(EngineError, match=r"operator Trim .node `rows`. has no kernels"):
        lower_model(make_model([node]), where="graph")


def test_rows_of_two_counts_cannot_be_mixed():
    nodes = [
        helper.make_node("Trim", ["x", "first"], ["a"], name="a", domain="roiline"),
        helper.make_node("Trim", ["x", "second"], ["b"], name="b", domain="roiline"),
        helper.make_node("Add", ["a", "b"], ["out"], name="sum"),
    ]
    with pytest.raises(EngineError, match=r"`sum` .Add. mixes rows counted by first, second"):
        lower_model(make_model(nodes, inputs=("x", "first", "second")), where="graph")
