"""Layers of a NetDef: convolutions, pooling, fully connected layers, normalisation and resizing, each as ONNX nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from roiline.export.caffe2.translation import Call

_NCHW = (None, None, None, None)
_MOST_GROUPS = 1 << 16
_VALID, _CAFFE = 1, 3  # values of `legacy_pad`; 0: none, 2: SAME


@dataclass(frozen=True, slots=True)
class Window:
    """Is the geometry of a layer that slides over a map, in ONNX's order: (height, width), pads (top, left, bottom, right)."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]

    @property
    def pooling(self) -> Mapping[str, Any]:
        """Is the attributes that every such node has."""
        return {"kernel_shape": self.kernel, "strides": self.strides, "pads": self.pads}


def read_window(call: Call) -> Window:
    """Reads kernel, stride, pad and dilation in all spellings that Caffe2 has for them."""
    call.expect_order()
    kernel = _pair(call, "kernel", None)
    pads = call.integers("pads")
    if pads is None:
        pads = (call.integer("pad", 0),) * 4
        if call.has("pad_t"):
            pads = tuple(call.integer(f"pad_{side}", 0) for side in "tlbr")
    if len(pads) != 4 or min(pads) < 0:
        call.refuse(f"pads {pads}: expected four that are not negative (maps of two dimensions)")
    window = Window(kernel, _pair(call, "stride", 1), (pads[0], pads[1], pads[2], pads[3]), _pair(call, "dilation", 1))
    if min(*window.kernel, *window.strides, *window.dilations) < 1:
        call.refuse(f"kernel {window.kernel}, stride {window.strides}, dilation {window.dilations}: must be positive")
    return window


def _pair(call: Call, name: str, default: int | None) -> tuple[int, int]:
    several = call.integers(f"{name}s")
    if several is not None:
        if len(several) != 2:
            call.refuse(f"{name}s {several}: only maps of two dimensions are translated")
        return several[0], several[1]
    if call.has(f"{name}_h") or call.has(f"{name}_w"):
        return call.integer(f"{name}_h", default or 0), call.integer(f"{name}_w", default or 0)
    if default is None and not call.has(name):
        call.refuse(f"it has no argument `{name}`")
    both = call.integer(name, default or 0)
    return both, both


def translate_conv(call: Call) -> None:
    """Translates Conv; weights (out, in / group, h, w)."""
    window, group = read_window(call), call.integer("group", 1)
    weight = call.weight(1, (None, None, *window.kernel), "weights")
    out, per_group = weight.dim(0), weight.dim(1)
    x = call.blob(0, (None, None if per_group is None else per_group * group, None, None))
    inputs = [x.name, weight.name]
    if call.count() > 2:
        inputs.append(call.weight(2, (out,), "bias").name)
    _refuse_legacy_pad(call)
    call.write(
        "Conv", *inputs, shape=(None, out, None, None), group=group, dilations=window.dilations, **window.pooling
    )


def translate_conv_transpose(call: Call) -> None:
    """Translates ConvTranspose; weights (in, out / group, h, w), as in ONNX."""
    window, group = read_window(call), call.integer("group", 1)
    weight = call.weight(1, (None, None, *window.kernel), "weights")
    x = call.blob(0, (None, weight.dim(0), None, None))
    per_group = weight.dim(1)
    out = None if per_group is None else per_group * group
    inputs = [x.name, weight.name]
    if call.count() > 2:
        inputs.append(call.weight(2, (out,), "bias").name)
    _refuse_legacy_pad(call)
    extra = _pair(call, "adj", 0)
    call.write(
        "ConvTranspose", *inputs, shape=(None, out, None, None), group=group, output_padding=extra, **window.pooling
    )


def _refuse_legacy_pad(call: Call) -> None:
    if call.integer("legacy_pad", 0):
        call.refuse(f"legacy_pad {call.integer('legacy_pad', 0)} is not translated here")


def translate_max_pool(call: Call) -> None:
    """Translates MaxPool."""
    _translate_pool(call, "MaxPool", "GlobalMaxPool", {})


