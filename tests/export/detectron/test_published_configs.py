"""Every configuration that Detectron published is exported, with thin weights; equal networks are exported once."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import onnx
import pytest
from shared_data import shared_files
from thin_models import THIN, export_thin, lay_out_config

from roiline.export.detectron.config import DetectronConfig, load_config
from roiline.export.networks import Network

PUBLISHED = shared_files("data/detectron-configs/*/*.yaml")
SETS = tuple(THIN.items())
PARTS = {
    "MODEL.MASK_ON": "masks",
    "MODEL.KEYPOINTS_ON": "keypoints",
    "MODEL.RPN_ONLY": "proposals",
    "MODEL.FASTER_RCNN": "raw",
    "RETINANET.RETINANET_ON": "candidates",
}
"""Switches, and the seam that each of them must lead to."""


EXPORTED_ALWAYS = (
    "mask_rcnn_R-50-FPN_1x_gn",
    "e2e_faster_rcnn_R-50-C4_1x",
    "e2e_keypoint_rcnn_X-101-64x4d-FPN_1x",
    "fast_rcnn_R-101-FPN_1x",
    "retinanet_R-50-FPN_1x",
    "rpn_R-50-C4_1x",
)
"""One of every family is exported always, the other different ones when golden tests are asked for."""


_NETWORKS: dict[tuple[tuple[str, str], ...], Network] = {}


def _identity(network: Network) -> str:
    """Tells networks apart by their nodes and by what they need."""
    parts = [node.SerializeToString(deterministic=True) for node in network.graph.nodes]
    parts += [repr(need).encode() for need in network.graph.requirements]
    return hashlib.sha256(b"".join(parts)).hexdigest()


@lru_cache
def _lay_out(path: Path) -> tuple[DetectronConfig, Network]:
    """Lays out what a file describes; files that only train differently share one network."""
    config = load_config(path, SETS)
    decisive = tuple(
        (key, repr(value))
        for key, value in config.values.items()
        if not key.startswith(("SOLVER.", "TRAIN.", "TEST.", "OUT"))
    )
    if decisive not in _NETWORKS:
        _NETWORKS[decisive] = lay_out_config(config)
    return config, _NETWORKS[decisive]


@pytest.mark.parametrize("path", PUBLISHED)
def test_is_laid_out_with_all_its_parts(path):
    config, network = _lay_out(path)
    seams = {seam for key, seam in PARTS.items() if config[key]}
    assert seams <= set(network.seams)
    if not (config["MODEL.RPN_ONLY"] or config["MODEL.FASTER_RCNN"] or config["RETINANET.RETINANET_ON"]):
        assert "given_rois" in network.seams
    assert ("detections" in network.seams) == (not config["MODEL.RPN_ONLY"])
    assert all(None not in need.shape for need in network.graph.requirements)


@pytest.mark.parametrize("path", [case for case in PUBLISHED if case.id in EXPORTED_ALWAYS] or PUBLISHED[:1])
def test_is_exported(path, tmp_path):
    model = export_thin(path.read_text(), tmp_path)
    assert model.spec.source.kind == "detectron"
    assert model.session.get_inputs()[0].name == "data"


@pytest.mark.golden
def test_every_different_network_is_exported(tmp_path, request):
    if "golden" not in request.config.getoption("markexpr"):
        pytest.skip("exports some 45 models; `pytest -m golden` does")
    different = {_identity(_lay_out(case.values[0])[1]): case.values[0] for case in PUBLISHED if case.values[0]}
    assert len(different) > 20
    for path in different.values():
        model = export_thin(path.read_text(), tmp_path)
        assert model.spec.source.kind == "detectron"
        onnx.checker.check_model(onnx.load(model.path))


@pytest.mark.parametrize("path", [case for case in PUBLISHED if case.id and "test_time_aug" in str(case.values[0])])
def test_test_options_travel_in_the_specification(path, tmp_path):
    spec = export_thin(path.read_text(), tmp_path).spec
    assert spec.test.box_augmentation.passes.scales == (400, 500, 600, 700, 900, 1000, 1100, 1200)
    assert spec.test.box_augmentation.passes.max_size == 2000
    assert spec.test.box_augmentation.scores == ("AVG" if spec.given_proposals else "UNION")
    assert (spec.test.voting is None) == (spec.masks is None)
    assert spec.test.voting is None or spec.test.voting.vote_thresh == 0.9
    assert (spec.test.mask_augmentation is None) == (spec.masks is None)
    assert (spec.test.keypoint_augmentation is None) == (spec.keypoints is None)
    assert spec.test.soft_nms is None
