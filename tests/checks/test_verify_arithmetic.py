"""The reference's layers against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from roiline.checks.verify.arithmetic import convolve, enlarge_bilinear, transpose_convolve


@pytest.mark.parametrize(
    ("stride", "pad", "dilation", "groups"), [(1, 0, 1, 1), (2, 1, 1, 1), (1, 2, 2, 2), (2, 3, 1, 4)]
)
def test_a_convolution_is_what_its_definition_says(stride: int, pad: int, dilation: int, groups: int) -> None:
    random = np.random.default_rng(0)
    x, weight = random.normal(size=(2, 4, 9, 8)), random.normal(size=(8, 4 // groups, 3, 3))
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    height, width = ((side + 2 * pad - 2 * dilation - 1) // stride + 1 for side in (9, 8))
    expected = np.zeros((2, 8, height, width))
    for n, out, row, column in np.ndindex(expected.shape):
        group = out // (8 // groups)
        taken = padded[n, group * (4 // groups) : (group + 1) * (4 // groups)]
        top, left = row * stride, column * stride
        seen = taken[:, top : top + 2 * dilation + 1 : dilation, left : left + 2 * dilation + 1 : dilation]
        expected[n, out, row, column] = (seen * weight[out]).sum()
    shape = {"stride": stride, "pad": pad, "dilation": dilation, "groups": groups}
    got = convolve(x.astype(np.float32), weight.astype(np.float32), **shape)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_a_transposed_convolution_undoes_the_geometry_of_a_convolution() -> None:
    random = np.random.default_rng(1)
    x, y = random.normal(size=(1, 3, 8, 8)), random.normal(size=(1, 5, 4, 4))
    weight = random.normal(size=(5, 3, 4, 4))
    forward = convolve(x.astype(np.float32), weight.astype(np.float32), stride=2, pad=1)
    back = transpose_convolve(y.astype(np.float32), weight.astype(np.float32), np.zeros(3, np.float32), stride=2, pad=1)
    assert back.shape == x.shape
    assert (forward * y).sum() == pytest.approx((x * back).sum(), rel=1e-4)


def test_bilinear_enlargement_keeps_the_border() -> None:
    x = np.array([[[[0.0, 4.0]]]], np.float32)
    np.testing.assert_allclose(enlarge_bilinear(x, 2)[0, 0, 0], [0, 1, 3, 4])