def translate_average_pool(call: Call) -> None:
    """Translates AveragePool, whose mean is over real cells only unless `count_include_pad`."""
    include = {"count_include_pad": int(call.flag("count_include_pad", False))}
    _translate_pool(call, "AveragePool", "GlobalAveragePool", include)


def _translate_pool(call: Call, op_type: str, global_type: str, attributes: Mapping[str, Any]) -> None:
    call.expect_order()
    x = call.blob(0, _NCHW)
    if call.flag("global_pooling", False):
        call.write(global_type, x.name, shape=(None, x.dim(1), 1, 1))
        return
    window = read_window(call)
    if window.dilations != (1, 1):
        call.refuse(f"dilation {window.dilations} is not translated here")
    legacy = call.integer("legacy_pad", 0)
    if legacy not in (0, _VALID, _CAFFE):
        call.refuse(f"legacy_pad {legacy} is not translated")
    geometry = dict(window.pooling)
    if legacy == _VALID:
        geometry["pads"] = (0, 0, 0, 0)
    if legacy == _CAFFE:
        _refuse_skipping(call, window)
        geometry["ceil_mode"] = 1
    call.write(op_type, x.name, shape=(None, x.dim(1), None, None), **geometry, **attributes)


def _refuse_skipping(call: Call, window: Window) -> None:
    """Rounding the size up agrees between the two only where the last window begins on the map."""
    if any(stride > size for stride, size in zip(window.strides, window.kernel, strict=True)):
        call.refuse(f"stride {window.strides} beyond kernel {window.kernel} with sizes rounded up is not translated")


def translate_fc(call: Call) -> None:
    """Translates FC: y = x W^T + b over rows; axes before `axis` are rows, the others are flattened."""
    axis, weight_axis = call.integer("axis", 1), call.integer("axis_w", 1)
    if axis != 1 or weight_axis != 1:
        call.refuse(f"axis {axis}, axis_w {weight_axis}: only 1 is translated")
    x, weight = call.blob(0), call.weight(1, (None, None), "weights")
    bias = call.weight(2, (weight.dim(0),), "bias")
    width = weight.dim(1)
    if x.rank in (None, 2):  # rows, as far as anyone can tell
        x = call.blob(0, (None, width))
    rows = x.name if x.rank == 2 else call.graph.op("Flatten", x.name, axis=1)
    call.write("Gemm", rows, weight.name, bias.name, shape=(x.dim(0), weight.dim(0)), transB=1)


def translate_softmax(call: Call) -> None:
    """Translates Softmax, which is over all axes from `axis` on together."""
    x, axis = call.blob(0), call.integer("axis", 1)
    if x.rank is not None and axis in (x.rank - 1, -1):
        call.write("Softmax", x.name, like=x, axis=-1)
        return
    rows = call.graph.op("Flatten", x.name, axis=axis)
    call.write("Reshape", call.graph.op("Softmax", rows, axis=1), call.graph.op("Shape", x.name), like=x, allowzero=1)


def translate_affine_channel(call: Call) -> None:
    """Translates AffineChannel: y = x s + b per channel."""
    call.expect_order()
    scale, bias = call.weight(1, (None,), "scale"), call.weight(2, (None,), "bias")
    x = call.blob(0, (None, scale.dim(0), None, None))
    per_channel = [call.graph.unsqueeze(blob.name, 1, 2) for blob in (scale, bias)]
    call.write("Add", call.graph.op("Mul", x.name, per_channel[0]), per_channel[1], like=x)


def translate_spatial_bn(call: Call) -> None:
    """Translates SpatialBN at test time."""
    call.expect_order()
    if not call.flag("is_test", False):
        call.refuse("is_test is not set: this is a net for training")
    names = ("scale", "bias", "mean", "variance")
    weights = [call.weight(index, (None,), name) for index, name in enumerate(names, start=1)]
    x = call.blob(0, (None, weights[0].dim(0), None, None))
    epsilon = call.number("epsilon", 1e-5)
    call.write("BatchNormalization", x.name, *(w.name for w in weights), like=x, epsilon=epsilon)


