"""Mask and keypoint heads of whole models on the original's own RoIs: every layer, and what the host makes of the maps."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import pytest
from model_cases import ModelCase, build_case
from shared_data import shared_path

from roiline.core.spec import ModelSpec
from roiline.engines.model_file import read_spec
from roiline.engines.protocol import Device, Engine, Stage
from roiline.engines.registry import open_engine
from roiline.export.detectron.exporter import export_detectron
from roiline.infer.preparation import prepare_picture
from roiline.ops.keypoint_decode import decode_keypoints
from roiline.ops.mask_paste import paste_masks
from roiline.ops.oks_nms import nms_oks

MASKS = {
    "e2e/mask_R50_FPN_gn_small": ("_mask_roi_feat", "_mask_fcn1", "_mask_fcn4_gn", "conv5_mask", "mask_fcn_logits"),
    "e2e_more/mask_R50_C4_v0upshare_a": ("_[mask]_pool5", "_[mask]_res5_0_branch2c_bn", "_[mask]_res5_2_sum"),
    "e2e_more/mask_R50_FPN_fcout_b": ("_[mask]_fcn4", "conv5_mask", "mask_fcn_logits"),
    "e2e_more/mask_R50_FPN_v1up4convs_a": ("_[mask]_roi_feat", "_[mask]_fcn1", "_[mask]_fcn4"),
}
KEYPOINTS = {
    "e2e_more/keypoint_R50_FPN_deconv_b": ("_[pose]_roi_feat", "conv_fcn2", "kps_deconv"),
    "e2e_more/keypoint_R50_FPN_deconvout_b": ("conv_fcn8", "kps_score_lowres"),
    "e2e_more/keypoint_R50_FPN_nmsoks_a": ("conv_fcn1", "kps_score_lowres"),
}


@dataclass
class Head:
    """Is a model cut down to the body and one head, with the original's RoIs to feed it."""

    case: ModelCase
    spec: ModelSpec
    engine: Engine
    picture: np.ndarray
    feeds: dict[str, np.ndarray]


def _open_head(name, folder, kind, blobs):
    """Exports a case and opens the stage from the picture and the head's RoIs to its maps and some blobs."""
    case = build_case(shared_path(f"golden/{name}.json"), folder)
    model = folder / "model.onnx"
    export_detectron(case.cfg, case.weights, model, overrides=case.overrides)
    spec = read_spec(model)
    stage = Stage(outputs=(*spec.seams[kind[0]], *blobs), inputs=spec.seams[kind[1]])
    engine = open_engine(model, engine="onnxruntime", device=Device(threads=1), stage=stage)
    picture = cv2.imread(str(case.picture))
    detected = case.expected["dets_x1y1x2y2_score_class"]
    rows = (case.expected[f"blob/{kind[1]}"], detected[:, 5].astype(np.int64))
    pixels = prepare_picture(picture, spec.images).pixels
    feeds = {"data": pixels[None], **dict(zip(spec.seams[kind[1]], rows, strict=False))}
    return Head(case, spec, engine, picture, feeds)


def _assert_same_samples(expected, outputs, blobs):
    """Compares blobs with the original's size and 64 samples of them, relative to the greatest value."""
    names = list(expected["stat_names"])
    for blob in blobs:
        size, _, _, greatest = expected["stat_values"][names.index(blob)]
        flat = outputs[blob].reshape(-1)
        assert flat.size == size, blob
        samples = flat[np.linspace(0, flat.size - 1, 64).astype(np.int64)]
        wanted = expected["stat_samples"][names.index(blob)]
        np.testing.assert_allclose(samples, wanted, rtol=0, atol=1e-5 * greatest, err_msg=blob)


@pytest.mark.parametrize(("name", "blobs"), MASKS.items(), ids=(name.split("/")[1] for name in MASKS))
def test_golden_masks(name, blobs, tmp_path):
    head = _open_head(name, tmp_path, ("masks", "mask_rois"), (*blobs, "mask_fcn_probs"))
    outputs = head.engine.run(head.feeds)
    _assert_same_samples(head.case.expected, outputs, blobs)
    some = head.case.expected["blob/mask_fcn_probs"]
    np.testing.assert_allclose(outputs["mask_fcn_probs"][: len(some)], some, rtol=0, atol=5e-5)
    boxes = head.case.expected["dets_x1y1x2y2_score_class"][:, :4].astype(np.float32)
    pasted = paste_masks(outputs["masks"], boxes, *head.picture.shape[:2], threshold=head.spec.masks.threshold)
    originals = [counts.encode() for _, _, counts in head.case.info["segms_rle"]]
    assert len(pasted) == len(originals)
    same = sum(ours == theirs for ours, theirs in zip(pasted, originals, strict=True))
    assert same >= len(originals) - 1  # a pixel whose probability is the threshold to 1e-6 may fall on either side
    _assert_no_rows(head, {"masks": (0, head.spec.masks.resolution, head.spec.masks.resolution)})


@pytest.mark.parametrize(("name", "blobs"), KEYPOINTS.items(), ids=(name.split("/")[1] for name in KEYPOINTS))
def test_golden_keypoints(name, blobs, tmp_path):
    head = _open_head(name, tmp_path, ("keypoints", "keypoint_rois"), blobs)
    outputs = head.engine.run(head.feeds)
    expected, rules = head.case.expected, head.spec.keypoints
    _assert_same_samples(expected, outputs, blobs)
    (name,) = head.spec.seams["keypoints"]
    some = expected["blob/kps_score"]
    np.testing.assert_allclose(outputs[name][: len(some)], some, rtol=0, atol=2e-5 * max(1, np.abs(some).max()))
    boxes = expected["blob/keypoint_rois"][:, 1:] / np.float32(head.case.info["im_scale"])
    keypoints = decode_keypoints(outputs[name], boxes, min_size=rules.min_size)
    if rules.nms_oks:
        kept = nms_oks(keypoints, boxes)
        detected = expected["dets_x1y1x2y2_score_class"]
        np.testing.assert_allclose(boxes[kept], detected[:, :4], rtol=0, atol=1e-3)
        keypoints = keypoints[kept]
    np.testing.assert_allclose(keypoints[:, :2], expected["keypoints_xyls"][:, :2], rtol=0, atol=0.05)
    np.testing.assert_allclose(keypoints[:, 2:], expected["keypoints_xyls"][:, 2:], rtol=1e-3, atol=1e-4)
    _assert_no_rows(head, {name: (0, rules.count, *outputs[name].shape[2:])})


def _assert_no_rows(head, shapes):
    """A picture without detections gives maps without rows."""
    empty = {name: rows if name == "data" else rows[:0] for name, rows in head.feeds.items()}
    outputs = head.engine.run(empty)
    assert {name: outputs[name].shape for name in shapes} == shapes
    head.engine.close()
