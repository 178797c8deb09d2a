"""The body and pyramid that a detectron2 configuration describes, their layers, and which feature maps heads may name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from roiline.export.architecture import Pyramid, ResNet
from roiline.export.detectron.refusals import Refusals
from roiline.export.detectron2.config import Detectron2Config
from roiline.export.detectron2.layers import (
    Layer,
    Norm,
    ResidualStage,
    list_pyramid,
    list_stage,
    list_stem,
)
from roiline.export.layers import GroupNorm

_BLOCKS: Mapping[int, tuple[int, int, int, int]] = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
_BASIC_DEPTHS = (18, 34)
_PLAIN = "build_resnet_backbone"
_PYRAMID = "build_resnet_fpn_backbone"
_DENSE_PYRAMID = "build_retinanet_resnet_fpn_backbone"
_STAGES = ("res2", "res3", "res4", "res5")
_TOP = 5
HEAD_BLOCKS = 3
"""The blocks of a res5 that belongs to the heads, however deep the body."""

_NORMS: Mapping[str, Norm] = {
    "": "none",
    "FrozenBN": "batch",
    "BN": "batch",
    "SyncBN": "batch",
    "nnSyncBN": "batch",
    "naiveSyncBN": "batch",
    "naiveSyncBN_N": "batch",
    "GN": "group",
}
_GROUPS = 32
_EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """Is a body with its pyramid, a short name for both, its layers, and the strides of its feature maps by name.

    `pad_multiple` is what sides of pictures are padded to multiples of.
    """

    body: ResNet
    pyramid: Pyramid | None
    name: str
    layers: tuple[Layer, ...]
    strides: Mapping[str, int]
    pad_multiple: int

    @property
    def levels(self) -> Mapping[str, int]:
        """Is the key of every feature map by its name."""
        return {name: int(name[-1]) for name in self.strides}


def read_body(config: Detectron2Config, refusals: Refusals, used: Sequence[str]) -> BodyPlan:
    """Returns the body; `used` are the feature maps that heads name, which decide how far a pyramid goes."""
    name = config["MODEL.BACKBONE.NAME"]
    if name not in (_PLAIN, _PYRAMID, _DENSE_PYRAMID):
        refusals.add_unknown("MODEL.BACKBONE.NAME", name, (_PLAIN, _PYRAMID, _DENSE_PYRAMID))
    _refuse_resnet(config, refusals)
    norm = read_norm(config, "MODEL.RESNETS.NORM", refusals)
    stages = _stages_of(config["MODEL.RESNETS.OUT_FEATURES"], "MODEL.RESNETS.OUT_FEATURES", refusals)
    body = _read_resnet(config, norm, stages[-1])
    kind = "X" if body.groups > 1 else "R"
    title = f"{kind}-{config['MODEL.RESNETS.DEPTH']}{'-GN' if norm == 'group' else ''}"
    if name == _PLAIN:
        dilated = body.res5_dilation > 1
        strides = {f"res{body.last_stage}": 16 if dilated else 2**body.last_stage}
        layers = _list_body(body, "backbone.", norm)
        suffix = "DC5" if dilated else f"C{body.last_stage}"
        return BodyPlan(body, None, f"{title}-{suffix}", layers, strides, 1)
    if body.res5_dilation != 1:
        refusals.add("MODEL.RESNETS.RES5_DILATION", 2, "a pyramid needs a res5 of half res4's size: only 1")
    pyramid, layers = _read_pyramid(config, refusals, used, body, dense=name == _DENSE_PYRAMID)
    strides = {f"p{level}": 2**level for level in range(pyramid.min_level, pyramid.max_level + 1)}
    layers = _list_body(body, "backbone.bottom_up.", norm) + layers
    return BodyPlan(body, pyramid, f"{title}-FPN", layers, strides, 2**_TOP)


def read_norm(config: Detectron2Config, key: str, refusals: Refusals) -> Norm:
    """Returns what a norm computes at inference."""
    name = config[key]
    if name not in _NORMS:
        refusals.add_unknown(key, name, [repr(known) for known in _NORMS])
    return _NORMS.get(name, "none")


def group_norm(norm: Norm) -> GroupNorm | None:
    """Returns group normalisation as networks have it, or None where it is another norm, which goes into weights."""
    return GroupNorm(groups=_GROUPS, epsilon=_EPSILON) if norm == "group" else None


def head_stage_body(body: ResNet) -> ResNet:
    """Returns the body that a res5 of the heads is built like: always of bottlenecks."""
    return ResNet(
        blocks=(*body.blocks[:3], HEAD_BLOCKS),
        groups=body.groups,
        stride_in_1x1=body.stride_in_1x1,
        block_norm=body.block_norm,
        shortcut_norm=body.shortcut_norm,
    )


def _refuse_resnet(config: Detectron2Config, refusals: Refusals) -> None:
    depth = config["MODEL.RESNETS.DEPTH"]
    if depth not in _BLOCKS:
        refusals.add_unknown("MODEL.RESNETS.DEPTH", depth, map(str, _BLOCKS))
    if any(config["MODEL.RESNETS.DEFORM_ON_PER_STAGE"]):
        value = config["MODEL.RESNETS.DEFORM_ON_PER_STAGE"]
        refusals.add("MODEL.RESNETS.DEFORM_ON_PER_STAGE", value, "deformable convolutions cannot be exported")
    if config["MODEL.RESNETS.RES5_DILATION"] not in (1, 2):
        refusals.add("MODEL.RESNETS.RES5_DILATION", config["MODEL.RESNETS.RES5_DILATION"], "only 1 and 2 are defined")
    if config["MODEL.RESNETS.NORM"] == "":
        refusals.add("MODEL.RESNETS.NORM", "", "a residual body needs a norm")
    if depth in _BASIC_DEPTHS:
        for key, needed in (("RES2_OUT_CHANNELS", 64), ("RES5_DILATION", 1), ("NUM_GROUPS", 1)):
            if config[f"MODEL.RESNETS.{key}"] != needed:
                value = config[f"MODEL.RESNETS.{key}"]
                refusals.add(f"MODEL.RESNETS.{key}", value, f"a ResNet-{depth} has {needed}")


def _read_resnet(config: Detectron2Config, norm: Norm, last: int) -> ResNet:
    depth, normal = config["MODEL.RESNETS.DEPTH"], group_norm(norm)
    last_stage: Literal[4, 5] = 4 if last == 4 else 5
    return ResNet(
        blocks=_BLOCKS.get(depth, _BLOCKS[50]),
        groups=config["MODEL.RESNETS.NUM_GROUPS"],
        stride_in_1x1=config["MODEL.RESNETS.STRIDE_IN_1X1"],
        stem_norm=normal,
        block_norm=normal,
        shortcut_norm=normal,
        last_stage=last_stage,
        res5_dilation=config["MODEL.RESNETS.RES5_DILATION"] if last_stage == 5 else 1,
        basic=depth in _BASIC_DEPTHS,
        res2_projected=config["MODEL.RESNETS.STEM_OUT_CHANNELS"] != config["MODEL.RESNETS.RES2_OUT_CHANNELS"],
    )


def _list_body(body: ResNet, path: str, norm: Norm) -> tuple[Layer, ...]:
    layers = [list_stem(path, norm)]
    for stage in range(2, body.last_stage + 1):
        projected = stage != 2 or body.res2_projected
        name, blocks = f"res{stage}", body.blocks[stage - 2]
        shape = ResidualStage(name, f"{path}{name}", blocks, 2 if body.basic else 3, projected)
        layers += list_stage(shape, norm)
    return tuple(layers)


def _stages_of(names: Sequence[str], key: str, refusals: Refusals) -> list[int]:
    """Returns the numbers of residual stages that are named, the last of which must be 4 or 5."""
    known = [name for name in names if name in _STAGES]
    if len(known) != len(names) or not known:
        refusals.add(key, names, f"expected one or more of {', '.join(_STAGES)}")
    stages = sorted(int(name[-1]) for name in known) or [_TOP]
    if stages[-1] < 4:
        refusals.add(key, names, "a body ends at res4 or res5")
    return stages


def _read_pyramid(
    config: Detectron2Config, refusals: Refusals, used: Sequence[str], body: ResNet, *, dense: bool
) -> tuple[Pyramid, tuple[Layer, ...]]:
    key = "MODEL.FPN.IN_FEATURES"
    stages = _stages_of(config[key], key, refusals)
    if body.last_stage != _TOP or stages != list(range(stages[0], _TOP + 1)):
        refusals.add(
            key, config[key], "a pyramid is on neighbouring stages up to res5, which RESNETS.OUT_FEATURES names too"
        )
    fuse = config["MODEL.FPN.FUSE_TYPE"]
    if fuse not in ("sum", "avg"):
        refusals.add_unknown("MODEL.FPN.FUSE_TYPE", fuse, ("sum", "avg"))
    limit = _TOP + (2 if dense else 1)
    highest = max((int(name[1:]) for name in used if name[1:].isdigit() and name.startswith("p")), default=_TOP)
    norm = read_norm(config, "MODEL.FPN.NORM", refusals)
    pyramid = Pyramid(
        min_level=stages[0],
        max_level=min(max(highest, _TOP), limit),
        channels=config["MODEL.FPN.OUT_CHANNELS"],
        norm=group_norm(norm),
        extra_convs=dense,
        averaged=fuse == "avg",
    )
    layers = list(list_pyramid("backbone.", {stage: body.blocks[stage - 2] - 1 for stage in stages}, norm))
    if dense:
        extra = range(_TOP + 1, pyramid.max_level + 1)
        layers += [Layer(f"fpn_{level}", f"backbone.top_block.p{level}") for level in extra]
    return pyramid, tuple(layers)
