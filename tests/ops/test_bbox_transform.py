from __future__ import annotations

import numpy as np
import pytest
from golden_cases import caffe2_cases
from operator_forms import FORMS

from roiline.ops.bbox_transform import BBOX_TRANSFORM


def _attributes(version: str, args: dict) -> dict:
    size = float(args.get("legacy_plus_one", True)) if version == "1.8.1" else 1.0
    corner = size if version == "1.8.1" else float(args.get("correct_transform_coords", False))
    given = {"weights": args["weights"]} if "weights" in args else {}
    return {"size_offset": size, "corner_offset": corner, "apply_scale": int(args.get("apply_scale", True)), **given}


@pytest.mark.golden
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("version", "case"), caffe2_cases("BBoxTransform"))
def test_matches_caffe2(form, version, case):
    got = FORMS[form](BBOX_TRANSFORM, case.inputs, **_attributes(version, case.args))
    for array, expected in zip(got, case.outputs, strict=False):
        assert array.dtype == expected.dtype
        np.testing.assert_allclose(array, expected, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_rois_of_one_picture_need_no_image_column(form, rows):
    rng = np.random.default_rng(rows)
    low = rng.uniform(0, 100, (rows, 2))
    boxes = np.concatenate([low, low + rng.uniform(5, 60, (rows, 2))], axis=1).astype(np.float32)
    deltas = rng.normal(0, 0.5, (rows, 8)).astype(np.float32)
    im_info = np.array([[128, 160, 1.25]], np.float32)
    short = FORMS[form](BBOX_TRANSFORM, (boxes, deltas, im_info))
    long = FORMS[form](BBOX_TRANSFORM, (np.insert(boxes, 0, 0, axis=1), deltas, im_info))
    for one, other in zip(short, long, strict=True):
        np.testing.assert_array_equal(one, other)
    assert short[1].tolist() == [rows]


@pytest.mark.parametrize("form", FORMS)
def test_boxes_are_clipped_to_the_rounded_size(form):
    rois = np.array([[0, 0, 0, 1000, 1000]], np.float32)
    (boxes, _) = FORMS[form](
        BBOX_TRANSFORM, (rois, np.zeros((1, 4), np.float32), np.array([[101, 103, 2]], np.float32)), apply_scale=0
    )
    assert boxes.tolist() == [[0, 0, 51, 50]]
