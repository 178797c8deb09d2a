"""The proposal network that a detectron2 configuration describes, its anchors, and the feature maps that heads name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roiline.core.structures import Float64
from roiline.export.architecture import RpnLevel, RpnRules
from roiline.export.detectron.refusals import Refusals
from roiline.export.detectron2.bodies import BodyPlan
from roiline.export.detectron2.config import Detectron2Config
from roiline.export.detectron2.layers import Layer, list_rpn
from roiline.ops.anchors.plain import generate_plain_anchors

_TINY = float(np.finfo(np.float32).tiny)


def read_anchors(config: Detectron2Config, plan: BodyPlan, names: Sequence[str], refusals: Refusals) -> list[Float64]:
    """Returns the anchors (A, 4) of the first cell of every named feature map."""
    if config["MODEL.ANCHOR_GENERATOR.NAME"] != "DefaultAnchorGenerator":
        refusals.add_unknown(
            "MODEL.ANCHOR_GENERATOR.NAME", config["MODEL.ANCHOR_GENERATOR.NAME"], ("DefaultAnchorGenerator",)
        )
    sizes, ratios = (
        _spread(config, f"MODEL.ANCHOR_GENERATOR.{key}", names, refusals) for key in ("SIZES", "ASPECT_RATIOS")
    )
    offset = config["MODEL.ANCHOR_GENERATOR.OFFSET"]
    if not 0 <= offset < 1:
        refusals.add("MODEL.ANCHOR_GENERATOR.OFFSET", offset, "it is a part of a cell, at least 0 and below 1")
    anchors = [
        generate_plain_anchors(size, ratio) + offset * plan.strides.get(name, 1)
        for name, size, ratio in zip(names, sizes, ratios, strict=True)
    ]
    if len({len(one) for one in anchors}) > 1:
        counts = [len(one) for one in anchors]
        refusals.add("MODEL.ANCHOR_GENERATOR.SIZES", counts, "every feature map needs as many anchors as the others")
    return anchors


def _spread(config: Detectron2Config, key: str, names: Sequence[str], refusals: Refusals) -> list[Sequence[float]]:
    """Returns the numbers for every feature map; one list serves all of them."""
    given = config[key]
    rows = list(given) * len(names) if len(given) == 1 else list(given)
    numbers: list[Sequence[float]] = [
        row
        for row in rows
        if isinstance(row, list | tuple) and row and all(type(one) in (int, float) and one > 0 for one in row)
    ]
    if len(numbers) != len(rows) or len(rows) != len(names):
        refusals.add(key, given, f"expected a list of positive numbers for each of {', '.join(names)}, or one for all")
        return [[1.0]] * len(names)
    return numbers


def find_features(key: str, names: Sequence[str], plan: BodyPlan, refusals: Refusals) -> list[str]:
    """Returns the feature maps that a key names, finest first; they must be there, and neighbours."""
    unknown = [name for name in names if name not in plan.strides]
    if unknown or not names:
        refusals.add(key, list(names), f"the feature maps are {', '.join(plan.strides)}")
        return [next(iter(plan.strides))]
    levels = [plan.levels[name] for name in names]
    if levels != list(range(levels[0], levels[0] + len(levels))):
        refusals.add(key, list(names), "feature maps must be neighbours, finest first")
    return list(names)


def read_rpn(config: Detectron2Config, plan: BodyPlan, refusals: Refusals) -> tuple[RpnRules, tuple[Layer, ...]]:
    """Returns the region proposal network."""
    if config["MODEL.RPN.HEAD_NAME"] != "StandardRPNHead":
        refusals.add_unknown("MODEL.RPN.HEAD_NAME", config["MODEL.RPN.HEAD_NAME"], ("StandardRPNHead",))
    for key in ("MODEL.RPN.PRE_NMS_TOPK_TEST", "MODEL.RPN.POST_NMS_TOPK_TEST"):
        if config[key] < 1:
            refusals.add(key, config[key], "at least 1")
    names = find_features("MODEL.RPN.IN_FEATURES", config["MODEL.RPN.IN_FEATURES"], plan, refusals)
    anchors = read_anchors(config, plan, names, refusals)
    widths = tuple(config["MODEL.RPN.CONV_DIMS"])
    if not widths or any(width != -1 and width < 1 for width in widths):
        refusals.add("MODEL.RPN.CONV_DIMS", list(widths), "expected widths, or -1 for as many channels as come in")
    multilevel = plan.pyramid is not None
    rules = RpnRules(
        levels=tuple(
            RpnLevel(plan.levels[name], float(plan.strides[name]), one)
            for name, one in zip(names, anchors, strict=True)
        ),
        pre_nms_top_n=config["MODEL.RPN.PRE_NMS_TOPK_TEST"],
        post_nms_top_n=config["MODEL.RPN.POST_NMS_TOPK_TEST"],
        nms_thresh=config["MODEL.RPN.NMS_THRESH"],
        min_size=0.0,
        multilevel=multilevel,
        native=True,
        depth=max(len(widths), 1),
        widths=tuple(max(width, 0) for width in widths),
        scored_by_logit=True,
        min_side=_least_side(config["MODEL.PROPOSAL_GENERATOR.MIN_SIZE"]),
    )
    level = f"_fpn{plan.levels[names[0]]}" if multilevel else ""
    weights = four_weights(config["MODEL.RPN.BBOX_REG_WEIGHTS"], "MODEL.RPN.BBOX_REG_WEIGHTS", refusals)
    return rules, tuple(list_rpn(rules.depth, level, weights))


def _least_side(minimum: float) -> float:
    """Returns the least side of a box whose sides exceed `minimum`, as a float32."""
    return float(np.nextafter(np.float32(minimum), np.float32(np.inf))) if minimum > 0 else _TINY


def four_weights(given: object, key: str, refusals: Refusals) -> tuple[float, float, float, float]:
    """Returns the weights of (dx, dy, dw, dh) as floats."""
    if (
        isinstance(given, list | tuple)
        and len(given) == 4
        and all(type(one) in (int, float) and one > 0 for one in given)
    ):
        dx, dy, dw, dh = (float(one) for one in given)
        return dx, dy, dw, dh
    refusals.add(key, given, "expected four positive numbers")
    return 1.0, 1.0, 1.0, 1.0
