"""Holds the kernels of RoI pools to what is particular to them: bits, half precision, padding, and RoIs that are none."""

from __future__ import annotations

import numpy as np
import pytest
from operator_cases import ALIGN, GRID, POOL, TRANSFORM, FormCase, make_feed
from operator_forms import need_host_compiler, run_function, run_kernels, run_lowered, run_reference

from roiline.ops.kernel_host import run_on_host
from roiline.ops.multilevel_roi_align import MULTILEVEL_ROI_ALIGN
from roiline.ops.operator import Operator
from roiline.ops.trim import TRIM

POOLS = [
    pytest.param(case, attributes, id=f"{case.operator.name}-{variation}")
    for case in (ALIGN, POOL, GRID)
    for variation, attributes in case.variations.items()
]
ROWS = (33, 0, 21)


@pytest.mark.parametrize(("case", "attributes"), POOLS)
def test_pools_are_onnx_runtimes_to_the_last_bit(case: FormCase, attributes):
    feed = make_feed(case, attributes, ROWS)
    (expected,) = run_function(case.operator, feed, **attributes)
    (got,) = run_kernels(case.operator, feed, **attributes)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("case", [POOL, GRID], ids=lambda case: case.operator.name)
def test_pools_are_the_reference_to_the_last_bit(case: FormCase):
    for attributes in case.variations.values():
        feed = make_feed(case, attributes, ROWS)
        np.testing.assert_array_equal(
            run_kernels(case.operator, feed, **attributes)[0], run_reference(case.operator, feed, **attributes)[0]
        )


@pytest.mark.parametrize(("case", "attributes"), POOLS)
def test_half_precision_maps_are_pooled_in_single_precision(case: FormCase, attributes):
    rois, *maps = make_feed(case, attributes, ROWS)
    half = [one.astype(np.float16) for one in maps]
    (expected,) = run_kernels(case.operator, (rois, *(one.astype(np.float32) for one in half)), **attributes)
    (got,) = _pool(case.operator, (rois, *half), attributes)
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, expected.astype(np.float16))


def _pool(operator: Operator, arrays: tuple[np.ndarray, ...], attributes: dict) -> tuple[np.ndarray, ...]:
    need_host_compiler()
    (kernel,) = operator.kernels
    return run_on_host(kernel, arrays, operator.complete(attributes))


@pytest.mark.parametrize(("case", "attributes"), POOLS)
def test_padding_is_passed_over(case: FormCase, attributes):
    rois, *maps = make_feed(case, attributes, ROWS)
    (plain,) = run_kernels(case.operator, (rois, *maps), **attributes)
    padded = np.repeat(rois, 2, axis=0)
    padded[1::2] = (-1, 0, 0, 0, 0)
    padded[3::4, 1:] = np.nan
    padded[5::8, 0] = len(ROWS)
    (pooled,) = run_kernels(case.operator, (padded, *maps), **attributes)
    np.testing.assert_array_equal(pooled[::2], plain)
    assert (pooled[1::2] == 0).all()


@pytest.mark.parametrize(("case", "attributes"), POOLS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_rois_that_are_no_boxes_end_and_harm_nothing(value, case: FormCase, attributes):
    rois, *maps = make_feed(case, attributes, (8,))
    strange = rois.copy()
    for row in range(4):
        strange[2 * row, 1 + row] = value
    (plain,) = run_kernels(case.operator, (rois, *maps), **attributes)
    (pooled,) = run_kernels(case.operator, (strange, *maps), **attributes)
    np.testing.assert_array_equal(pooled[1::2], plain[1::2])


def test_an_empty_bin_is_zero():
    feature = np.full((1, 2, 4, 4), 3.0, np.float32)
    rois = np.array([[0, 2, 1, 2, 3]], np.float32)
    settings = {"spatial_scales": [1.0], "resolution": 2, "sampling_ratio": 0, "half_pixel": 1}
    assert (run_kernels(MULTILEVEL_ROI_ALIGN, (rois, feature), **settings)[0] == 0).all()


def test_rows_after_the_count_are_padding():
    boxes = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    (rois,) = run_lowered(TRIM, (boxes, np.array([2, 0], np.int64)))
    assert rois.tolist() == [[0, 0, 1, 2, 3], [0, 4, 5, 6, 7]] + [[-1, 0, 0, 0, 0]] * 4


def test_padding_is_no_pictures_box():
    rois, deltas, info = make_feed(TRANSFORM, {}, (5, 0, 3))
    padded, spread = np.full((16, 5), -1, np.float32), np.full((16, deltas.shape[1]), np.nan, np.float32)
    padded[::2], spread[::2] = rois, deltas
    boxes, counts = run_lowered(TRANSFORM.operator, (padded, spread, info))
    expected, _ = run_lowered(TRANSFORM.operator, (rois, deltas, info))
    np.testing.assert_array_equal(boxes[::2], expected)
    assert (boxes[1::2] == 0).all()
    assert counts.tolist() == [5, 0, 3]
