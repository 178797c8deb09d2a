"""A portable model into one for an engine with kernels: every operator of ours becomes the nodes of its kernels, and every size is fixed.

Functions go; each node of domain `roiline` is replaced by what its operator's `lower` writes. Where the portable graph picks out the real
rows of a padded tensor with NonZero, the lowered one keeps all rows. Nodes that nothing needs any longer are dropped. What an engine
cannot do is refused here, by name, rather than by a builder's message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from roiline.core.errors import EngineError, ModelError
from roiline.engines.tensorrt.rows import BATCH, Rows, input_rows, rows_of_node, rows_of_operator
from roiline.engines.tensorrt.trimming import OutputTrim
from roiline.ops.catalogue import OPERATORS
from roiline.ops.kernels import KernelNode
from roiline.ops.nodes import DOMAIN, Attribute, ConstantValue, NodeWriter, array_from_constant
from roiline.ops.operator import Operator

MOST_TOPK = 3840
"""The largest K that TensorRT's TopK takes."""

_REFUSED = {
    "Compress": "gives as many rows as the data says",
    "NonMaxSuppression": "gives as many rows as the data says",
    "NonZero": "gives as many rows as the data says",
    "Unique": "gives as many rows as the data says",
    "MaxRoiPool": "has no form in TensorRT",
}


@dataclass(frozen=True, slots=True)
class LoweredModel:
    """Is a model of standard nodes and kernel nodes.

    `kernels` maps the name of every kernel node to its kernel. `trims` are the outputs of the portable model, in its order; the lowered
    one may have outputs after these: counts that trims need.
    """

    model: onnx.ModelProto
    kernels: Mapping[str, KernelNode]
    trims: tuple[OutputTrim, ...]


def lower_model(model: onnx.ModelProto, *, where: str) -> LoweredModel:
    """Lowers a portable model, or a stage that was cut out of one.

    Raises:
        ModelError: a node of our domain is of no operator that is known.
        EngineError: the graph needs sizes that depend on data, or an operator that has no kernels.
    """
    lowering = _Lowering(model, where)
    for node in model.graph.node:
        lowering.add(node)
    return lowering.finish()


def read_attributes(node: onnx.NodeProto) -> dict[str, Attribute]:
    """Returns the attributes of a node as plain values: numbers, text, and tuples of numbers."""
    return {attribute.name: _plain(helper.get_attribute_value(attribute)) for attribute in node.attribute}


def _plain(value: Any) -> Attribute:
    if isinstance(value, bytes):
        return value.decode()
    return tuple(value) if isinstance(value, (list, tuple)) or hasattr(value, "extend") else value


class _BodyWriter(NodeWriter):
    """Writes the nodes that take one node's place; all their names begin with that node's."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.constants: dict[str, NDArray[Any]] = {}
        self._prefix = prefix

    def constant(self, value: ConstantValue) -> str:
        """Returns the name of an initializer of the lowered graph."""
        name = f"{self._prefix}/constant_{len(self.constants)}"
        self.constants[name] = np.asarray(array_from_constant(value))
        return name

    def multi(
        self,
        op_type: str,
        *inputs: str,
        names: Sequence[str | None],
        domain: str = "",
        overload: str = "",
        **attributes: Attribute,
    ) -> tuple[str, ...]:
        """Appends a node, its name and its results' names prefixed."""
        super().multi(op_type, *inputs, names=names, domain=domain, overload=overload, **attributes)
        node = self.nodes[-1]
        node.name = f"{self._prefix}/{node.name}"
        results = tuple(f"{self._prefix}/{name}" for name in node.output)
        del node.output[:]
        node.output.extend(results)
        return results


