"""Compares what a network needs with what a weights file has, before anything is built.

Detectron leaves a parameter that the file lacks at its random start and goes on; here every missing, misshapen or
non-finite blob stops the export, all in one table, with what the file most likely is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from roiline.core.errors import WeightError
from roiline.export.detectron.weights import Blob, DetectronWeights, derive_structure
from roiline.export.graph import BlobRequirement, Shape

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Misfit:
    """Pairs a requirement with the shape that the file has."""

    requirement: BlobRequirement
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Says how a weights file fits a list of requirements.

    Attributes:
        missing: requirements without a blob.
        misshapen: blobs of another shape.
        non_finite: (name, how many values are NaN or infinite) of needed blobs.
        excess: residual blocks beyond those that the network has: the file is of a deeper one.
        nonzero_biases: convolution biases that an affine layer should have replaced, and that are not zero.
        known: (name, what it is) of blobs that are not needed, of parts known in this family.
        unknown: names that no part of this family has.
        diagnoses: sentences about what the file is and what to do.
    """

    missing: tuple[BlobRequirement, ...]
    misshapen: tuple[Misfit, ...]
    non_finite: tuple[tuple[str, int], ...]
    excess: tuple[str, ...]
    nonzero_biases: tuple[str, ...]
    known: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]
    diagnoses: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the network can be built from the file."""
        return not (self.missing or self.misshapen or self.non_finite or self.excess or self.nonzero_biases)


class ResolvedNames(Mapping[str, T]):
    """Views blobs (or their shapes) by the names that a network uses, with the rule of `resolve_name`."""

    def __init__(self, entries: Mapping[str, T]) -> None:
        self._entries = entries

    def __getitem__(self, name: str) -> T:
        found = resolve_name(name, self._entries)
        if found is None:
            raise KeyError(name)
        return self._entries[found]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def resolve_name(name: str, blobs: Mapping[str, object]) -> str | None:
    """Answers the name under which a file holds a parameter, or None.

    A bracketed scope that the file lacks is dropped: `_[mask]_res5_0_branch2a_w` is filled from
    `res5_0_branch2a_w`. Where the bracketed name is there, it wins.
    """
    if name in blobs:
        return name
    scope, bracket, rest = name.partition("]_")
    del scope
    return rest if bracket and rest in blobs else None


def check_blobs(weights: DetectronWeights, requirements: Sequence[BlobRequirement]) -> CheckReport:
    """Compares a weights file with all that a network needs; raises nothing (see `raise_if_bad`)."""
    blobs = weights.blobs
    missing: list[BlobRequirement] = []
    misshapen: list[Misfit] = []
    used: set[str] = set()
    for requirement in requirements:
        name = resolve_name(requirement.name, blobs)
        if name is None:
            missing.append(requirement)
            continue
        used.add(name)
        if not _fits(blobs[name].shape, requirement.shape):
            misshapen.append(Misfit(requirement, blobs[name].shape))
    excess, biases, known, unknown = _sort_leftovers(blobs, used, requirements)
    return CheckReport(
        missing=tuple(missing),
        misshapen=tuple(misshapen),
        non_finite=tuple((name, count) for name in sorted(used) if (count := _count_non_finite(blobs[name]))),
        excess=excess,
        nonzero_biases=biases,
        known=known,
        unknown=unknown,
        diagnoses=tuple(_diagnose(blobs, requirements, missing, misshapen, excess)),
    )


def raise_if_bad(report: CheckReport, source: str, *, strict: bool = False) -> None:
    """Raises one error with every fault of a report in a table; does nothing where there is none.

    Args:
        report: of `check_blobs`.
        source: the weights file, for the message.
        strict: whether a blob of no known part is a fault too.

    Raises:
        WeightError: lists the faults.
    """
    rows = _list_rows(report)
    if strict:
        rows += [(name, "there", "nothing", "no known part", "") for name in report.unknown]
    if not rows:
        return
    header = ("blob", "in the file", "expected", "for", "look at")
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows]]
    lines = [f"{source}: these weights do not fit the configuration ({len(rows)} faults)", *report.diagnoses]
    raise WeightError("\n  ".join([*lines, *(line.rstrip() for line in table)]))


def _list_rows(report: CheckReport) -> list[tuple[str, str, str, str, str]]:
    rows = [
        (fit.requirement.name, _show(fit.shape), _show(fit.requirement.shape), fit.requirement.purpose, _key(fit))
        for fit in report.misshapen
    ]
    rows += [(need.name, "missing", _show(need.shape), need.purpose, need.config_key or "") for need in report.missing]
    rows += [(name, f"{count} NaN or infinite", "finite values", "", "") for name, count in report.non_finite]
    rows += [(name, "there", "no such block", "a deeper body", "MODEL.CONV_BODY") for name in report.excess]
    rows += [
        (name, "not zero", "zeros or nothing", "bias before an affine layer", "RESNETS.TRANS_FUNC")
        for name in report.nonzero_biases
    ]
    return rows


# What the names of the family mean. The first pattern that fits names a blob; order matters.

_LEFTOVERS: tuple[tuple[str, str], ...] = (
    (r"(fc1000|pred|fc8)_[wb]", "classifier of the ImageNet backbone"),
    (r"da_conv_[12]_[wb]|dc_ip[123]_[wb]", "domain classifier, for training"),
    (r"weight_(cls|bbox)[12]", "loss weight, for training"),
    (r"(.+_)?track_.*", "tracking head"),
    (r".+_(c_cat_conv[12]_[wb]|p_channel_average_w|p_pat_conv[12]_w)", "attention on features"),
    (r"(conv_rpn|rpn_cls_logits|rpn_bbox_pred)(_fpn\d+)?_[wb]", "RPN"),
    (r"retnet_.*", "RetinaNet head"),
    (r"(conv_cls|conv_bbox_pred|conv_dim_reduce)(_fpn\d+)?_[wb]", "R-FCN head"),
    (r"(_\[mask\]_|_mask_fcn|conv5_mask_|mask_fcn_logits).*", "mask head"),
    (r"(_\[pose\]_|conv_fcn\d+_|kps_).*", "keypoint head"),
    (r"(cls_score|bbox_pred)(_\d+)?_[wb]", "box outputs"),
    (r"(fc\d+|head_conv\d+)(_\d+)?(_gn)?_[swb]", "box head"),
    (r"logits_[wb]", "classification head"),
    (r"fpn_.*", "feature pyramid"),
    (r"(conv1|res_conv1|conv\d+_\d+|conv[2-5])(_[bg]n)?_[swb]", "body"),
    (r"res\d+_\d+_branch(1|2[abc])(_[bg]n)?_[swb]", "body"),
)
_ZERO_BIAS = re.compile(r"conv1_b|res\d+_\d+_branch(1|2[abc])_b")
_BLOCK = re.compile(r"res(\d+)_(\d+)_branch")
_KEYS_BY_NAME: tuple[tuple[str, str], ...] = (
    (r"cls_score.*|bbox_pred.*|mask_fcn_logits.*|retnet_cls_pred.*|conv_cls.*", "MODEL.NUM_CLASSES"),
    (r"fc6.*_w", "FAST_RCNN.ROI_XFORM_RESOLUTION or MLP_HEAD_DIM"),
    (r"fc\d+.*", "FAST_RCNN.MLP_HEAD_DIM"),
    (r"head_conv.*", "FAST_RCNN.CONV_HEAD_DIM"),
    (r"rpn_.*_fpn.*", "FPN.RPN_ASPECT_RATIOS"),
    (r"rpn_.*", "RPN.SIZES and RPN.ASPECT_RATIOS"),
    (r"fpn_.*|conv_rpn_fpn.*", "FPN.DIM"),
    (r".*mask.*", "MRCNN.DIM_REDUCED"),
    (r"kps_.*", "KRCNN.NUM_KEYPOINTS"),
    (r"conv_fcn.*", "KRCNN.CONV_HEAD_DIM"),
    (r"res\d.*branch2.*", "RESNETS.NUM_GROUPS and WIDTH_PER_GROUP"),
)


def name_part(name: str) -> str | None:
    """Answers the part of the family that a blob belongs to ("mask head"), or None for an unknown name."""
    return next((part for pattern, part in _LEFTOVERS if re.fullmatch(pattern, name)), None)


def _key(fit: Misfit) -> str:
    if fit.requirement.config_key:
        return fit.requirement.config_key
    return next((key for pattern, key in _KEYS_BY_NAME if re.fullmatch(pattern, fit.requirement.name)), "")


def _sort_leftovers(
    blobs: Mapping[str, Blob], used: set[str], requirements: Sequence[BlobRequirement]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, str], ...], tuple[str, ...]]:
    last_blocks = _find_last_blocks(need.name for need in requirements)
    excess: list[str] = []
    biases: list[str] = []
    known: list[tuple[str, str]] = []
    unknown: list[str] = []
    for name in sorted(set(blobs) - used):
        block = _BLOCK.match(name)
        part = name_part(name)
        if block and int(block[1]) in last_blocks and int(block[2]) > last_blocks[int(block[1])]:
            excess.append(name)
        elif _ZERO_BIAS.fullmatch(name):
            if blobs[name].any():
                biases.append(name)
            else:
                known.append((name, "zero bias of a convolution"))
        elif part is not None:
            known.append((name, part))
        else:
            unknown.append(name)
    return tuple(excess), tuple(biases), tuple(known), tuple(unknown)


def _find_last_blocks(names: Iterable[str]) -> dict[int, int]:
    last: dict[int, int] = {}
    for name in names:
        block = _BLOCK.match(name)
        if block:
            last[int(block[1])] = max(last.get(int(block[1]), 0), int(block[2]))
    return last


def _diagnose(
    blobs: Mapping[str, Blob],
    requirements: Sequence[BlobRequirement],
    missing: Sequence[BlobRequirement],
    misshapen: Sequence[Misfit],
    excess: Sequence[str],
) -> list[str]:
    if not (missing or misshapen or excess):
        return []
    parts = {part for name in blobs if (part := name_part(name))}
    if not parts & _DETECTOR_PARTS and "body" in parts:
        return [_describe_backbone(blobs, parts)]
    needed = {need.name for need in requirements}
    lacking = {
        part for part in (name_part(need.name) for need in missing) if part and _lacks_all(part, missing, needed)
    }
    found = [_explain_lack(part, parts) for part in sorted(lacking)]
    found.append(_compare_bodies(blobs, requirements, missing, excess))
    found.append(_compare_pyramids(blobs, missing))
    found.append(_compare_classes(misshapen))
    return [sentence for sentence in found if sentence]


_DETECTOR_PARTS = frozenset(
    {"RPN", "RetinaNet head", "R-FCN head", "mask head", "keypoint head", "box outputs", "classification head"}
)


def _lacks_all(part: str, missing: Sequence[BlobRequirement], needed: set[str]) -> bool:
    return {name for name in needed if name_part(name) == part} <= {need.name for need in missing}


def _describe_backbone(blobs: Mapping[str, Blob], parts: set[str]) -> str:
    structure = derive_structure(blobs)
    depth = f" {structure.family or ''}{'-' + str(structure.depth) if structure.depth else ''}".rstrip()
    classifier = " and an ImageNet classifier" if "classifier of the ImageNet backbone" in parts else ""
    return (
        f"This is a backbone, not a detector: {len(blobs)} blobs of a{depth or ' body'}{classifier}, no RPN and no head. "
        "Give the weights of the trained detector (model_final.pkl)"
    )


def _explain_lack(part: str, parts: set[str]) -> str:
    if part in parts:
        return ""
    if part == "RPN" and "box outputs" in parts:
        return "These weights have no RPN; they need a proposal file: set MODEL.FASTER_RCNN to False"
    if part == "box outputs" and "RPN" in parts:
        return "These weights are of an RPN alone: set MODEL.RPN_ONLY to True, or export with --task proposals"
    advice = {
        "mask head": "set MODEL.MASK_ON to False to export boxes only",
        "keypoint head": "set MODEL.KEYPOINTS_ON to False to export boxes only",
        "RetinaNet head": "the configuration is of a RetinaNet, the weights are not",
        "R-FCN head": "the configuration is of an R-FCN, the weights are not",
        "RPN": "the configuration wants one",
        "feature pyramid": "the configuration is of an FPN model, the weights are of a single-scale one",
        "attention on features": "set MODEL.GAM to False",
        "tracking head": "set MODEL.TRACKING_ON to False to export the detector",
        "classification head": "set MODEL.CLASSIFICATION to False",
    }
    return f"These weights have no {part}: {advice[part]}" if part in advice else ""


def _compare_bodies(
    blobs: Mapping[str, Blob],
    requirements: Sequence[BlobRequirement],
    missing: Sequence[BlobRequirement],
    excess: Sequence[str],
) -> str:
    wanted = derive_structure({need.name: np.empty(0) for need in requirements})
    found = derive_structure(blobs)
    if wanted.family and found.family and wanted.family != found.family:
        return (
            f"The body is a {found.family} in the weights and a {wanted.family} in the configuration: MODEL.CONV_BODY"
        )
    if any(_BLOCK.match(need.name) for need in missing) or excess:
        if wanted.norm != found.norm:
            names = {"gn": "group normalisation", "bn": "affine channels", None: "none"}
            return (
                f"The body's normalisation is {names[found.norm]} in the weights and {names[wanted.norm]} in the "
                "configuration: RESNETS.TRANS_FUNC, STEM_FUNC and SHORTCUT_FUNC"
            )
        if dict(wanted.blocks) != dict(found.blocks):
            return (
                f"The body has the blocks {_show_blocks(found.blocks)} in the weights"
                f"{f' (ResNet-{found.depth})' if found.depth else ''} and {_show_blocks(wanted.blocks)} in the "
                f"configuration{f' (ResNet-{wanted.depth})' if wanted.depth else ''}: MODEL.CONV_BODY"
            )
    return ""


def _show_blocks(blocks: Mapping[int, int]) -> str:
    return ", ".join(f"res{stage} x {count}" for stage, count in sorted(blocks.items()))


def _compare_pyramids(blobs: Mapping[str, Blob], missing: Sequence[BlobRequirement]) -> str:
    names = {need.name for need in missing}
    if "conv_rpn_w" in names and any(re.fullmatch(r"conv_rpn_fpn\d+_w", name) for name in blobs):
        return "The RPN is of an FPN model in the weights and single-scale in the configuration: FPN.FPN_ON"
    if "conv_rpn_w" in blobs and any(re.fullmatch(r"conv_rpn_fpn\d+_w", name) for name in names):
        return "The RPN is single-scale (C4) in the weights and of an FPN model in the configuration: FPN.FPN_ON"
    return ""


def _compare_classes(misshapen: Sequence[Misfit]) -> str:
    for fit in misshapen:
        if re.fullmatch(r"cls_score(_\d+)?_w", fit.requirement.name) and fit.shape and fit.requirement.shape:
            rows, wanted = fit.shape[0], fit.requirement.shape[0]
            if wanted is not None and rows != wanted:
                return f"The weights have {rows} classes with background, the configuration {wanted}: MODEL.NUM_CLASSES"
    return ""


def _fits(shape: tuple[int, ...], wanted: Shape) -> bool:
    return len(shape) == len(wanted) and all(
        right is None or left == right for left, right in zip(shape, wanted, strict=True)
    )


def _show(shape: Shape) -> str:
    return "(" + ", ".join("any" if length is None else str(length) for length in shape) + ")"


def _count_non_finite(blob: np.ndarray[Any, Any]) -> int:
    if not blob.size or (
        np.isfinite(blob.min()) and np.isfinite(blob.max())
    ):  # min and max pass NaN on, and copy nothing
        return 0
    return int(blob.size - np.count_nonzero(np.isfinite(blob)))
