from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from run_support import make_spec

from roiline.core.errors import ExportError, ModelError
from roiline.core.spec import spec_from_json


def read_changed(change: dict[str, Any]) -> None:
    """Reads a good specification back with one value changed; keys are paths of fields."""
    plain = json.loads(make_spec().to_json())
    for path, value in change.items():
        *folders, last = path.split(".")
        place = plain
        for folder in folders:
            place = place[folder]
        place[last] = value
    spec_from_json(json.dumps(plain), where="m.onnx")


def test_a_good_specification_comes_back() -> None:
    spec = make_spec()
    assert spec_from_json(spec.to_json(), where="m.onnx") == spec


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seams": {}}, "said to be for proposals and detections, but has no seam `proposals`"),
        ({"seams.detections": []}, "has no seam `detections`"),
        ({"seams.detections": ["a"]}, "seams.detections: expected the names of 4 tensors, got 1"),
        ({"seams.masks": ["m"]}, "seam `masks`, but no `mask_rois`"),
        ({"seams.masks": ["m"]}, "seam `masks`, but no rules for it"),
        ({"images": None}, "for pictures, but says nothing of them"),
        ({"images.pad_multiple": 10**9}, "images.pad_multiple: expected at least 1 and at most 65536, got 1000000000"),
        ({"images.pad_multiple": -1}, "images.pad_multiple: .*, got -1"),
        ({"images.pad_multiple": 0}, "images.pad_multiple: .*, got 0"),
        ({"images.scale": 0}, "images.scale: .*, got 0"),
        ({"images.scale": 10**6}, "images.scale: .*, got 1000000"),
        ({"images.max_size": -5}, "images.max_size: .*, got -5"),
        ({"images.stds": [1, 0, 1]}, "images.stds: expected numbers other than 0"),
        ({"images.divisor": 0}, "images.divisor: expected a number above 0"),
        ({"images.scale": 10**30}, "specification.images.scale: expected an integer"),
        ({"images.means": [1, 10**400, 1]}, r"images.means\[1\]: expected a finite number"),
        ({"detection.score_thresh": float("nan")}, "detection.score_thresh: expected a finite number"),
        ({"detection.bbox_reg_weights": [1, 1, 0, 1]}, "bbox_reg_weights: expected numbers other than 0"),
        ({"detection.first_class": 7}, "detection.first_class: expected at least 0 and at most 1"),
        ({"masks": {"resolution": 0, "threshold": 0.5}}, "masks.resolution: .*, got 0"),
        (
            {"keypoints": {"count": 10**9, "min_size": 0, "confidence": "bbox", "nms_oks": False}},
            "keypoints.count: .*, got 1000000000",
        ),
    ],
)
def test_what_no_run_can_work_with_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        read_changed(change)
    assert str(caught.value).startswith("m.onnx: ")


def test_what_could_not_be_read_again_is_not_written() -> None:
    spec = make_spec()
    assert spec.images is not None
    with pytest.raises(ExportError, match=r"images\.scale: expected at least 1 .*, got 0"):
        replace(spec, images=replace(spec.images, scale=0)).to_json()
