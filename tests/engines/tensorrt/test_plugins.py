"""Plugins of every kernel, against TensorRT's own bindings: registration, types, shapes, launch parameters, arguments."""

from __future__ import annotations

import numpy as np
import pytest
from real_tensorrt import PluginUnderTest, Registry, real_bindings, skip_without_bindings

from roiline.core.errors import EngineError
from roiline.engines.tensorrt.plugins import check_creators, plugin_name, register_plugins
from roiline.ops.kernels import Kernel, KernelInput, KernelNode, KernelOutput

pytestmark = pytest.mark.tensorrt
skip_without_bindings()


@pytest.fixture(scope="module")
def bindings(tmp_path_factory):
    with real_bindings(tmp_path_factory.mktemp("stubs")) as modules:
        yield modules


def compile_to_name(node: KernelNode, dtypes: tuple[str, ...]) -> str:
    return f".visible .entry {node.kernel.entry} {dtypes}"


TOY = Kernel(
    name="Toy",
    source="toy.cuh",
    function="toy",
    inputs={"boxes": KernelInput(("float32",), 3), "features...": KernelInput(("float32", "float16"), 4)},
    outputs={
        "rois": KernelOutput("float32", lambda node: (node.dim("boxes", 0) * node.dim("boxes", 1), 5)),
        "pooled": KernelOutput("as features", lambda node: (node.dim("features", 1), node["size"])),
    },
    items=lambda node: node.dim("boxes", 0) * node.dim("boxes", 1),
    arguments=lambda node: {"rows": node.dim("boxes", 1), "scales": tuple(node["scales"])},
    attributes={"scales": None, "size": 7},
    block=128,
    shared_bytes=lambda node: node.dim("boxes", 1) * 4,
)


def test_a_plugin_says_what_its_kernel_declares(bindings):
    trt, trtp = bindings
    node = TOY.node(3, {"scales": (0.25, 0.125)})
    name = plugin_name(node)
    register_plugins(trt, trtp, {name: node}, compile_to_name)
    register_plugins(trt, trtp, {name: node}, compile_to_name)
    check_creators(Registry.shared(), {name: node})
    plugin = PluginUnderTest(trt, trtp, Registry.shared(), name)
    half, single = trt.DataType.HALF, trt.DataType.FLOAT
    assert plugin.output_types([single, half, half], [3, 4, 4]) == [single, half]
    shapes = [(2, 100, 4), (2, 256, 50, 60), (2, 256, 25, 30)]
    assert plugin.output_shapes(shapes) == [(200, 5), (256, 7)]
    entry, ptx, launch, extra = plugin.launch(shapes)
    assert (entry, ptx) == ("roiline_toy", ".visible .entry roiline_toy ('float32', 'float16', 'float16')")
    assert launch == {
        "grid_x": 2, "grid_y": 1, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1, "shared_mem": 400,
    }  # fmt: skip
    assert extra[:2] == [200, 100]
    assert np.array(extra[2:], np.int32).view(np.float32).tolist() == [0.25, 0.125]


def test_attributes_are_part_of_the_name():
    one, other = (TOY.node(3, {"scales": scales}) for scales in ((0.25, 0.125), (0.25, 0.0625)))
    assert plugin_name(one).startswith("Toy2_")
    assert plugin_name(one) != plugin_name(other)


def test_a_type_that_the_kernel_does_not_take_is_refused(bindings):
    trt, trtp = bindings
    node = TOY.node(2, {"scales": (0.5,)})
    register_plugins(trt, trtp, {plugin_name(node): node}, compile_to_name)
    plugin = PluginUnderTest(trt, trtp, Registry.shared(), plugin_name(node))
    with pytest.raises(EngineError, match="input features is int32, expected float32 or float16"):
        plugin.output_types([trt.DataType.FLOAT, trt.DataType.INT32], [3, 4])


def test_a_plugin_that_was_not_registered_is_missed(bindings):
    with pytest.raises(EngineError, match="no plugin Absent_1, version 1, namespace roiline"):
        check_creators(Registry.shared(), {"Absent_1": TOY.node(2, {"scales": (1.0,)})})
