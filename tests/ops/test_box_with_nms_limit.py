from __future__ import annotations

import numpy as np
import pytest
from golden_cases import golden_cases
from operator_forms import FORMS

from roiline.core.errors import ConfigError, DataError, ExportError
from roiline.ops.box_with_nms_limit import BOX_WITH_NMS_LIMIT

NAMES = {
    "score_thresh": "score_thresh",
    "nms": "nms_thresh",
    "detections_per_im": "max_dets",
    "cls_agnostic_bbox_reg": "class_agnostic",
    "input_boxes_include_bg_cls": "boxes_have_background",
    "output_classes_include_bg_cls": "classes_have_background",
    "soft_nms_sigma": "soft_nms_sigma",
    "soft_nms_min_score_thres": "soft_nms_score_thresh",
}
CASES = golden_cases("ops/caffe2_torch_1.8.1", "BoxWithNMSLimit")


def _attributes(args: dict) -> dict:
    named = {NAMES[name]: int(v) if isinstance(v, bool) else v for name, v in args.items() if name in NAMES}
    soft = args["soft_nms_method"] if args.get("soft_nms_enabled") else ""
    return {**named, "size_offset": float(args.get("legacy_plus_one", True)), "soft_nms": soft}


def _raise_kept(inputs: tuple[np.ndarray, ...], outputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Returns inputs whose scores are a hair higher where the original kept a box: the order it chose among equal scores."""
    scores, boxes = inputs
    raised, by_class = scores.copy(), boxes.reshape(len(scores), -1, 4)
    for score, box, label in zip(*outputs[:3], strict=True):
        column = int(label)
        row = np.flatnonzero((by_class[:, column] == box).all(axis=1) & (scores[:, column] == score))[0]
        raised[row, column] += np.float32(1e-4)
    return raised, boxes


@pytest.mark.golden
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_matches_caffe2(form, case):
    attributes = _attributes(case.args)
    if case.error is not None:
        with pytest.raises(DataError, match=r"BoxWithNMSLimit: boxes have shape \(\d+, 8\), expected \(\d+, 4\)"):
            FORMS["reference"](BOX_WITH_NMS_LIMIT, case.inputs, **attributes)
        return
    if form != "reference" and attributes["soft_nms"]:
        with pytest.raises(ExportError, match="soft-NMS"):
            FORMS[form](BOX_WITH_NMS_LIMIT, case.inputs, **attributes)
        return
    if "score_ties" in case.tags:
        got = FORMS[form](BOX_WITH_NMS_LIMIT, _raise_kept(case.inputs, case.outputs), **attributes)
        ours, theirs = ({(*box, label) for box, label in zip(o[1], o[2], strict=True)} for o in (got, case.outputs))
        assert ours == theirs
        np.testing.assert_allclose(np.sort(got[0]), np.sort(case.outputs[0]), atol=2e-4)
        return
    got = FORMS[form](BOX_WITH_NMS_LIMIT, case.inputs, **attributes)
    # Gaussian decay is computed in double precision by the original, in single precision here.
    atol = 2e-7 if attributes["soft_nms"] == "gaussian" else 0
    for array, expected in zip(got, case.outputs, strict=False):
        assert array.dtype == expected.dtype
        np.testing.assert_allclose(array, expected, atol=atol, rtol=0)


@pytest.mark.parametrize("form", FORMS)
def test_equal_scores_at_the_limit_keep_the_lower_class_and_row(form):
    scores = np.array([[0, 0.5, 0.5], [0, 0.5, 0.5], [0, 0.4, 0.6]], np.float32)
    boxes = np.tile(np.array([[0, 0, 9, 9], [20, 0, 29, 9], [40, 0, 49, 9]], np.float32), (1, 3))
    kept = FORMS[form](BOX_WITH_NMS_LIMIT, (scores, boxes), max_dets=3)
    assert kept[0].tolist() == [0.5, 0.5, np.float32(0.6)]
    assert kept[2].tolist() == [1, 1, 2]
    assert kept[4].tolist() == [0, 1, 2]
    assert kept[5].tolist() == [[0, 2, 1]]


@pytest.mark.parametrize("form", FORMS)
def test_of_boxes_without_area_only_the_best_survives_without_plus_one(form):
    boxes = np.tile(np.array([[5, 5, 5, 5], [50, 5, 50, 9], [7, 7, 9, 9]], np.float32), (1, 2))
    scores = np.array([[0, 0.5], [0, 0.7], [0, 0.6]], np.float32)
    assert FORMS[form](BOX_WITH_NMS_LIMIT, (scores, boxes), size_offset=0.0)[4].tolist() == [1, 2]
    assert FORMS[form](BOX_WITH_NMS_LIMIT, (scores, boxes), size_offset=1.0)[4].tolist() == [1, 2, 0]


def test_an_unknown_soft_nms_method_is_named():
    with pytest.raises(ConfigError, match="linear, gaussian, hard, not 'quadratic'"):
        FORMS["reference"](
            BOX_WITH_NMS_LIMIT, (np.ones((1, 2), np.float32), np.ones((1, 8), np.float32)), soft_nms="quadratic"
        )