def translate_group_norm(call: Call) -> None:
    """Translates GroupNorm: normalised over the channels of a group and all cells (Wu and He, 2018), then per channel scaled."""
    call.expect_order()
    g, groups = call.graph, call.integer("group", 32)
    scale, bias = call.weight(1, (None,), "scale"), call.weight(2, (None,), "bias")
    channels = scale.dim(0)
    x = call.blob(0, (None, channels, None, None))
    if not 1 <= groups <= _MOST_GROUPS or (channels is not None and channels % groups):
        call.refuse(f"{channels} channels do not make {groups} groups")
    size = g.op("Shape", x.name)
    (images,) = g.dims(x.name, 0)
    per_group = g.op("Div", g.op("ReduceProd", g.op("Shape", x.name, start=1), g.ints(0), keepdims=1), g.ints(groups))
    ones, zeros = (g.constant(np.full(groups, value, np.float32)) for value in (1.0, 0.0))
    normal = g.op(
        "InstanceNormalization",
        g.reshape(x.name, images, groups, per_group),
        ones,
        zeros,
        epsilon=call.number("epsilon", 1e-5),
    )
    normal = g.op("Reshape", normal, size, allowzero=1)
    per_channel = [g.unsqueeze(blob.name, 1, 2) for blob in (scale, bias)]
    call.write("Add", g.op("Mul", normal, per_channel[0]), per_channel[1], like=x)


def translate_lrn(call: Call) -> None:
    """Translates LRN across channels."""
    call.expect_order()
    x = call.blob(0, _NCHW)
    size = call.integer("size", 0)
    if size < 1 or size % 2 == 0:
        call.refuse(f"size {size}: expected a positive odd number")
    terms: dict[str, Any] = {
        "alpha": call.number("alpha", 0.0),
        "beta": call.number("beta", 0.0),
        "bias": call.number("bias", 1.0),
    }
    call.write("LRN", x.name, like=x, size=size, **terms)


def translate_upsample_nearest(call: Call) -> None:
    """Translates UpsampleNearest by a whole number."""
    scale = float(call.integer("scale", 2))
    _write_nearest(call, scale, scale)


def translate_resize_nearest(call: Call) -> None:
    """Translates ResizeNearest: the cell at floor(index / scale)."""
    if call.count() > 1:
        call.refuse("scales given as a blob are not translated")
    _write_nearest(call, call.number("height_scale", 1.0), call.number("width_scale", 1.0))


def _write_nearest(call: Call, down: float, across: float) -> None:
    call.expect_order()
    x = call.blob(0, _NCHW)
    call.write(
        "Resize",
        x.name,
        "",
        _scales(call, down, across),
        shape=(None, x.dim(1), None, None),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def translate_upsample_bilinear(call: Call) -> None:
    """Translates UpsampleBilinear, which keeps the corner cells in place."""
    call.expect_order()
    if call.count() > 1:
        call.refuse("scales given as a blob are not translated")
    x = call.blob(0, _NCHW)
    scales = _scales(call, call.number("height_scale", 1.0), call.number("width_scale", 1.0))
    call.write(
        "Resize",
        x.name,
        "",
        scales,
        shape=(None, x.dim(1), None, None),
        mode="linear",
        coordinate_transformation_mode="align_corners",
    )


def _scales(call: Call, down: float, across: float) -> str:
    if down <= 0 or across <= 0:
        call.refuse(f"scales {down}, {across}: expected positive ones")
    return call.graph.constant(np.array([1.0, 1.0, down, across], np.float32))


def translate_group_spatial_softmax(call: Call) -> None:
    """Translates GroupSpatialSoftmax: softmax over each block of `num_classes` channels, cell by cell."""
    call.expect_order()
    g, classes = call.graph, call.integer("num_classes", 81)
    if classes < 1:
        call.refuse(f"num_classes {classes}: expected a positive number")
    x = call.blob(0, _NCHW)
    images, height, width = g.dims(x.name, 0, 2, 3)
    blocks = g.op("Div", g.dims(x.name, 1)[0], g.ints(classes))
    soft = g.op("Softmax", g.reshape(x.name, images, blocks, classes, height, width), axis=2)
    call.write("Reshape", soft, g.op("Shape", x.name), like=x, allowzero=1)
