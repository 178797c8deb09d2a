"""The tracking head that a configuration of the Track R-CNN fork describes, and how its detections are paired."""

from __future__ import annotations

from roiline.core.spec import TrackRules
from roiline.export.architecture import TrackHead
from roiline.export.detectron.bodies import BodyPlan
from roiline.export.detectron.config import DetectronConfig
from roiline.export.detectron.heads import read_transform
from roiline.export.detectron.refusals import Refusals

_MATCH, _COSINE = "MatchNet", "Cosine"


def read_track_head(config: DetectronConfig, plan: BodyPlan, refusals: Refusals) -> TrackHead:
    """Returns the tracking head of MODEL.TRACKING_ON."""
    output = config["TRCNN.OUTPUT"]
    if output not in (_MATCH, _COSINE):
        refusals.add_unknown("TRCNN.OUTPUT", output, (_MATCH, _COSINE))
    if not config["TRCNN.MLP_HEAD_ON"]:
        refusals.add("TRCNN.MLP_HEAD_ON", False, "what is compared instead of track_fc stands in no file")
    return TrackHead(
        transform=read_transform(config, plan, "TRCNN"),
        width=config["TRCNN.MLP_HEAD_DIM"],
        hidden=config["TRCNN.MLP_HIDDEN_DIM"] if output == _MATCH else None,
    )


def track_rules_from_config(config: DetectronConfig) -> TrackRules:
    """Returns how detections of two pictures are paired."""
    return TrackRules(threshold=float(config["TRCNN.DETECTION_THRESH"]))
