from __future__ import annotations

import numpy as np
import pytest
from kernel_calls import KERNELS

from roiline.ops.catalogue import OPERATORS
from roiline.ops.extents import evaluate_size
from roiline.ops.kernels import MOST_BLOCKS, Kernel, KernelInput, KernelOutput, float_bits, write_kernel
from roiline.ops.nodes import FunctionWriter
from roiline.ops.operator import Operator

FLOAT = KernelInput(("float32", "float16"), 2)
SCALE = Kernel(
    name="Scale",
    source="none.cuh",
    function="scale",
    inputs={"rows": KernelInput(("int32",), 1), "maps...": FLOAT, "masks...": FLOAT},
    outputs={
        "total": KernelOutput("as maps", lambda node: (node.dim("rows", 0), node.dim("masks", 1, 1))),
        "count": KernelOutput("int64", lambda node: (node.dim("rows", 0),)),
    },
    attributes={"factor": None, "steps": (1, 2), "offset": 0.5},
    items=lambda node: node.dim("rows", 0) * node.dim("maps", 0, 1),
    arguments=lambda node: {"factor": float(node["factor"]), "steps": node["steps"], "sizes": (node.dim("maps", 1), 3)},
    shared_bytes=lambda node: 4 * node.dim("rows", 0),
)
SHAPES = [(300,), (2, 3), (4, 5), (6, 7), (8, 9)]


def test_a_node_says_everything_about_its_launch():
    node = SCALE.node(5, {"factor": 2.0, "other": 1})
    assert (node.levels, node.op_type, node.kernel.entry) == (2, "Scale2", "roiline_scale")
    assert [(name, level) for name, level, _ in node.inputs] == [
        ("rows", None),
        ("maps", 0),
        ("maps", 1),
        ("masks", 0),
        ("masks", 1),
    ]
    assert [[evaluate_size(size, SHAPES) for size in shape] for shape in node.output_shapes] == [[300, 9], [300]]
    assert evaluate_size(node.items, SHAPES) == 1200
    assert evaluate_size(node.grid, SHAPES) == 5
    assert evaluate_size(node.shared_bytes, SHAPES) == 1200
    extra = [evaluate_size(size, SHAPES) for size in node.extra_integers]
    assert extra == [1200, float_bits(2.0), 1, 2, 3, 3]
    assert node.attributes == {"factor": 2.0, "steps": (1, 2), "offset": 0.5}


def test_floats_travel_as_their_bits():
    assert float_bits(1.0) == 0x3F800000
    assert float_bits(-0.0) == -(2**31)
    assert np.int32(float_bits(0.1)).view(np.float32) == np.float32(0.1)


@pytest.mark.parametrize(("rows", "blocks"), [(0, 1), (1, 1), (256, 4), (10**7, MOST_BLOCKS)])
def test_a_grid_is_never_empty_and_never_too_large(rows, blocks):
    node = SCALE.node(3, {"factor": 1})
    assert evaluate_size(node.dim("maps", 0), [(rows,), (4, 1), (1, 1)]) == 4
    single = Kernel(
        **{name: getattr(SCALE, name) for name in SCALE.__slots__} | {"items": lambda node: node.dim("rows", 0) * 4}
    )
    assert evaluate_size(single.node(3, {"factor": 1}).grid, [(rows,), (4, 1), (1, 1)]) == blocks


@pytest.mark.parametrize("inputs", [0, 1, 2, 4, 6])
def test_a_number_of_tensors_that_does_not_fit_is_refused(inputs):
    with pytest.raises(TypeError, match=f"Scale: {inputs} input tensors"):
        SCALE.node(inputs, {"factor": 1})


def test_a_missing_attribute_is_refused():
    with pytest.raises(TypeError, match=r"Scale: missing attributes \['factor'\]"):
        SCALE.node(3, {})


def test_output_types_follow_the_inputs():
    node = SCALE.node(3, {"factor": 1})
    assert node.output_dtypes(["int32", "float16", "float32"]) == ("float16", "int64")
    with pytest.raises(TypeError, match="input rows is float32, expected int32"):
        node.output_dtypes(["float32", "float32", "float32"])
    with pytest.raises(TypeError, match="one for all levels"):
        SCALE.node(5, {"factor": 1}).output_dtypes(["int32", "float32", "float16", "float32", "float32"])


def test_the_node_of_a_kernel_names_its_plugin():
    w = FunctionWriter()
    results = write_kernel(w, SCALE, "rows", "maps", "masks", attributes={"factor": 3.0, "else": 1}, names=("a", None))
    (node,) = w.nodes
    assert (node.domain, node.op_type, results[0], len(results)) == ("roiline", "Scale1", "a", 2)
    values = {attribute.name: attribute.s or attribute.f for attribute in node.attribute if attribute.name != "steps"}
    assert values == {"factor": 3.0, "offset": 0.5, "plugin_namespace": b"roiline", "plugin_version": b"1"}


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda operator: operator.name)
def test_every_operator_has_kernels(operator: Operator):
    assert operator.lower is not None
    assert operator.kernels


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=lambda kernel: kernel.name)
def test_a_kernel_can_be_a_plugin(kernel: Kernel):
    assert kernel.name.isidentifier()
    assert not kernel.name[-1].isdigit(), "numbers of levels are appended to it"
    assert kernel.name not in OPERATORS, "a node of this type is the portable operator"
    assert kernel.block in (32, 64, 128, 256, 512, 1024)
    assert [one for one in KERNELS.values() if one.name == kernel.name] == [kernel]


def test_kernels_of_one_name_are_one():
    every = [kernel for operator in OPERATORS.values() for kernel in operator.kernels]
    assert all(KERNELS[kernel.name] is kernel for kernel in every)
