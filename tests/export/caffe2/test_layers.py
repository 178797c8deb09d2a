from __future__ import annotations

import numpy as np
import pytest
from caffe2_nets import encode_operator, export_net, run_model

from roiline.core.errors import ExportError

RNG = np.random.default_rng(7)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def run_operator(folder, kind, x, fills=None, args=None, more=()):
    """Runs a net of one operator on x (and `more` inputs) and returns its first output."""
    fills = fills or {}
    feeds = {"x": x, **{f"x{i}": array for i, array in enumerate(more)}}
    operator = encode_operator(kind, [*feeds, *fills], ["y"], args)
    report = export_net(folder, [operator], list(feeds), ["y"], fills or None)
    return run_model(report.path, feeds)["y"]


def convolve(x, w, b, stride, pads, dilation, group):
    """Returns a convolution by its definition."""
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    (kh, kw), per = w.shape[2:], w.shape[1]
    height = (x.shape[2] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    width = (x.shape[3] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    y = np.zeros((len(x), len(w), height, width))
    for o in range(len(w)):
        first = o // (len(w) // group) * per
        for i in range(height):
            for j in range(width):
                rows = slice(i * stride[0], i * stride[0] + dilation[0] * (kh - 1) + 1, dilation[0])
                columns = slice(j * stride[1], j * stride[1] + dilation[1] * (kw - 1) + 1, dilation[1])
                y[:, o, i, j] = (x[:, first : first + per, rows, columns] * w[o]).sum(axis=(1, 2, 3)) + b[o]
    return y


@pytest.mark.parametrize(
    ("args", "kernel", "stride", "pads", "dilation", "group"),
    [
        ({"kernel": 3}, (3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1),
        ({"kernels": [3, 2], "strides": [2, 1]}, (3, 2), (2, 1), (0, 0, 0, 0), (1, 1), 1),
        ({"kernel_h": 1, "kernel_w": 3, "stride_h": 1, "stride_w": 2}, (1, 3), (1, 2), (0, 0, 0, 0), (1, 1), 1),
        ({"kernel": 3, "pads": [1, 0, 2, 1], "group": 2}, (3, 3), (1, 1), (1, 0, 2, 1), (1, 1), 2),
        ({"kernel": 2, "pad_t": 1, "pad_l": 2, "pad_b": 0, "pad_r": 1}, (2, 2), (1, 1), (1, 2, 0, 1), (1, 1), 1),
        ({"kernel": 3, "dilation": 2, "pad": 2, "group": 4}, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 4),
    ],
)
def test_conv_reads_every_spelling(tmp_path, args, kernel, stride, pads, dilation, group):
    x, w, b = normal(2, 4, 7, 8), normal(4, 4 // group, *kernel), normal(4)
    got = run_operator(tmp_path, "Conv", x, {"w": w, "b": b}, args)
    np.testing.assert_allclose(got, convolve(x, w, b, stride, pads, dilation, group), atol=1e-5)


def test_conv_transpose_adds_rows_at_the_end(tmp_path):
    got = run_operator(
        tmp_path, "ConvTranspose", normal(1, 2, 3, 3), {"w": normal(2, 3, 2, 2)}, {"kernel": 2, "stride": 2, "adj": 1}
    )
    assert got.shape == (1, 3, 7, 7)
    assert (got[:, :, 6] == 0).all()


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("pad", [0, 1])
def test_caffe_pooling_rounds_sizes_up(tmp_path, kind, pad):
    x = normal(1, 2, 6, 8)
    got = run_operator(tmp_path, kind, x, None, {"kernel": 3, "stride": 2, "pad": pad, "legacy_pad": 3})
    reduce = np.max if kind == "MaxPool" else np.mean
    height, width = (int(np.ceil((size + 2 * pad - 3) / 2)) + 1 for size in (6, 8))
    assert got.shape == (1, 2, height, width)
    for i in range(height):
        for j in range(width):
            rows = slice(max(2 * i - pad, 0), min(2 * i - pad + 3, 6))
            columns = slice(max(2 * j - pad, 0), min(2 * j - pad + 3, 8))
            np.testing.assert_allclose(got[0, :, i, j], reduce(x[0, :, rows, columns], axis=(1, 2)), atol=1e-6)


def test_pooling_with_other_legacy_pads(tmp_path):
    x = normal(1, 2, 6, 8)
    valid = run_operator(tmp_path, "MaxPool", x, None, {"kernel": 3, "stride": 2, "pad": 1, "legacy_pad": 1})
    assert valid.shape == (1, 2, 2, 3)
    with pytest.raises(ExportError, match="legacy_pad 2"):
        run_operator(tmp_path, "MaxPool", x, None, {"kernel": 3, "legacy_pad": 2})
    with pytest.raises(ExportError, match="beyond kernel"):
        run_operator(tmp_path, "MaxPool", x, None, {"kernel": 1, "stride": 2, "legacy_pad": 3})


def test_affine_channel_on_an_input_of_the_net(tmp_path):
    x, s, b = normal(2, 3, 4, 5), normal(3), normal(3)
    got = run_operator(tmp_path, "AffineChannel", x, {"s": s, "b": b})
    np.testing.assert_allclose(got, x * s[:, None, None] + b[:, None, None], atol=1e-6)


def test_spatial_bn_at_test_time(tmp_path):
    x = normal(2, 3, 4, 5)
    blobs = {"s": normal(3), "b": normal(3), "mean": normal(3), "var": np.abs(normal(3)) + 0.5}
    got = run_operator(tmp_path, "SpatialBN", x, blobs, {"is_test": 1, "epsilon": 1e-3})
    s, b, mean, var = (blob[:, None, None] for blob in blobs.values())
    np.testing.assert_allclose(got, (x - mean) / np.sqrt(var + 1e-3) * s + b, atol=1e-5)
    with pytest.raises(ExportError, match="is_test"):
        run_operator(tmp_path, "SpatialBN", x, blobs)


def test_group_norm_of_no_image(tmp_path):
    x = np.zeros((0, 4, 3, 3), np.float32)
    got = run_operator(tmp_path, "GroupNorm", x, {"s": normal(4), "b": normal(4)}, {"group": 2})
    assert got.shape == x.shape
    with pytest.raises(ExportError, match="4 channels do not make 3 groups"):
        run_operator(tmp_path, "GroupNorm", x, {"s": normal(4), "b": normal(4)}, {"group": 3})


def test_group_spatial_softmax(tmp_path):
    x = normal(2, 6, 3, 4)
    got = run_operator(tmp_path, "GroupSpatialSoftmax", x, None, {"num_classes": 3})
    blocks = np.exp(x.reshape(2, 2, 3, 3, 4))
    np.testing.assert_allclose(got, (blocks / blocks.sum(axis=2, keepdims=True)).reshape(x.shape), atol=1e-6)


def test_fc_takes_rows_or_maps_and_no_rows(tmp_path):
    w, b = normal(3, 8), normal(3)
    rows = run_operator(tmp_path, "FC", normal(0, 8), {"w": w, "b": b})
    assert rows.shape == (0, 3)
    pool = encode_operator("MaxPool", ["x"], ["p"], {"kernel": 1})
    report = export_net(tmp_path, [pool, encode_operator("FC", ["p", "w", "b"], ["y"])], ["x"], ["y"], {"w": w, "b": b})
    x = normal(5, 2, 2, 2)
    np.testing.assert_allclose(run_model(report.path, {"x": x})["y"], x.reshape(5, 8) @ w.T + b, atol=1e-5)
    assert run_model(report.path, {"x": x[:0]})["y"].shape == (0, 3)


@pytest.mark.parametrize(
    ("kind", "fills", "args", "message"),
    [
        ("Conv", {"w": (2, 3, 3, 3)}, {"kernel": 3, "order": "NHWC"}, "NHWC"),
        ("Conv", {"w": (2, 3, 3, 3)}, {"kernel": 5}, r"`w`: expected shape \('\?', '\?', 5, 5\), got \(2, 3, 3, 3\)"),
        ("Conv", {"w": (2, 3, 3, 3)}, {}, "no argument `kernel`"),
        ("Conv", {"w": (2, 3, 3, 3), "b": (4,)}, {"kernel": 3}, r"`b`: expected shape \(2,\)"),
        ("Conv", {"w": (2, 3, 3, 3)}, {"kernel": 3, "stride": 0}, "must be positive"),
        ("Conv", {"w": (2, 3, 3, 3)}, {"kernels": [3, 3, 3]}, "two dimensions"),
        ("Conv", {"w": (2, 3, 3, 3)}, {"kernel": 3, "pads": [1, 1]}, "expected four"),
        ("Conv", {"w": (2, 3, 3, 3)}, {"kernel": 3, "legacy_pad": 1}, "legacy_pad 1"),
        ("Conv", {"w": (2, 3, 3, 3)}, {"kernel": "three"}, "argument `kernel`: expected an integer"),
        ("FC", {"w": (2, 3), "b": (2,)}, {"axis": 2}, "axis 2"),
        ("LRN", {}, {"size": 4}, "positive odd"),
        ("ResizeNearest", {}, {"width_scale": 0.0}, "positive ones"),
        ("UpsampleBilinear", {}, {"width_scale": "a"}, "expected a number"),
        ("AveragePool", {}, {"kernel": 2, "dilation": 2}, "dilation"),
    ],
)
def test_what_cannot_be_translated_is_said(tmp_path, kind, fills, args, message):
    with pytest.raises(ExportError, match=message) as caught:
        run_operator(tmp_path, kind, normal(1, 3, 6, 6), {name: normal(*shape) for name, shape in fills.items()}, args)
    assert f"operator {kind} that makes y" in str(caught.value)
