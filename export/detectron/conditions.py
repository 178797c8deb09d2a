"""States the conditions between the values of a configuration that Detectron's builders assert, one by one.

Each is a sentence about keys, so that a wrong configuration is refused before any weight is looked at, with all that
is wrong in one message.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from roiline.export.detectron.defaults import CHOICES, KEYS, Use
from roiline.export.detectron.model_types import FIXED_MODELS, plain_type

Values = Mapping[str, Any]

_SINGLE_SCALE_BODIES = ("ResNet.", "VGG16.", "VGG_CNN_M_1024.")
_POSITIVE = (
    "TEST.SCALE",
    "TEST.MAX_SIZE",
    "FPN.DIM",
    "FPN.COARSEST_STRIDE",
    "RESNETS.NUM_GROUPS",
    "RESNETS.WIDTH_PER_GROUP",
    "RESNETS.RES5_DILATION",
    "FPN.ROI_CANONICAL_SCALE",
    "FPN.RPN_ANCHOR_START_SIZE",
    "FPN.RPN_ANCHOR_SIZE_INCREASE",
    "FPN.FINEST_LEVEL_SCALE",
    "RETINANET.SCALES_PER_OCTAVE",
    "RETINANET.ANCHOR_SCALE",
    "RFCN.PS_GRID_SIZE",
    "FAST_RCNN.ROI_XFORM_RESOLUTION",
    "MRCNN.ROI_XFORM_RESOLUTION",
    "KRCNN.ROI_XFORM_RESOLUTION",
)
_AT_MOST = {
    "TEST.SCALE": 1 << 16,  # the longest side that a JPEG has
    "TEST.MAX_SIZE": 1 << 16,
    "FAST_RCNN.ROI_XFORM_SAMPLING_RATIO": 64,
    "MRCNN.ROI_XFORM_SAMPLING_RATIO": 64,
    "KRCNN.ROI_XFORM_SAMPLING_RATIO": 64,
    "FAST_RCNN.ROI_XFORM_RESOLUTION": 512,
    "MRCNN.ROI_XFORM_RESOLUTION": 512,
    "KRCNN.ROI_XFORM_RESOLUTION": 512,
    "TEST.RPN_NMS_THRESH": 1,  # 0 and below switch it off
}
_FRACTIONS = ("TEST.NMS", "TEST.BBOX_VOTE.VOTE_TH")
_POSITIVE_LISTS = ("RPN.SIZES", "RPN.ASPECT_RATIOS", "FPN.RPN_ASPECT_RATIOS", "RETINANET.ASPECT_RATIOS")


def list_violations(values: Values) -> list[str]:
    """Lists the violated conditions of a merged configuration (dotted key to value); empty when all hold."""
    return [
        *_check_numbers(values),
        *_check_model(values),
        *_check_choices(values),
        *_check_fpn(values),
        *_check_heads(values),
        *_check_group_norm(values),
        *_check_cascade(values),
        *_check_augmentation(values),
    ]


def _check_numbers(values: Values) -> Iterator[str]:
    """Checks single numbers: finite where they decide what a model computes, and within what they can sensibly be."""
    for key in KEYS:
        if KEYS[key].use is Use.TAKEN and isinstance(values[key], float) and not math.isfinite(values[key]):
            yield f"{key} is {values[key]}; expected a finite number"
    for key in _POSITIVE:
        if values[key] <= 0:
            yield f"{key} is {values[key]}; it must be above 0"
    for key, most in _AT_MOST.items():
        if math.isfinite(values[key]) and values[key] > most:
            yield f"{key} is {values[key]}; it must be at most {most}"
    for key in _FRACTIONS:
        if math.isfinite(values[key]) and not 0 <= values[key] <= 1:
            yield f"{key} is {values[key]}; it must be from 0 to 1"


def _check_model(values: Values) -> Iterator[str]:
    fixed = plain_type(values["MODEL.TYPE"]) in FIXED_MODELS  # such a type names its body itself
    for key in ("MODEL.TYPE", "MODEL.CONV_BODY"):
        if not values[key] and not (fixed and key == "MODEL.CONV_BODY"):
            yield f"{key} is empty; it names the {'model' if key.endswith('TYPE') else 'body'} to build"
    if values["MODEL.NUM_CLASSES"] <= 0:
        yield f"MODEL.NUM_CLASSES is {values['MODEL.NUM_CLASSES']}; it is the number of classes with background"
    for key in _POSITIVE_LISTS:
        if not _are_positive(values[key]):
            yield f"{key} is {values[key]}; expected one or more numbers above 0"
    weights = values["MODEL.BBOX_REG_WEIGHTS"]
    if len(weights) != 4 or not _are_positive(weights):
        yield f"MODEL.BBOX_REG_WEIGHTS is {weights}; expected four numbers above 0"


def _check_choices(values: Values) -> Iterator[str]:
    for key, choices in CHOICES.items():
        if values[key] not in choices:
            yield f"{key} is {values[key]!r}; understood: {', '.join(map(repr, choices))}"


def count_fpn_levels(values: Values) -> tuple[int, int]:
    """Answers the lowest and the highest level of the feature pyramid."""
    ranges = [
        (values[f"FPN.{kind}_MIN_LEVEL"], values[f"FPN.{kind}_MAX_LEVEL"])
        for kind, switch in (("RPN", "FPN.MULTILEVEL_RPN"), ("ROI", "FPN.MULTILEVEL_ROIS"))
        if values[switch]
    ]
    return (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else (2, 5)


def _check_fpn(values: Values) -> Iterator[str]:
    body = values["MODEL.CONV_BODY"]
    pyramid = body.startswith("FPN.") and "P2only" not in body  # a P2only body gives its finest level alone
    if not values["FPN.FPN_ON"]:
        if pyramid:
            yield f"MODEL.CONV_BODY is {body}, an FPN body, but FPN.FPN_ON is False"
        return
    if body.startswith(_SINGLE_SCALE_BODIES) or (body.startswith("FPN.") and not pyramid):
        yield f"FPN.FPN_ON is True, but MODEL.CONV_BODY is {body}, which has one scale; FPN bodies begin with FPN."
    low, high = count_fpn_levels(values)
    rpn_low, rpn_high = values["FPN.RPN_MIN_LEVEL"], values["FPN.RPN_MAX_LEVEL"]
    dense = values["RPN.RPN_ON"] or values["RETINANET.RETINANET_ON"]
    if dense and high - low != rpn_high - rpn_low:
        yield (
            f"the pyramid has the levels {low} to {high}, but FPN.RPN_MIN_LEVEL and RPN_MAX_LEVEL "
            f"ask for {rpn_low} to {rpn_high}; set FPN.MULTILEVEL_RPN, or the same range"
        )
    if values["RETINANET.RETINANET_ON"] or values["MODEL.TYPE"] in ("retinanet", "rfcn"):
        return
    if rpn_low != values["FPN.ROI_MIN_LEVEL"]:
        yield f"FPN.RPN_MIN_LEVEL is {rpn_low} and FPN.ROI_MIN_LEVEL {values['FPN.ROI_MIN_LEVEL']}; they must be equal"
    if rpn_high < values["FPN.ROI_MAX_LEVEL"]:
        yield f"FPN.RPN_MAX_LEVEL is {rpn_high}, below FPN.ROI_MAX_LEVEL, {values['FPN.ROI_MAX_LEVEL']}"


def _check_heads(values: Values) -> Iterator[str]:
    if values["MODEL.MASK_ON"]:
        box, mask = values["FAST_RCNN.ROI_XFORM_RESOLUTION"], values["MRCNN.ROI_XFORM_RESOLUTION"]
        if "v0upshare" in values["MRCNN.ROI_MASK_HEAD"] and box != mask:
            yield (
                f"the v0upshare mask head shares the box head's features: MRCNN.ROI_XFORM_RESOLUTION ({mask}) "
                f"and FAST_RCNN.ROI_XFORM_RESOLUTION ({box}) must be equal"
            )
        yield from _check_upsampling(values, "MRCNN.UPSAMPLE_RATIO")
    if values["MODEL.KEYPOINTS_ON"]:
        if values["KRCNN.NUM_KEYPOINTS"] <= 0:
            yield f"KRCNN.NUM_KEYPOINTS is {values['KRCNN.NUM_KEYPOINTS']}; MODEL.KEYPOINTS_ON needs their number"
        yield from _check_upsampling(values, "KRCNN.UP_SCALE")


def _check_upsampling(values: Values, key: str) -> Iterator[str]:
    if values[key] > 1 and values[key] % 2:
        yield f"{key} is {values[key]}; bilinear upsampling needs an even factor"


def _check_group_norm(values: Values) -> Iterator[str]:
    given = [key for key in ("GROUP_NORM.DIM_PER_GP", "GROUP_NORM.NUM_GROUPS") if values[key] != -1]
    if len(given) != 1:
        yield (
            "exactly one of GROUP_NORM.DIM_PER_GP and GROUP_NORM.NUM_GROUPS must differ from -1; "
            f"they are {values['GROUP_NORM.DIM_PER_GP']} and {values['GROUP_NORM.NUM_GROUPS']}"
        )
    elif values[given[0]] <= 0:
        yield f"{given[0]} is {values[given[0]]}; it must be above 0"


def _check_cascade(values: Values) -> Iterator[str]:
    if not values["MODEL.CASCADE_ON"]:
        return
    stages = values["CASCADE_RCNN.NUM_STAGE"]
    test_stage = values["CASCADE_RCNN.TEST_STAGE"]
    if not values["MODEL.CLS_AGNOSTIC_BBOX_REG"]:
        yield "a cascade needs MODEL.CLS_AGNOSTIC_BBOX_REG: True"
    if not values["FPN.FPN_ON"]:
        yield "a cascade needs FPN.FPN_ON: True"
    for name in ("FG_THRESHS", "BG_THRESHS_HI", "BG_THRESHS_LO", "BBOX_REG_WEIGHTS", "STAGE_WEIGHTS"):
        entries = values[f"CASCADE_RCNN.{name}"]
        if len(entries) != stages:
            yield f"CASCADE_RCNN.{name} has {len(entries)} entries for CASCADE_RCNN.NUM_STAGE: {stages}"
    if not _are_positive(values["CASCADE_RCNN.STAGE_WEIGHTS"]):
        yield f"CASCADE_RCNN.STAGE_WEIGHTS is {values['CASCADE_RCNN.STAGE_WEIGHTS']}; all must be above 0"
    for weights in values["CASCADE_RCNN.BBOX_REG_WEIGHTS"]:
        if not isinstance(weights, list | tuple) or len(weights) != 4 or not _are_positive(weights):
            yield f"CASCADE_RCNN.BBOX_REG_WEIGHTS has the entry {weights}; expected four numbers above 0"
    if values["CASCADE_RCNN.SCALE_LOSS"] and values["CASCADE_RCNN.SCALE_GRAD"]:
        yield "CASCADE_RCNN.SCALE_LOSS and CASCADE_RCNN.SCALE_GRAD exclude each other"
    if test_stage > stages:
        yield f"CASCADE_RCNN.TEST_STAGE is {test_stage}, but CASCADE_RCNN.NUM_STAGE is {stages}"
    if values["CASCADE_RCNN.TEST_ENSEMBLE"] and (test_stage if test_stage > 0 else stages) < 2:
        yield "CASCADE_RCNN.TEST_ENSEMBLE needs a TEST_STAGE of 2 or more; set it to False for stage 1"


def _check_augmentation(values: Values) -> Iterator[str]:
    if not values["TEST.BBOX_AUG.ENABLED"]:
        return
    score, place = values["TEST.BBOX_AUG.SCORE_HEUR"], values["TEST.BBOX_AUG.COORD_HEUR"]
    if (score == "UNION") != (place == "UNION"):
        yield f"TEST.BBOX_AUG.SCORE_HEUR is {score} and COORD_HEUR {place}; UNION goes for both or for neither"
    elif values["MODEL.FASTER_RCNN"] and score != "UNION":
        yield f"TEST.BBOX_AUG.SCORE_HEUR is {score}; a model with its own RPN needs UNION, since proposals differ"


def _are_positive(numbers: Sequence[Any]) -> bool:
    return bool(numbers) and all(
        isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < float("inf")
        for number in numbers
    )
