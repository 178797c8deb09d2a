"""Kernels as TensorRT plugins: one generic adapter, from a kernel's declaration to a plugin that is compiled ahead of time.

A plugin of this form holds PTX, launch parameters and arguments as expressions of dimensions; the engine keeps them, and neither Python
nor a plugin library is needed to run it. Attributes are bound when a plugin is registered and are part of its name (a digest), so that
nothing depends on how a parser hands fields on. Registration is for the life of the process, as TensorRT has it.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import GenericAlias
from typing import Any, TypeAlias

import onnx

from roiline.core.errors import EngineError
from roiline.engines.tensorrt.lowering import LoweredModel
from roiline.ops.extents import Size, build_size
from roiline.ops.kernels import KernelNode
from roiline.ops.nodes import PLUGIN_ATTRIBUTES

CompileKernel: TypeAlias = Callable[[KernelNode, tuple[str, ...]], str]
"""Returns the PTX of a kernel for the element types of its inputs."""

_DTYPES = {"float32": "FLOAT", "float16": "HALF", "int32": "INT32", "int64": "INT64", "uint8": "UINT8"}
_COMBINATION_NAMES = {"FLOAT": "FP32", "HALF": "FP16"}
PLUGIN_NAMESPACE = PLUGIN_ATTRIBUTES["plugin_namespace"]
PLUGIN_VERSION = PLUGIN_ATTRIBUTES["plugin_version"]
_DIGEST_LENGTH = 8


def plugin_name(node: KernelNode) -> str:
    """Returns the name of the plugin of a kernel with its attributes: the node's type and a digest of these."""
    text = json.dumps(dict(node.attributes), sort_keys=True)
    return f"{node.op_type}_{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]}"


def name_plugins(lowered: LoweredModel) -> tuple[onnx.ModelProto, dict[str, KernelNode]]:
    """Returns the model with its kernel nodes called as their plugins are, and the plugins by name."""
    model = onnx.ModelProto()
    model.CopyFrom(lowered.model)
    plugins: dict[str, KernelNode] = {}
    for node in model.graph.node:
        if node.name in lowered.kernels:
            kernel = lowered.kernels[node.name]
            node.op_type = plugin_name(kernel)
            plugins[node.op_type] = kernel
            kept = [attribute for attribute in node.attribute if attribute.name in PLUGIN_ATTRIBUTES]
            del node.attribute[:]
            node.attribute.extend(kept)
    return model, plugins


def register_plugins(trt: Any, trtp: Any, plugins: Mapping[str, KernelNode], compile_kernel: CompileKernel) -> None:
    """Registers plugins that are not registered yet; `trt` is TensorRT's module, `trtp` its `plugin` module.

    Raises:
        EngineError: TensorRT refuses a plugin.
    """
    for name, node in plugins.items():
        if not hasattr(trtp.op, PLUGIN_NAMESPACE) or not hasattr(getattr(trtp.op, PLUGIN_NAMESPACE), name):
            try:
                _register(trt, trtp, name, node, compile_kernel)
            except (TypeError, ValueError) as error:
                raise EngineError(f"TensorRT refuses the plugin {PLUGIN_NAMESPACE}::{name}: {error}") from error


def check_creators(registry: Any, plugins: Mapping[str, KernelNode]) -> None:
    """Checks that TensorRT finds every plugin by name, version and namespace.

    Raises:
        EngineError: it does not find one.
    """
    for name in plugins:
        if registry.get_creator(name, PLUGIN_VERSION, PLUGIN_NAMESPACE) is None:
            raise EngineError(
                f"TensorRT has no plugin {name}, version {PLUGIN_VERSION}, namespace {PLUGIN_NAMESPACE}, though it was registered"
            )


def check_plugin_layers(trt: Any, network: Any, model: onnx.ModelProto, plugins: Mapping[str, KernelNode]) -> None:
    """Checks that the parser made a plugin layer of every kernel node.

    Raises:
        EngineError: there are fewer; the message names the nodes, their plugin, its version and namespace.
    """
    expected = {node.name: node.op_type for node in model.graph.node if node.op_type in plugins}
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    found = [layer.name for layer in layers if layer.type == trt.LayerType.PLUGIN_V3]
    if len(found) >= len(expected):
        return
    missing = {name: kind for name, kind in expected.items() if name not in found}
    counted = ", ".join(f"{kind} x {count}" for kind, count in sorted(Counter(missing.values()).items()))
    raise EngineError(
        f"TensorRT made {len(found)} plugin layers of {len(expected)} kernel nodes; it has no plugin (version {PLUGIN_VERSION}, namespace "
        f"{PLUGIN_NAMESPACE}) for: {counted}\n  " + "\n  ".join(sorted(missing))
    )


