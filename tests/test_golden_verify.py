"""Every golden whole-model case: the exported model is the network of its checkpoint, and the reference is the original program's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from detectron2_cases import FOLDER, build_detectron2_case, recipe_of
from model_cases import BOX_TOLERANCE, SCORE_TOLERANCE, ModelCase, build_case
from shared_data import shared_files

from roiline.checks.verify.detectron2_plan import read_detectron2_source
from roiline.checks.verify.detectron_plan import read_detectron_source
from roiline.checks.verify.heads import RawRows
from roiline.checks.verify.pictures import NetworkInput, prepare_input
from roiline.checks.verify.plan import ReferenceSource
from roiline.checks.verify.reference import Reference
from roiline.checks.verify.verification import Picture, load_pictures, verify_model
from roiline.export.detectron.exporter import export_detectron
from roiline.export.detectron2.exporter import export_detectron2
from roiline.infer.pictures import read_picture

ALWAYS = {"faster_R50_FPN_tiny", "faster_VGG_CNN_M_1024_a"}
ALWAYS_DETECTRON2 = "faster_R18_FPN_a"
NOT_A_CASE = {"stability"}
ON_THE_HOST = ("_tta", "softnms", "_vote", "aug_", "nmsoks")
"""Cases whose record is of what a run does on the host; their networks are those of other cases."""
SAME_NETWORK = ("opt_", *ON_THE_HOST)
BLOB_TOLERANCE = 2e-4


def _cases() -> list[Any]:
    found = [*shared_files("golden/e2e/*.json"), *shared_files("golden/e2e_more/*.json")]
    known = [case for case in found if case.values[0] is not None and case.id not in NOT_A_CASE]
    if not known:
        return found[:1]
    return [pytest.param(*case.values, id=case.id, marks=_marks(case.id)) for case in known]


def _marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
    """Every network once is golden; a second checkpoint of one, and cases that differ in what follows it, are exhaustive."""
    if name in ALWAYS:
        return ()
    repeats = name.endswith("_b") or any(part in name for part in SAME_NETWORK)
    return (pytest.mark.exhaustive,) if repeats else (pytest.mark.golden,)


def _read(description: Path, folder: Path) -> tuple[ModelCase, ReferenceSource]:
    case = build_case(description, folder)
    return case, read_detectron_source(case.cfg, case.weights, case.overrides)


@pytest.mark.parametrize("description", _cases())
def test_the_exported_model_is_the_network_of_its_checkpoint(description: Path, tmp_path: Path) -> None:
    case, source = _read(description, tmp_path)
    model = tmp_path / "model.onnx"
    export_detectron(case.cfg, case.weights, model, overrides=case.overrides)
    found = verify_model(model, source, load_pictures([case.picture]))
    assert found.failed is None, found.failed.worst


def _verify_detectron2(name: str, folder: Path) -> None:
    case = build_detectron2_case(name, folder)
    model = folder / "model.onnx"
    export_detectron2(case.cfg, case.weights, model)
    pictures = [Picture(name, recipe_of(image["recipe"])) for image in case.info["images"]]
    found = verify_model(model, read_detectron2_source(case.cfg, case.weights), pictures)
    assert found.failed is None, found.failed.worst


def test_a_detectron2_model_is_the_network_of_its_checkpoint(tmp_path: Path) -> None:
    _verify_detectron2(ALWAYS_DETECTRON2, tmp_path)


@pytest.mark.golden
@pytest.mark.parametrize("description", shared_files(f"{FOLDER}/*_*.json"))
def test_every_detectron2_model_is_the_network_of_its_checkpoint(description: Path, tmp_path: Path) -> None:
    _verify_detectron2(description.stem, tmp_path)


@pytest.mark.parametrize("description", _cases())
def test_the_reference_computes_what_the_original_did(description: Path, tmp_path: Path) -> None:
    case, source = _read(description, tmp_path)
    if "stat_names" not in case.expected or any(part in case.name for part in ON_THE_HOST):
        pytest.skip("the case records no blobs of the network alone")
    worst = _compare_blobs(case, source)
    assert len(worst) > 5
    assert max(worst.values()) < BLOB_TOLERANCE, max(worst.items(), key=lambda pair: pair[1])


def _compare_blobs(case: ModelCase, source: ReferenceSource) -> dict[str, float]:
    """Returns for every recorded blob the largest difference of its samples over its largest value."""
    names = map(str, case.expected["stat_names"])
    recorded = dict(
        zip(names, zip(case.expected["stat_samples"], case.expected["stat_values"], strict=True), strict=True)
    )
    worst: dict[str, float] = {}

    def compare(stage: str, name: str, values: np.ndarray) -> None:
        del stage
        if name not in recorded:
            return
        samples, (size, _, _, largest) = recorded[name]
        flat = values.reshape(-1)
        assert flat.size == size, name
        chosen = flat[np.linspace(0, flat.size - 1, min(64, flat.size)).astype(np.int64)] if flat.size else flat
        worst[name] = float(np.abs(chosen - samples[: len(chosen)]).max(initial=0.0)) / max(float(largest), 1e-3)

    reference, network_input = Reference(source), prepare_input(read_picture(case.picture), source.plan.images)
    features = reference.features(network_input.data, compare)
    if source.plan.dense is not None:
        reference.dense_maps(features, compare)
    elif source.plan.rpn is not None:
        proposals = reference.choose_proposals(reference.rpn_maps(features, compare), network_input)
        rois = np.concatenate([np.zeros((len(proposals.boxes), 1), np.float32), proposals.boxes], axis=1)
        if "blob/rois" in case.expected:  # the original's own order, which is another among equal scores
            rois = _pair_with_recorded(rois, case.expected["blob/rois"])
        if source.plan.boxes is not None and len(rois):
            _check_answers(case, reference, reference.boxes(features, rois, network_input, compare), network_input)
    return worst


def _pair_with_recorded(rois: np.ndarray, recorded: np.ndarray) -> np.ndarray:
    """Returns the recorded RoIs once each of them is known to be one of ours, and the reverse, in any order."""
    assert len(rois) == len(recorded)
    distances = np.abs(rois[None, :, 1:] - recorded[:, None, 1:]).max(axis=2)
    assert distances.min(axis=1).max() < BOX_TOLERANCE
    assert distances.min(axis=0).max() < BOX_TOLERANCE
    return np.asarray(recorded, np.float32)


def _check_answers(case: ModelCase, reference: Reference, raw: RawRows, network_input: NetworkInput) -> None:
    found = reference.detections(raw, network_input)
    expected = case.expected["dets_x1y1x2y2_score_class"]
    if has_no_ties(case):
        assert len(found.scores) == len(expected)
        np.testing.assert_allclose(found.scores, expected[:, 4], atol=SCORE_TOLERANCE, rtol=0)
        np.testing.assert_allclose(found.boxes, expected[:, :4], atol=BOX_TOLERANCE, rtol=0)


def has_no_ties(case: ModelCase) -> bool:
    """Says that no two boxes of a class score the same: else the original's sort decides which are left."""
    scores = case.expected["bbox_scores"][:, 1:]
    return all(len(np.unique(column)) == len(column) for column in scores.T)
