"""Transposed convolutions against their definition, and the fixed bilinear ones against OpenCV's bilinear resizing."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from graph_runs import make_blobs, run_graph

from roiline.export.graph import GraphWriter
from roiline.export.layers import Feature, Kernel
from roiline.export.upsampling import (
    bilinear_kernel,
    doubling_kernel,
    enlarged_size,
    write_bilinear,
    write_conv_transpose,
)


def _conv_transpose(x, weight, bias, kernel):
    """The definition: every cell spreads its weighted kernel over the result."""
    count, _, height, width = x.shape
    size, stride, pad = kernel.size, kernel.stride, kernel.pad
    canvas = np.zeros((count, weight.shape[1], (height - 1) * stride + size, (width - 1) * stride + size))
    for row in range(height):
        for column in range(width):
            spread = np.einsum("nc,cdij->ndij", x[:, :, row, column], weight)
            canvas[:, :, row * stride : row * stride + size, column * stride : column * stride + size] += spread
    end = (canvas.shape[2] - pad, canvas.shape[3] - pad)
    return canvas[:, :, pad : end[0], pad : end[1]] + bias[:, None, None]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
def test_doubling_is_the_transposed_convolution(size):
    kernel = doubling_kernel(size)
    g = GraphWriter({})
    y = write_conv_transpose(g, Feature("x", 3), "up", kernel, purpose="test", out=2, name="y")
    x = np.random.default_rng(size).normal(size=(2, 3, 5, 5)).astype(np.float32)
    blobs = make_blobs(g)
    expected = _conv_transpose(x, blobs["up_w"], blobs["up_b"], kernel)
    result = run_graph(g, blobs, {"x": x}, ["y"])["y"]
    assert y == Feature("y", 2)
    assert result.shape[2:] == (enlarged_size(5, kernel),) * 2
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_the_weights_decide_a_width_that_nothing_else_fixes():
    g = GraphWriter({"up_w": (3, 7, 2, 2)})
    assert write_conv_transpose(g, Feature("x", 3), "up", Kernel(2, stride=2), purpose="test").channels == 7


def _bilinear_weights(channels, factor):
    size = 2 * factor
    weights = 1 - np.abs(np.arange(size) - (size - 1) / 2) / factor
    blob = np.zeros((channels, channels, size, size), np.float32)
    blob[range(channels), range(channels)] = np.outer(weights, weights)
    return blob


@pytest.mark.parametrize("factor", [2, 4])
def test_the_stored_layer_is_bilinear_resizing_inside_the_map(factor):
    g = GraphWriter({})
    y = write_bilinear(g, Feature("x", 3), "up", factor, purpose="test")
    assert bilinear_kernel(factor) == Kernel(2 * factor, stride=factor, pad=factor // 2)
    blobs = {"up_w": _bilinear_weights(3, factor), "up_b": np.zeros(3, np.float32)}
    assert {need.name: need.shape for need in g.requirements} == {name: blob.shape for name, blob in blobs.items()}
    x = np.random.default_rng(0).normal(size=(1, 3, 6, 6)).astype(np.float32)
    result = run_graph(g, blobs, {"x": x}, [y.name])[y.name]
    expected = np.stack([cv2.resize(channel, (6 * factor, 6 * factor)) for channel in x[0]])
    inside = slice(factor, -factor)
    np.testing.assert_allclose(result[0, :, inside, inside], expected[:, inside, inside], atol=1e-5)
