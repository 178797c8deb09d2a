from __future__ import annotations

import numpy as np
import pytest
from golden_cases import golden_cases

from roiline.ops.anchors import generate_anchors


@pytest.mark.golden
@pytest.mark.parametrize("case", golden_cases("detectron_py", "generate_anchors"))
def test_matches_detectron(case):
    anchors = generate_anchors(case.args["stride"], case.args["sizes"], case.args["aspect_ratios"])
    assert anchors.dtype == np.float64
    np.testing.assert_allclose(anchors, case.outputs[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("stride", "sizes", "ratio", "expected"),
    [
        (16, (32, 512), 0.5, [(-15, -4, 30, 19), (-360, -184, 375, 199)]),
        (16, (32, 512), 1, [(-8, -8, 23, 23), (-248, -248, 263, 263)]),
        (16, (32, 512), 2, [(-3, -14, 18, 29), (-168, -344, 183, 359)]),
        (4, (32,), 0.5, [(-22, -10, 25, 13)]),
        (32, (256,), 0.5, [(-164, -72, 195, 103)]),
        (64, (512,), 2, [(-148, -328, 211, 391)]),
    ],
)
def test_sides_are_rounded_half_to_even_at_stride_size(stride, sizes, ratio, expected):
    np.testing.assert_allclose(generate_anchors(stride, sizes, (ratio,)), expected, atol=1e-10)


def test_ratios_are_the_outer_loop():
    anchors = generate_anchors(8, (32, 64), (1, 2))
    areas = (anchors[:, 2] - anchors[:, 0] + 1) * (anchors[:, 3] - anchors[:, 1] + 1)
    assert (areas[[1, 3]] == 4 * areas[[0, 2]]).all()
