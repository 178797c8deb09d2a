from __future__ import annotations

import numpy as np
import pytest
from golden_cases import golden_cases

from roiline.core.boxes import box_areas, box_ious, clip_boxes, xywh_from_xyxy, xyxy_from_xywh


@pytest.mark.golden
@pytest.mark.parametrize("case", golden_cases("detectron_py", "bbox_overlaps"))
def test_ious_match_detectron(case):
    ious = box_ious(*case.inputs)
    assert ious.dtype == np.float32
    np.testing.assert_allclose(ious, case.outputs[0], atol=1e-7, rtol=0)


@pytest.mark.golden
@pytest.mark.parametrize("case", golden_cases("detectron_py", "boxes_area"))
def test_areas_match_detectron(case):
    np.testing.assert_array_equal(box_areas(case.inputs[0]), case.outputs[0])


@pytest.mark.golden
@pytest.mark.parametrize("case", golden_cases("detectron_py", "xyxy_to_xywh"))
def test_xywh_matches_detectron(case):
    np.testing.assert_array_equal(xywh_from_xyxy(case.inputs[0]), case.outputs[0])


@pytest.mark.golden
@pytest.mark.parametrize("case", golden_cases("detectron_py", "xywh_to_xyxy"))
def test_xyxy_matches_detectron(case):
    np.testing.assert_array_equal(xyxy_from_xywh(case.inputs[0]), case.outputs[0])


@pytest.mark.golden
@pytest.mark.parametrize("case", golden_cases("detectron_py", "clip_boxes_to_image", "clip_tiled_boxes"))
def test_clipping_matches_detectron(case):
    (boxes,), (expected,), args = case.inputs, case.outputs, case.args
    height, width = args["im_shape"][:2] if "im_shape" in args else (args["height"], args["width"])
    clipped = clip_boxes(boxes.reshape(-1, 4), height, width)
    np.testing.assert_array_equal(clipped.reshape(expected.shape), expected)


def test_without_plus_one_a_point_has_no_area_and_no_overlap():
    point = np.array([[3, 3, 3, 3]], np.float32)
    assert box_areas(point).tolist() == [1]
    assert box_areas(point, plus_one=0.0).tolist() == [0]
    assert box_ious(point, point, plus_one=0.0).tolist() == [[0]]


def test_the_far_corner_without_plus_one_is_the_size_itself():
    box = np.array([[-5, -5, 500, 500]], np.float32)
    assert clip_boxes(box, 40, 60, plus_one=0.0).tolist() == [[0, 0, 60, 40]]
    assert clip_boxes(box, 40, 60).tolist() == [[0, 0, 59, 39]]


@pytest.mark.parametrize(("first", "second"), [(0, 3), (3, 0), (0, 0)])
def test_no_boxes_have_no_ious(first, second):
    assert box_ious(np.ones((first, 4), np.float32), np.ones((second, 4), np.float32)).shape == (first, second)


def test_inputs_are_left_alone():
    boxes = np.array([[1, 2, 3, 4]], np.float32)
    xyxy_from_xywh(boxes)
    xywh_from_xyxy(boxes)
    assert boxes.tolist() == [[1, 2, 3, 4]]
