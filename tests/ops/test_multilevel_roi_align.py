from __future__ import annotations

import numpy as np
import pytest
from golden_cases import golden_cases
from operator_forms import FORMS

from roiline.ops.multilevel_roi_align import MULTILEVEL_ROI_ALIGN, align_rois, assign_levels

FPN = {"roi_min_level": 2, "roi_max_level": 5, "roi_canonical_level": 4, "roi_canonical_scale": 224}


def _five_columns(rois: np.ndarray) -> np.ndarray:
    missing = np.zeros((len(rois), 5 - rois.shape[1]), np.float32)
    return np.concatenate([missing, rois], axis=1)


@pytest.mark.golden
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", golden_cases("ops/caffe2_torch_1.8.1", "RoIAlign"))
def test_pools_as_caffe2(form, case):
    (feature, rois), (expected,), args = case.inputs, case.outputs, case.args
    if args.get("order") == "NHWC":
        feature, expected = (np.ascontiguousarray(array.transpose(0, 3, 1, 2)) for array in (feature, expected))
    (got,) = FORMS[form](
        MULTILEVEL_ROI_ALIGN,
        (_five_columns(rois), feature),
        spatial_scales=[args["spatial_scale"]],
        resolution=args["pooled_h"],
        resolution_across=args["pooled_w"],
        sampling_ratio=args.get("sampling_ratio", 0),
        half_pixel=int(args.get("aligned", False)),
    )
    empty = np.isnan(expected)
    if case.name == "RoIAlign_064":
        # RoI 4 has no width: aligned, its adaptive grid has no sample. Caffe2 divides 0 by 0; ONNX Runtime, detectron2, torchvision and
        # this operator say 0. It is the only case, and the only RoI in it, where the original is not a number.
        assert empty[4].all()
        assert empty.sum() == expected[4].size
        assert (got[4] == 0).all()
    else:
        assert not empty.any()
    np.testing.assert_allclose(got[~empty], expected[~empty], atol=2e-6)
    assert got.shape == expected.shape


def _levels(form: str, boxes: np.ndarray, args: dict) -> np.ndarray:
    """Reads the level of each box off maps that hold their own level; the scale is so small that all samples lie in one cell."""
    args = {**FPN, **args}
    levels = range(args["roi_min_level"], args["roi_max_level"] + 1)
    maps = [np.full((1, 1, 2, 2), level, np.float32) for level in levels]
    (pooled,) = FORMS[form](
        MULTILEVEL_ROI_ALIGN,
        (_five_columns(boxes), *maps),
        spatial_scales=[1e-9] * len(maps),
        resolution=1,
        sampling_ratio=1,
        min_level=args["roi_min_level"],
        canonical_level=args["roi_canonical_level"],
        canonical_scale=float(args["roi_canonical_scale"]),
        size_offset=float(args.get("legacy_plus_one", True)),
    )
    return np.rint(pooled.reshape(-1)).astype(int)


def _check_distribution(form: str, rois: np.ndarray, groups: tuple, restore: np.ndarray, args: dict) -> None:
    levels = _levels(form, rois[:, 1:], args)
    order = []
    for level, group in enumerate(groups, start=args.get("roi_min_level", 2)):
        here = np.flatnonzero(levels == level)
        np.testing.assert_array_equal(rois[here], group)
        order.extend(here)
    np.testing.assert_array_equal(np.argsort(order), restore)


@pytest.mark.golden
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", golden_cases("ops/caffe2_torch_1.8.1", "DistributeFpnProposals"))
def test_distributes_as_caffe2(form, case):
    *groups, restore = case.outputs
    _check_distribution(form, case.inputs[0], groups, restore, case.args)


@pytest.mark.golden
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "case",
    golden_cases("ops/caffe2_torch_1.8.1", "CollectAndDistributeFpnRpnProposals")
    + golden_cases("detectron_py", "CollectAndDistribute_python"),
)
def test_distributes_what_was_collected(form, case):
    rois, *groups, restore = case.outputs
    _check_distribution(form, rois, groups, restore, case.args)


@pytest.mark.golden
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", golden_cases("detectron_py", "add_multilevel_roi_blobs"))
def test_distributes_as_detectron(form, case):
    *groups, restore = case.outputs
    args = {"roi_min_level": case.args["lvl_min"], "roi_max_level": case.args["lvl_max"]}
    _check_distribution(form, case.inputs[0], groups, restore, args)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("side", "level"),
    [(1, 2), (55, 2), (111, 2), (112, 3), (223, 3), (224, 4), (447, 4), (448, 5), (896, 5)],
)
def test_level_of_a_square(form, side, level):
    box = np.array([[10, 20, 10 + side - 1, 20 + side - 1]], np.float32)
    assert _levels(form, box, {}).tolist() == [level]


def test_forms_agree_to_the_last_float_at_every_boundary():
    sides = [np.float32(112), np.float32(224), np.float32(448)]
    near = []
    for side in sides:
        value = side
        for _ in range(200):
            value = np.nextafter(value, np.float32(0))
        for _ in range(400):
            near.append(value)
            value = np.nextafter(value, np.float32(1e9))
    boxes = np.zeros((len(near), 4), np.float32)
    boxes[:, 2:] = np.array(near, np.float32)[:, None]
    args = {"legacy_plus_one": False}
    expected = _levels("reference", boxes, args)
    assert set(expected) == {2, 3, 4, 5}
    np.testing.assert_array_equal(_levels("function", boxes, args), expected)


def test_boxes_without_area_belong_to_the_finest_level():
    boxes = np.array([[5, 5, 3, 3], [5, 5, 5, 5]], np.float32)
    levels = assign_levels(boxes, min_level=2, max_level=5, canonical_level=4, canonical_scale=224.0, size_offset=0.0)
    assert levels.tolist() == [2, 2]


def test_a_constant_map_pools_to_its_constant():
    feature = np.full((2, 3, 8, 9), 7.0, np.float32)
    rois = np.array([[1, 2, 2, 6, 6], [0, 1, 1, 7, 5]], np.float32)
    pooled = align_rois(feature, rois, spatial_scale=1.0, pooled_size=(2, 3), sampling_ratio=0, half_pixel=False)
    assert pooled.shape == (2, 3, 2, 3)
    np.testing.assert_allclose(pooled, 7.0, rtol=1e-6)
