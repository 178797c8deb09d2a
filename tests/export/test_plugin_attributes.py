"""Nodes of our domain say which plugin may take their place; whoever has none runs the function and passes over that."""

from __future__ import annotations

import onnx
import onnxruntime

from roiline.ops.nodes import DOMAIN


def test_every_node_of_ours_names_its_plugin(digits_model):
    model = onnx.load(digits_model)
    ours = [node for node in model.graph.node if node.domain == DOMAIN]
    assert {node.op_type for node in ours} >= {"GenerateProposals", "MultiLevelRoIAlign", "DetectionOutput"}
    for node in ours:
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        assert (attributes["plugin_namespace"], attributes["plugin_version"]) == (b"roiline", b"1"), node.op_type
        assert (node.op_type, node.overload) in {(function.name, function.overload) for function in model.functions}


def test_other_readers_pass_over_it(digits_model, capfd):
    onnx.checker.check_model(str(digits_model), full_check=True)
    session = onnxruntime.InferenceSession(str(digits_model), providers=["CPUExecutionProvider"])
    assert session.get_outputs()
    assert capfd.readouterr().err == ""