class _Lowering:
    """Gathers the nodes of a lowered graph in order."""

    def __init__(self, model: onnx.ModelProto, where: str) -> None:
        self._source = model
        self._where = where
        graph = model.graph
        self._rows: dict[str, Rows] = input_rows(info.name for info in graph.input)
        self._producer = {name: node for node in graph.node for name in node.output}
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, NDArray[Any]] = {}
        self._kernels: dict[str, KernelNode] = {}
        self._ranks: dict[str, int] = {}
        self._made: dict[str, int] = {}
        self._stored = {tensor.name: tensor.data_type for tensor in graph.initializer}

    def add(self, node: onnx.NodeProto) -> None:
        """Adds what a node of the portable graph becomes."""
        if node.domain == DOMAIN:
            self._add_operator(node)
        elif self._picks_real_rows(node):
            self._add_all_rows(node)
        else:
            rows = rows_of_node(node, self._rows, where=self._where)
            self._rows.update(dict.fromkeys(node.output, rows))
            self._nodes += _widen(node) if self._is_narrow_deconvolution(node) else [node]

    def finish(self) -> LoweredModel:
        """Returns the model: what its outputs need, and no more."""
        source, graph = self._source, self._source.graph
        declared = {
            info.name: info.type.tensor_type.elem_type for info in (*graph.value_info, *graph.input, *graph.output)
        }
        declared = self._made | declared
        names = [info.name for info in graph.output]
        trims = tuple(_trim_of(name, self._rows.get(name, BATCH)) for name in names)
        names += sorted({trim.count for trim in trims if trim.count} - set(names))
        nodes = _needed(self._nodes, names)
        used = {name for node in nodes for name in node.input} | set(names)
        initializers = [tensor for tensor in graph.initializer if tensor.name in used]
        initializers += [
            numpy_helper.from_array(self._constants[name], name) for name in self._constants if name in used
        ]
        self._refuse_unbuildable(nodes, {tensor.name: tensor for tensor in initializers})
        lowered = helper.make_model(
            helper.make_graph(
                nodes,
                graph.name,
                [info for info in graph.input if info.name in used],
                [_output_info(name, declared[name]) for name in names],
                initializers,
            ),
            opset_imports=source.opset_import,
            ir_version=source.ir_version,
            producer_name=source.producer_name,
        )
        lowered.metadata_props.extend(source.metadata_props)
        kernels = {node.name: self._kernels[node.name] for node in nodes if node.name in self._kernels}
        return LoweredModel(lowered, kernels, trims)

    def _add_operator(self, node: onnx.NodeProto) -> None:
        """Adds the kernel nodes of one of our operators; its results keep their names."""
        operator = OPERATORS.get(node.op_type)
        if operator is None:
            raise ModelError(f"{self._where}: node `{node.name}` is of an unknown operator {DOMAIN}.{node.op_type}")
        if operator.lower is None:
            raise EngineError(
                f"{self._where}: the operator {operator.name} (node `{node.name}`) has no kernels; run this model on ONNX Runtime"
            )
        writer = _BodyWriter(node.name)
        attributes = {name: value for name, value in read_attributes(node).items() if name in operator.attributes}
        inputs, half = self._half_features(operator, node)
        results = operator.lower(writer, inputs, operator.complete(attributes))
        self._nodes += writer.nodes
        self._constants |= writer.constants
        self._kernels |= {one.name: _find_kernel(operator, one) for one in writer.nodes if one.domain == DOMAIN}
        for result, output in zip(results, node.output, strict=False):
            kind, options = ("Cast", {"to": onnx.TensorProto.FLOAT}) if half else ("Identity", {})
            self._nodes.append(helper.make_node(kind, [result], [output], name=f"{node.name}/{output}", **options))
        self._rows.update(rows_of_operator(operator, node, self._rows, where=self._where))
        for name, (dtype, rank) in zip(node.output, operator.outputs.values(), strict=False):
            self._ranks[name] = rank
            self._made[name] = int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def _is_narrow_deconvolution(self, node: onnx.NodeProto) -> bool:
        """Says whether a node is a transposed convolution in bf16, which TensorRT has none of."""
        weights = node.input[1] if node.op_type == "ConvTranspose" else ""
        return bool(self._stored.get(weights) == onnx.TensorProto.BFLOAT16)

    def _half_features(self, operator: Operator, node: onnx.NodeProto) -> tuple[list[str], bool]:
        """Returns the inputs of a node, and whether its features are half ones that the portable graph casts first, and kernels need not.

        The kernel computes in single precision all the same; its result is cast in place of the features.
        """
        takes_half = [
            name for kernel in operator.kernels for name, rule in kernel.inputs.items() if "float16" in rule.dtypes
        ]
        first = next(
            (at for at, name in enumerate(operator.inputs) if name in takes_half and name.endswith("...")), None
        )
        inputs = list(node.input)
        if first is None:
            return inputs, False
        sources = [self._source_of_cast(name) for name in inputs[first:]]
        if not sources or None in sources:
            return inputs, False
        return [*inputs[:first], *(source for source in sources if source is not None)], True

    def _source_of_cast(self, name: str) -> str | None:
        """Returns the half tensor that a tensor is the cast to single precision of, None if it is not one."""
        producer = self._producer.get(name)
        if producer is None or producer.op_type != "Cast":
            return None
        (target,) = (attribute.i for attribute in producer.attribute if attribute.name == "to")
        source = producer.input[0]
        half = target == onnx.TensorProto.FLOAT and self._types.get(source) == onnx.TensorProto.FLOAT16
        return source if half else None

    @cached_property
    def _types(self) -> dict[str, int]:
        """Is the element type of every tensor of the portable graph, as far as it follows."""
        graph = onnx.shape_inference.infer_shapes(self._source).graph
        return {info.name: info.type.tensor_type.elem_type for info in (*graph.value_info, *graph.input, *graph.output)}

    def _picks_real_rows(self, node: onnx.NodeProto) -> bool:
        """Says whether a node gathers the real rows of a padded matrix: GatherND at Transpose(NonZero(..))."""
        if node.op_type != "GatherND" or self._rows.get(node.input[0], BATCH).kind != "padded":
            return False
        turned = self._producer.get(node.input[1])
        found = self._producer.get(turned.input[0]) if turned is not None and turned.op_type == "Transpose" else None
        return found is not None and found.op_type == "NonZero" and self._ranks.get(node.input[0]) == 2

    def _add_all_rows(self, node: onnx.NodeProto) -> None:
        """Adds, in place of a choice of the real rows, all of them: (N, R) becomes (N * R,)."""
        matrix, (output,) = node.input[0], node.output
        shape = f"{node.name}/shape"
        self._constants[shape] = np.array([-1], np.int64)
        self._nodes.append(helper.make_node("Reshape", [matrix, shape], [output], name=node.name))
        self._rows[output] = Rows("rows", self._rows[matrix].count)

    def _refuse_unbuildable(self, nodes: Sequence[onnx.NodeProto], constants: Mapping[str, onnx.TensorProto]) -> None:
        faults = [
            f"`{node.name}`: {node.op_type} {_REFUSED[node.op_type]}"
            for node in nodes
            if node.domain == "" and node.op_type in _REFUSED
        ]
        for node in nodes:
            if node.domain == "" and node.op_type == "TopK" and node.input[1] in constants:
                wanted = int(numpy_helper.to_array(constants[node.input[1]]).reshape(-1)[0])
                if wanted > MOST_TOPK:
                    faults.append(f"`{node.name}`: TopK of {wanted}, TensorRT's takes {MOST_TOPK} at most")
        if faults:
            raise EngineError(
                f"{self._where}: this graph has no form of fixed sizes; run it on ONNX Runtime:\n  "
                + "\n  ".join(faults)
            )


