"""The RetinaNet head that a detectron2 configuration describes, with its layers."""

from __future__ import annotations

from roiline.export.detectron.refusals import Refusals
from roiline.export.detectron2.bodies import BodyPlan, group_norm, read_norm
from roiline.export.detectron2.config import Detectron2Config
from roiline.export.detectron2.layers import Layer, list_retinanet
from roiline.export.detectron2.proposals import find_features, four_weights, read_anchors
from roiline.export.one_stage import RetinaNet


def read_retinanet(config: Detectron2Config, plan: BodyPlan, refusals: Refusals) -> tuple[RetinaNet, tuple[Layer, ...]]:
    """Returns the RetinaNet head."""
    key = "MODEL.RETINANET"
    names = find_features(f"{key}.IN_FEATURES", config[f"{key}.IN_FEATURES"], plan, refusals)
    if plan.pyramid is None:
        refusals.add("MODEL.BACKBONE.NAME", config["MODEL.BACKBONE.NAME"], "a RetinaNet needs a pyramid")
    for part in ("NUM_CLASSES", "NUM_CONVS", "TOPK_CANDIDATES_TEST"):
        if config[f"{key}.{part}"] < 1:
            refusals.add(f"{key}.{part}", config[f"{key}.{part}"], "at least 1")
    norm = read_norm(config, f"{key}.NORM", refusals)
    own_towers = config[f"{key}.NORM"] in ("BN", "SyncBN")
    anchors = read_anchors(config, plan, names, refusals)
    first = plan.levels[names[0]]
    head = RetinaNet(
        min_level=first,
        anchors=tuple(anchors),
        num_classes=config[f"{key}.NUM_CLASSES"] + 1,
        num_convs=config[f"{key}.NUM_CONVS"],
        shared_tower=False,
        softmax=False,
        pre_nms_top_n=config[f"{key}.TOPK_CANDIDATES_TEST"],
        norm=group_norm(norm),
        biased=norm == "group",
        own_towers=own_towers,
    )
    weights = four_weights(config[f"{key}.BBOX_REG_WEIGHTS"], f"{key}.BBOX_REG_WEIGHTS", refusals)
    layers = list_retinanet(head.num_convs, head.levels, norm, weights, own_towers=own_towers)
    return head, tuple(layers)
