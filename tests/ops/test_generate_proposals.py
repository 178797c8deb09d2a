from __future__ import annotations

import numpy as np
import pytest
from golden_cases import caffe2_cases, golden_case, golden_cases
from operator_forms import FORMS

from roiline.ops.generate_proposals import GENERATE_PROPOSALS

CLIP = float(np.log(1000.0 / 16.0))
DEFAULTS = {"pre_nms_topN": 6000, "post_nms_topN": 300, "nms_thresh": 0.7, "min_size": 16.0, "spatial_scale": 0.0625}
NO_NMS = {"nms_thresh": 1.0, "post_nms_topN": 0}
TIES = {"score_ties", "topk_ties"}


def _attributes(args: dict, **convention: object) -> dict:
    return {
        "pre_nms_top_n": args["pre_nms_topN"],
        "post_nms_top_n": args["post_nms_topN"],
        "nms_thresh": args["nms_thresh"],
        "min_size": args["min_size"],
        "delta_clip": CLIP,
        **convention,
    }


def _caffe2(args: dict, version: str) -> dict:
    size, corner = 1.0, 1.0
    if version == "1.8.1":
        size = corner = float(args.get("legacy_plus_one", True))
    else:
        corner = float(args.get("correct_transform_coords", False))
    empty = int(size == 0)
    return {
        "size_offset": size,
        "corner_offset": corner,
        "nms_inclusive": 0,
        "min_size_in_network": 1,
        "one_empty_box": empty,
    }


def _run(form: str, inputs: tuple[np.ndarray, ...], args: dict, **convention: object) -> tuple[np.ndarray, np.ndarray]:
    """Returns rois (R, 5) and scores (R,) as the original lays them out."""
    scores, deltas, im_info, anchors = inputs
    stride = np.full(2, 1.0 / args["spatial_scale"], np.float32)
    boxes, kept, count = FORMS[form](
        GENERATE_PROPOSALS,
        (scores, deltas, im_info, anchors.astype(np.float32), stride),
        **_attributes(args, **convention),
    )
    rows = [
        np.concatenate([np.full((n, 1), image, np.float32), boxes[image, :n]], axis=1) for image, n in enumerate(count)
    ]
    return np.concatenate(rows), np.concatenate([kept[image, :n] for image, n in enumerate(count)])


def _prefer(inputs: tuple[np.ndarray, ...], args: dict, rois: np.ndarray, **convention: object) -> np.ndarray:
    """Returns the scores, raised by a hair where the original kept a box: the order it chose among equal scores."""
    scores, deltas, im_info, anchors = inputs
    free = {**args, "pre_nms_topN": 0, "nms_thresh": 1.0, "post_nms_topN": 0, "min_size": 0.0}
    marked = np.arange(scores.size, dtype=np.float32).reshape(scores.shape)
    boxes, order = _run("reference", (marked, deltas, im_info, anchors), free, **{**convention, "nms_inclusive": 0})
    flat = scores.copy().reshape(-1)
    for roi in rois:
        near = np.flatnonzero(np.abs(boxes - roi).max(axis=1) < 2e-3)
        flat[order[near].astype(int)] += np.float32(1e-4)
    return flat.reshape(scores.shape)


def _check(
    form: str, inputs: tuple, args: dict, rois: np.ndarray, probs: np.ndarray, tags: tuple, **convention: object
):
    if TIES & set(tags):
        raised = _prefer(inputs, args, rois, **convention)
        got = _run(form, (raised, *inputs[1:]), args, **convention)
        assert got[0].shape == rois.shape
        far = np.abs(got[0][:, None] - rois[None]).max(axis=2).min(axis=0)
        assert far.max() < 2e-3
        np.testing.assert_allclose(np.sort(got[1]), np.sort(probs.reshape(-1)), atol=3e-4)
        return
    got = _run(form, inputs, args, **convention)
    np.testing.assert_allclose(got[1], probs.reshape(-1), atol=1e-6)
    np.testing.assert_allclose(got[0], rois, atol=2e-3)


@pytest.mark.golden
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("version", "case"), caffe2_cases("GenerateProposals", "GenerateProposalsCPP"))
def test_matches_caffe2(form, version, case):
    args = {**DEFAULTS, **case.args}
    _check(form, case.inputs, args, *case.outputs, case.tags, **_caffe2(args, version))


@pytest.mark.golden
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", golden_cases("detectron_py", "GenerateProposalsOp_python"))
def test_matches_detectron(form, case):
    source = golden_case("ops/caffe2_torch_1.8.1", case.note.split("case ")[1])
    args = {**DEFAULTS, **case.args}
    off = args["nms_thresh"] <= 0
    _check(
        form, source.inputs, {**args, **(NO_NMS if off else {})}, *case.outputs, case.tags, nms_inclusive=int(not off)
    )
