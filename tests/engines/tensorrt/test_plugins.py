"""Plugins of every kernel, against TensorRT's own bindings: registration, types, shapes, launch parameters, arguments."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from lowered_runs import FAMILIES, SIZE
from onnx import helper
from real_tensorrt import PluginUnderTest, Registry, real_bindings, skip_without_bindings
from thin_models import export_thin, feed_pictures

from roiline.core.errors import EngineError
from roiline.engines import host_kernels
from roiline.engines.protocol import Device
from roiline.engines.tensorrt.lowering import lower_model
from roiline.engines.tensorrt.plugins import check_creators, plugin_name, register_plugins
from roiline.ops.catalogue import OPERATORS
from roiline.ops.extents import evaluate_size
from roiline.ops.kernel_host import run_on_host
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


@dataclass(frozen=True)
class Call:
    """Is one kernel call of a lowered model: what went in and came out."""

    node: KernelNode
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[str, tuple[int, ...]], ...]


SINGLE_NODES = {
    "BBoxTransform": ({"rois": (6, 5), "deltas": (6, 12), "im_info": (2, 3)}, {}),
    "BoxWithNMSLimit": ({"scores": (6, 3), "boxes": (6, 12), "batch_splits": (2,)}, {}),
    "DetectionOutput": (
        {
            "rois": (6, 5),
            "cls_prob": (6, 3),
            "bbox_pred": (6, 12),
            "im_info": (2, 3),
            "im_size": (2, 2),
            "roi_count": (2,),
        },
        {
            "score_thresh": 0.1,
            "nms_thresh": 0.5,
            "max_dets": 10,
            "bbox_reg_weights": (10.0, 10.0, 5.0, 5.0),
            "ranked": 1,
            "final_clip": 1,
            "delta_clip": 4.0,
        },
    ),
}
"""Operators of Caffe2's nets and of detectron2, which no family above has: the shapes of their inputs, and attributes."""


def _run_single(name: str) -> None:
    operator, (shapes, attributes) = OPERATORS[name], SINGLE_NODES[name]
    random = np.random.default_rng(0)
    feeds = {one: np.abs(random.normal(0, 20, shape)).astype(np.float32) for one, shape in shapes.items()}
    if "rois" in feeds:
        feeds["rois"][:, 0] = [0, 0, 0, 1, 1, 1]
    for counts, dtype in (("batch_splits", np.float32), ("roi_count", np.int64)):
        if counts in feeds:
            feeds[counts] = np.full(2, 3, dtype)
    inputs = [_describe(one, tensor.dtype, tensor.shape) for one, tensor in feeds.items()]
    outputs = [_describe(one, np.dtype(dtype), [None] * rank) for one, (dtype, rank) in operator.outputs.items()]
    complete = operator.complete(attributes)
    node = helper.make_node(name, list(feeds), list(operator.outputs), name="node", domain="roiline", **complete)
    graph = helper.make_graph([node], name, inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    host_kernels.HostKernelBackend(lower_model(model, where=name), [], [], 1).run(feeds)


def _describe(name: str, dtype: np.dtype, shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """Returns every kernel call of a few lowered models, which have all kernels between them."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++ for the kernels")
    made: list[Call] = []

    def record(kernel, arrays, attributes, **options):
        outputs = run_on_host(kernel, arrays, attributes, **options)
        made.append(
            Call(
                kernel.node(len(arrays), attributes),
                tuple(array.dtype.name for array in arrays),
                tuple(array.shape for array in arrays),
                tuple((array.dtype.name, array.shape) for array in outputs),
            )
        )
        return outputs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_kernels, "run_on_host", record)
        for number, text in enumerate(FAMILIES.values()):
            model = export_thin(text, tmp_path_factory.mktemp(f"family{number}"))
            backend = host_kernels.open_backend(model.path, None, Device())
            feeds = feed_pictures(2, *SIZE)
            backend.run({info.name: feeds[info.name] for info in backend.inputs})
        for name in SINGLE_NODES:
            _run_single(name)
    return made


def test_all_kernels_are_called(calls):
    wanted = {kernel.name for operator in OPERATORS.values() for kernel in operator.kernels}
    assert wanted - {call.node.kernel.name for call in calls} == set()


def test_plugins_of_all_kernels_say_what_the_host_does(bindings, calls):
    trt, trtp = bindings
    kinds = {"float32": "FLOAT", "float16": "HALF", "int32": "INT32", "int64": "INT64", "uint8": "UINT8"}
    plugins = {plugin_name(call.node): call.node for call in calls}
    register_plugins(trt, trtp, plugins, compile_to_name)
    check_creators(Registry.shared(), plugins)
    for call in calls:
        plugin = PluginUnderTest(trt, trtp, Registry.shared(), plugin_name(call.node))
        types = [getattr(trt.DataType, kinds[dtype]) for dtype in call.dtypes]
        expected = [getattr(trt.DataType, kinds[dtype]) for dtype, _ in call.outputs]
        assert plugin.output_types(types, [len(shape) for shape in call.shapes]) == expected
        assert plugin.output_shapes(call.shapes) == [shape for _, shape in call.outputs]
        entry, _, launch, extra = plugin.launch(call.shapes)
        assert plugin.kernel(types, call.shapes) == (
            entry,
            compile_to_name(call.node, call.dtypes).encode(),
            len(extra),
        )
        assert entry == call.node.kernel.entry
        assert extra == [evaluate_size(size, call.shapes) for size in call.node.extra_integers]
        assert launch["block_x"] == call.node.kernel.block <= 1024
        assert launch["grid_x"] == evaluate_size(call.node.grid, call.shapes) >= 1
        assert launch["shared_mem"] == evaluate_size(call.node.shared_bytes, call.shapes) <= 48 << 10
        assert all(-(2**31) <= value < 2**31 for value in extra)
