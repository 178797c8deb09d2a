from __future__ import annotations

import pytest
from run_support import make_spec

from roiline.core.errors import ModelError
from roiline.core.spec import ModelSpec
from roiline.engines.protocol import Engine, Stage
from roiline.infer.stages import Stages

SEAMS = dict(make_spec().seams)
RAW = ("rois", "count", "cls_prob", "bbox_pred")


@pytest.mark.parametrize(
    "spec",
    [
        make_spec(),
        make_spec(seams={**SEAMS, "raw": RAW, "mask_rois": ("mask_rois", "mask_classes"), "masks": ("mask_probs",)}),
    ],
    ids=["no scores and boxes", "a head without features"],
)
def test_a_model_without_the_seams_of_a_stage_is_refused(spec: ModelSpec) -> None:
    opened: list[Stage | None] = []

    def open_stage(stage: Stage | None) -> Engine:
        opened.append(stage)
        raise NotImplementedError

    with pytest.raises(ModelError, match="names no tensors"):
        Stages(open_stage, lambda _: (), spec)
    assert opened == []