def _register(trt: Any, trtp: Any, name: str, node: KernelNode, compile_kernel: CompileKernel) -> None:
    identity = f"{PLUGIN_NAMESPACE}::{name}"
    adapter = _Adapter(trt, trtp, node, compile_kernel)
    trtp.register(identity)(_with_signature(adapter.describe, adapter.inputs, trtp, adapter.several(trtp.TensorDesc)))
    trtp.autotune(identity)(
        _with_signature(adapter.combine, adapter.inputs, trtp, GenericAlias(list, trtp.AutoTuneCombination), "outputs")
    )
    answer = GenericAlias(tuple, (str, str, trtp.KernelLaunchParams, trtp.SymExprs))
    trtp.aot_impl(identity)(_with_signature(adapter.launch, adapter.inputs, trtp, answer, "outputs", "tactic"))


def _with_signature(
    function: Callable[..., Any], inputs: Sequence[str], trtp: Any, answer: Any, *more: str
) -> Callable[..., Any]:
    """Returns a function whose signature names its tensors, which is what TensorRT reads a plugin's inputs from."""

    @functools.wraps(function)
    def named(*arguments: Any, **others: Any) -> Any:
        return function(*arguments, **others)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind, annotation=trtp.TensorDesc) for name in inputs]
    parameters += [inspect.Parameter(name, kind) for name in more]
    named.__signature__ = inspect.Signature(parameters, return_annotation=answer)  # type: ignore[attr-defined]
    return named


class _Adapter:
    """Answers TensorRT's questions about one plugin from the kernel's declaration."""

    def __init__(self, trt: Any, trtp: Any, node: KernelNode, compile_kernel: CompileKernel) -> None:
        self._trt = trt
        self._trtp = trtp
        self._node = node
        self._compile = compile_kernel
        self.inputs = [name if level is None else f"{name}_{level}" for name, level, _ in node.inputs]

    def several(self, kind: Any) -> GenericAlias:
        """Returns the type of a tuple with one `kind` an output."""
        return GenericAlias(tuple, (kind,) * len(self._node.kernel.outputs))

    def describe(self, *tensors: Any) -> tuple[Any, ...]:
        """Returns the descriptors of the outputs: types and shapes."""
        dtypes = self._node.output_dtypes(self._input_dtypes(tensors))
        shapes = self._node.output_shapes
        return tuple(
            self._trtp.TensorDesc(
                self._trtp.ShapeExprs.from_tuple(tuple(self._rebuild(size, tensors) for size in shape)),
                getattr(self._trt.DataType, _DTYPES[dtype]),
            )
            for shape, dtype in zip(shapes, dtypes, strict=True)
        )

    def combine(self, *tensors: Any) -> list[Any]:
        """Returns the one combination of types and formats that there is: as the network has them, and linear."""
        *inputs, _ = tensors
        given = self._input_dtypes(inputs)
        names = [_DTYPES[dtype] for dtype in (*given, *self._node.output_dtypes(given))]
        types = ", ".join(_COMBINATION_NAMES.get(name, name) for name in names)
        return [self._trtp.AutoTuneCombination(types, "LINEAR")]

    def launch(self, *arguments: Any) -> tuple[str, str, Any, Any]:
        """Returns the entry's name, the PTX, the launch parameters and the arguments between inputs and outputs."""
        *tensors, _outputs, _tactic = arguments
        integer = self._trtp.SymInt32
        params = self._trtp.KernelLaunchParams()
        params.grid_x = integer(self._rebuild(self._node.grid, tensors))
        params.block_x = self._node.kernel.block
        params.shared_mem = integer(self._rebuild(self._node.shared_bytes, tensors))
        integers = [integer(self._rebuild(size, tensors)) for size in self._node.extra_integers]
        extra = self._trtp.SymIntExprs(len(integers))
        for index, value in enumerate(integers):
            extra[index] = value
        ptx = self._compile(self._node, self._input_dtypes(tensors))
        return self._node.kernel.entry, ptx, params, extra

    def _rebuild(self, size: Size, tensors: Sequence[Any]) -> Any:
        """Returns a size in TensorRT's arithmetic, over the dimensions of the input descriptors."""
        expression = self._trtp.ShapeExpr

        def read(tensor: int, axis: int) -> Any:
            return tensors[tensor].shape_expr[axis]

        operations = {
            "+": lambda first, second: first + second,
            "-": lambda first, second: first - second,
            "*": lambda first, second: first * second,
            "//": lambda first, second: first // second,
            "ceil_div": self._trtp.cdiv,
            "min": self._trtp.min,
            "max": self._trtp.max,
        }
        return build_size(size, expression, read, operations)

    def _input_dtypes(self, tensors: Sequence[Any]) -> tuple[str, ...]:
        names = {getattr(self._trt.DataType, name): dtype for dtype, name in _DTYPES.items()}
        given = tuple(names.get(tensor.dtype, str(tensor.dtype)) for tensor in tensors)
        try:
            self._node.output_dtypes(given)
        except TypeError as error:
            raise EngineError(f"plugin {plugin_name(self._node)}: {error}") from error
        return given
