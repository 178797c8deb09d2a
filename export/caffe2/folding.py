"""Affine channels folded into the convolutions before them: W' = W s, b' = b s + shift, as Caffe2's own fused nets have it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from roiline.export.caffe2.fillers import Array
from roiline.export.caffe2.netdef import NetDef, OperatorDef


def fold_affine_channels(net: NetDef, fills: Mapping[str, Array]) -> tuple[NetDef, dict[str, Array]]:
    """Returns the net without the affine channels that a convolution can take over, and the blobs that it needs then.

    A pair is left as it is where the convolution's result or weights serve somebody else too, or where a value is not known.
    """
    known = dict(fills)
    uses = Counter(name for operator in net.operators for name in operator.inputs)
    uses.update(net.external_outputs)
    operators: list[OperatorDef] = []
    for index, operator in enumerate(net.operators):
        place = _find_convolution(operators, operator)
        if (
            place is None
            or not _can_fold(operators[place], operator, known, uses)
            or not _is_only_reader(net, operators[place], index)
        ):
            operators.append(operator)
            continue
        operators[place] = _fold(operators[place], operator, known)
        if uses[operator.inputs[1]] == 1:
            del known[operator.inputs[1]]
    return replace(net, operators=tuple(operators)), known


def _find_convolution(before: Sequence[OperatorDef], affine: OperatorDef) -> int | None:
    """Returns where the convolution stands whose result an affine channel takes, provided nobody has taken it since."""
    if affine.type != "AffineChannel" or len(affine.inputs) != 3 or len(affine.outputs) != 1:
        return None
    for place in range(len(before) - 1, -1, -1):
        if affine.inputs[0] in before[place].outputs:
            return place if before[place].type == "Conv" else None
        if affine.inputs[0] in before[place].inputs or affine.outputs[0] in (
            *before[place].inputs,
            *before[place].outputs,
        ):
            return None
    return None


def _is_only_reader(net: NetDef, convolution: OperatorDef, affine_index: int) -> bool:
    """Says whether nobody takes the convolution's result after the affine channel."""
    result = convolution.outputs[0]
    if result in net.operators[affine_index].outputs:
        return True
    for later in net.operators[affine_index + 1 :]:
        if result in later.inputs:
            return False
        if result in later.outputs:
            return True
    return result not in net.external_outputs


def _can_fold(
    convolution: OperatorDef, affine: OperatorDef, known: Mapping[str, Array], uses: Mapping[str, int]
) -> bool:
    own, (scale, shift) = convolution.inputs[1:], affine.inputs[1:]
    if not own or not all(name in known for name in (*own, scale, shift)):
        return False
    out = known[own[0]].shape[:1]
    return known[scale].shape == known[shift].shape == out and all(uses[name] == 1 for name in own)


def _fold(convolution: OperatorDef, affine: OperatorDef, known: dict[str, Array]) -> OperatorDef:
    """Returns the convolution that does both; `known` gets its weights under their own names, its bias under the shift's."""
    weight, (scale, shift) = convolution.inputs[1], affine.inputs[1:]
    known[weight] = known[weight] * known[scale][:, None, None, None]
    bias = shift
    if len(convolution.inputs) > 2:
        bias = convolution.inputs[2]
        known[bias] = known[bias] * known[scale] + known[shift]
    return replace(convolution, inputs=(convolution.inputs[0], weight, bias), outputs=affine.outputs)
