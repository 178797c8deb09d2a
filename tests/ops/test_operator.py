from __future__ import annotations

import numpy as np
import onnx
import pytest

from roiline.core.errors import ExportError
from roiline.ops.catalogue import OPERATORS
from roiline.ops.nodes import FunctionWriter, array_from_constant
from roiline.ops.trim import TRIM


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_unknown_and_missing_attributes_are_named(operator):
    missing = sorted(name for name, default in operator.attributes.items() if default is None)
    with pytest.raises(TypeError, match=f"operator {operator.name}: unknown attributes .'colour'., missing"):
        operator.complete({"colour": 1})
    given = dict.fromkeys(missing, 1)
    assert set(operator.complete(given)) == set(operator.attributes)


def test_the_catalogue_knows_each_operator_by_its_name():
    assert all(operator.name == name for name, operator in OPERATORS.items())


def test_the_same_calls_write_the_same_bytes():
    assert TRIM.write(2, {}).SerializeToString() == TRIM.write(2, {}).SerializeToString()


def test_equal_constants_share_a_node_and_types_keep_them_apart():
    w = FunctionWriter()
    assert w.ints(1, 2) == w.ints(1, 2)
    assert w.integer(1) != w.scalar(1.0)
    assert [node.op_type for node in w.nodes] == ["Constant"] * 3


@pytest.mark.parametrize("value", [10**20, 10**400, 1e300, [1, 10**20], [1.0, 1e300]])
def test_numbers_that_no_model_can_hold_are_refused(value):
    with pytest.raises(ExportError, match="correct the setting that it comes from"):
        FunctionWriter().constant(value)
    with pytest.raises(ExportError, match="does not fit"):
        FunctionWriter().op("Anything", value=value)


def test_infinities_stay():
    assert array_from_constant(float("-inf")) == -np.inf


def test_python_numbers_become_int64_and_float32():
    assert array_from_constant(3).dtype == np.int64
    assert array_from_constant([1.5]).dtype == np.float32
    assert array_from_constant(np.float64(1.5)).dtype == np.float64


def test_an_overload_and_a_domain_reach_the_node():
    w = FunctionWriter()
    w.multi("Trim", "boxes", "count", names=("rois",), domain="roiline", overload="second")
    node = w.nodes[0]
    assert (node.domain, node.overload, list(node.output)) == ("roiline", "second", ["rois"])
    assert isinstance(node, onnx.NodeProto)