def _find_kernel(operator: Operator, node: onnx.NodeProto) -> KernelNode:
    """Returns what the declaration of a kernel says for a node that an operator's lowering wrote."""
    attributes = read_attributes(node)
    for kernel in operator.kernels:
        if node.op_type.startswith(kernel.name):
            declared = kernel.node(len(node.input), attributes)
            if declared.op_type == node.op_type:
                return declared
    known = ", ".join(kernel.name for kernel in operator.kernels)
    raise EngineError(
        f"operator {operator.name} was lowered to a node {node.op_type}, which is none of its kernels ({known})"
    )


def _widen(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Returns the nodes of a bf16 node that compute it in single precision."""
    wide = onnx.NodeProto()
    wide.CopyFrom(node)
    before = []
    for index, name in enumerate(node.input):
        wide.input[index] = f"{node.name}/wide_{index}"
        before.append(
            helper.make_node("Cast", [name], [wide.input[index]], name=wide.input[index], to=onnx.TensorProto.FLOAT)
        )
    wide.output[0] = f"{node.name}/wide"
    after = helper.make_node(
        "Cast", [wide.output[0]], [node.output[0]], name=f"{node.name}/narrow", to=onnx.TensorProto.BFLOAT16
    )
    return [*before, wide, after]


def _trim_of(output: str, rows: Rows) -> OutputTrim:
    return OutputTrim(output, rows.kind, rows.count)


def _needed(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """Returns the nodes that outputs need, in order."""
    wanted = set(outputs)
    kept: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            wanted.update(node.input)
            kept.append(node)
    return kept[::-1]


def _output_info(name: str, element_type: int) -> onnx.ValueInfoProto:
    """Returns an output of known type and free shape: sizes are not those of the portable graph."""
    info = onnx.ValueInfoProto(name=name)
    info.type.tensor_type.elem_type = element_type
    return info
