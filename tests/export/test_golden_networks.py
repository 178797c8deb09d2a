"""Exported networks against the original programs, blob by blob and at their answers.

A few cases of every family run always; all of them run when golden tests are asked for (`pytest -m golden`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from model_cases import BOX_TOLERANCE, SCORE_TOLERANCE, ModelCase, build_case
from shared_data import shared_files
from thin_models import open_session

from roiline.core.spec import ModelSpec
from roiline.export.detectron.config import load_config
from roiline.export.detectron.exporter import export_detectron
from roiline.export.detectron.source import architecture_from_config
from roiline.export.networks import write_network
from roiline.infer.pictures import read_picture
from roiline.infer.preparation import prepare_picture

ALWAYS = {
    "cascade_R50_FPN_2stages_b",
    "cascade_R50_FPN_gn_a",
    "fast_R50_FPN_P2only_a",
    "faster_R50_C4_tiny",
    "faster_R50_FPN_Xconv1fc_b",
    "faster_R50_FPN_fpngn_b",
    "faster_R50_FPN_gnbody_gn1_a",
    "faster_R50_FPN_levels_b",
    "faster_VGG16_roipool_b",
    "faster_VGG_CNN_M_1024_a",
    "mask_R50_FPN_v1up_b",
    "opt_bboxreg_off_b",
    "pkl_no_bboxregweights_a",
    "retinanet_R101_FPN_b",
    "rpn_R50_C4_anchors_b",
    "rpn_VGG16_b",
}
ON_THE_HOST = ("_tta", "softnms", "_vote", "aug_", "nmsoks")
"""Cases whose answers a run makes on the host from the network's seams."""
NO_PICTURE = {"retinanet_R50_FPN_default"}
"""Its picture is not among the stored files."""
BLOB_TOLERANCE = 2e-4


def _cases() -> list[object]:
    found = [*shared_files("golden/e2e/*.json"), *shared_files("golden/e2e_more/*.json")]
    known = [case for case in found if case.values[0] is not None]
    wanted = [case for case in known if not any(part in case.id for part in (*ON_THE_HOST, "stability", *NO_PICTURE))]
    return [
        case if case.id in ALWAYS else pytest.param(*case.values, id=case.id, marks=pytest.mark.golden)
        for case in wanted
    ] or found[:1]


def _given_rois(case: ModelCase, spec: ModelSpec, scale: float) -> dict[str, np.ndarray]:
    """Makes RoIs of the case's proposals as the original does: equal ones after rounding are one, in the order of their hashes."""
    boxes = case.expected["box_proposals"]
    rois = np.concatenate([np.zeros((len(boxes), 1)), boxes * scale], axis=1).astype(np.float32)
    hashes = np.round(rois * spec.given_proposals.dedup).dot(np.array([1, 1e3, 1e6, 1e9, 1e12]))
    _, first, index = np.unique(hashes, return_index=True, return_inverse=True)
    return {"rois": rois[first], "roi_index": index.astype(np.int64), "roi_count": np.array([len(boxes)], np.int64)}


def _run(case: ModelCase, folder: Path) -> tuple[ModelSpec, dict[str, np.ndarray]]:
    """Exports the case with every blob tapped that the original's record has too, and runs it."""
    config = load_config(case.cfg, case.overrides)
    network = write_network(architecture_from_config(config, proposals_only=False), {})
    blobs = network.graph.blobs
    if network.conventions.ties == "quicksort" and "boxes" in blobs:
        blobs = blobs[: blobs.index("boxes")]  # what follows the detections stands in their order
    taps = [name for name in map(str, case.expected.get("stat_names", ())) if name in blobs]
    spec = export_detectron(case.cfg, case.weights, folder / "m.onnx", overrides=case.overrides, taps=taps).spec
    picture = read_picture(case.picture)
    prepared = prepare_picture(picture, spec.images)
    feeds = {
        "data": prepared.pixels[None],
        "im_info": np.array([[*prepared.pixels.shape[1:], prepared.scale]], np.float32),
        "im_size": np.array([picture.shape[:2]], np.float32),
    }
    if spec.given_proposals is not None:
        feeds |= _given_rois(case, spec, prepared.scale)
    session = open_session(folder / "m.onnx")
    names = [tensor.name for tensor in session.get_outputs()]
    results = session.run(names, {tensor.name: feeds[tensor.name] for tensor in session.get_inputs()})
    return spec, dict(zip(names, results, strict=True))


def _check_blobs(case: ModelCase, got: dict[str, np.ndarray]) -> None:
    recorded = zip(*(case.expected[f"stat_{part}"] for part in ("names", "samples", "values")), strict=True)
    seen = 0
    for name, samples, (size, _, _, largest) in recorded:
        if str(name) not in got:
            continue
        flat = got[str(name)].reshape(-1)
        assert flat.size == size, name
        chosen = flat[np.linspace(0, flat.size - 1, min(64, flat.size)).astype(np.int64)] if flat.size else flat
        far = np.abs(chosen - samples[: len(chosen)]).max(initial=0.0)
        assert far <= BLOB_TOLERANCE * max(largest, 1e-3), f"{name}: {far} of {largest}"
        seen += 1
    assert seen > 5


def _check_detections(case: ModelCase, spec: ModelSpec, got: dict[str, np.ndarray]) -> None:
    if spec.conventions.ties == "quicksort":
        return  # a run finishes such models on the host (tests/test_golden_models.py): a graph cannot know the sort's order
    expected = case.expected["dets_x1y1x2y2_score_class"]
    boxes, scores, classes, count = (got[name] for name in spec.seams["detections"])
    assert count[0] == len(expected)
    rows = np.concatenate([boxes[0], scores[0][:, None], classes[0][:, None]], axis=1)[: count[0]]
    np.testing.assert_array_equal(rows[:, 5], expected[:, 5])
    np.testing.assert_allclose(rows[:, :4], expected[:, :4], atol=BOX_TOLERANCE, rtol=0)
    np.testing.assert_allclose(rows[:, 4], expected[:, 4], atol=SCORE_TOLERANCE, rtol=0)


def _check_proposals(case: ModelCase, spec: ModelSpec, got: dict[str, np.ndarray]) -> None:
    boxes, scores, count = (got[name] for name in spec.seams["proposals"])
    assert count[0] == len(case.expected["proposal_boxes"])
    np.testing.assert_allclose(boxes[0], case.expected["proposal_boxes"], atol=BOX_TOLERANCE, rtol=0)
    np.testing.assert_allclose(scores[0], case.expected["proposal_scores"].reshape(-1), atol=SCORE_TOLERANCE, rtol=0)


@pytest.mark.parametrize("description", _cases())
def test_network_computes_what_the_original_does(description, tmp_path, request):
    asked = "golden" in request.config.getoption("markexpr")
    if not asked and request.node.get_closest_marker("golden"):
        pytest.skip("one of many whole-model cases; `pytest -m golden` runs them all")
    case = build_case(description, tmp_path)
    spec, got = _run(case, tmp_path)
    if "stat_names" in case.expected:
        _check_blobs(case, got)
    if "detections" in spec.seams:
        _check_detections(case, spec, got)
    else:
        _check_proposals(case, spec, got)
