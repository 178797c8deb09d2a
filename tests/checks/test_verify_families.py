"""The numpy reference network of every family, thin: it computes what the exported model computes, layer by layer."""

from __future__ import annotations

from pathlib import Path

import pytest
from lowered_runs import FAMILIES, PYRAMID
from thin_models import THIN, export_thin

from roiline.checks.verify.detectron_plan import read_detectron_source
from roiline.checks.verify.pictures import generate_picture
from roiline.checks.verify.verification import Picture, verify_model

RFCN = "MODEL: {TYPE: rfcn, CONV_BODY: ResNet.add_ResNet50_conv5_body, NUM_CLASSES: 4}\nRFCN: {PS_GRID_SIZE: 3}\n"
FUSED = PYRAMID.replace("FASTER_RCNN: True", "FASTER_RCNN: True, FR_FUSED: True, WEIGHTED_LOSS: True") + (
    "RFCN: {PS_GRID_SIZE: 3, ROI_BOX_HEAD: rfcn_heads.add_rfcn_head}\n"
)
OTHERS = {
    "position-sensitive on given proposals": RFCN,
    "position-sensitive, the fixed model": RFCN.replace(
        "TYPE: rfcn, CONV_BODY: ResNet.add_ResNet50_conv5_body", "TYPE: ResNet50_rfcn"
    ),
    "fused by the mean": FUSED + "FR_FUSED: {RULE: mean}\n",
    "fused by concatenation": FUSED + "FR_FUSED: {RULE: concat}\n",
    "one stage with softmax": FAMILIES["one stage"].replace("RETINANET_ON: True", "RETINANET_ON: True, SOFTMAX: True"),
    "a classifier": """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: ResNet.add_ResNet50_conv5_body, NUM_CLASSES: 4, CLASSIFICATION: True}
CLASSIFICATION: {MLP_HEAD: classification_heads.add_Xmlp_head, MLP_HEADS_DIM: [16]}
""",
}
ALL = {**FAMILIES, **OTHERS}
NO_LIMITS = {"PRE_NMS_TOP_N: 50": "PRE_NMS_TOP_N: 0", "DETECTIONS_PER_IM: 20": "DETECTIONS_PER_IM: 5000"}
"""Made-up weights give many scores of exactly 1, of which a limit would take any."""


LONG = {"one stage", "cascade", "maxima", "position-sensitive, the fixed model", "fused by concatenation"}
"""Families whose parts others or golden cases have too."""


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.golden) if name in LONG else name for name in ALL]
)
def test_the_reference_computes_what_the_model_does(family: str, tmp_path: Path) -> None:
    overrides = {**THIN, "TEST.SCALE": "64", "TEST.MAX_SIZE": "96"}
    text = ALL[family]
    for limit, none in NO_LIMITS.items():
        text = text.replace(limit, none)
    model = export_thin(text, tmp_path, overrides=overrides)
    source = read_detectron_source(tmp_path / "model.yaml", tmp_path / "model.pkl", tuple(overrides.items()))
    found = verify_model(model.path, source, [Picture("made up", generate_picture(1, 70, 90))], by_layer=True)
    assert found.failed is None, [(stage.name, stage.worst) for stage in found.stages if not stage.passed]
    assert found.not_compared == ()
    assert sum(len(stage.measures) for stage in found.stages) > 100
