from __future__ import annotations

import numpy as np

from roiline.ops.anchors.centred import generate_centred_anchors


def test_corners_are_rounded_around_zero():
    anchors = generate_centred_anchors((32,), (0.5, 1.0, 2.0))
    assert anchors.tolist() == [[-23, -11, 23, 11], [-16, -16, 16, 16], [-11, -23, 11, 23]]


def test_ratios_come_before_sizes():
    anchors = generate_centred_anchors((32, 64), (1.0, 4.0))
    assert anchors.tolist() == [[-16, -16, 16, 16], [-32, -32, 32, 32], [-8, -32, 8, 32], [-16, -64, 16, 64]]


def test_halves_are_rounded_to_even():
    assert np.array_equal(generate_centred_anchors((5,), (1.0,)), [[-2, -2, 2, 2]])
    assert np.array_equal(generate_centred_anchors((7,), (1.0,)), [[-4, -4, 4, 4]])
