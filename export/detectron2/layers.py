"""Which layers a model has: where detectron2 keeps their parameters, and which blobs of our networks they become.

A layer is a convolution or a fully connected one with what normalises it. Its parameters are `{path}.weight`, `{path}.bias`, and those
of its norm at `norm_path` (its running statistics at `statistics_path`). Its blobs are `{blob}_w`, `{blob}_b`, and for group
normalisation `{blob}_gn_s`, `{blob}_gn_b`. Batch normalisation is a scale and a shift at inference: it becomes the blobs `{affine}_s`,
`{affine}_b` where the network has an affine channel there, else it goes into weights and bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Norm: TypeAlias = Literal["none", "batch", "group"]
Rows: TypeAlias = Literal["plain", "scores", "deltas", "masks", "anchor_deltas"]

_BRANCHES = ("2a", "2b", "2c")


@dataclass(frozen=True, slots=True)
class Layer:
    """Is one layer.

    `rows` says how output rows differ. `scores`: the background is the last in detectron2, the first here. `deltas` and `masks`: it has no
    rows in detectron2, and rows of zeros here, which nothing reads. `anchor_deltas`: they are divided by `weights` (of dx, dy, dw, dh).
    """

    blob: str
    path: str
    norm: Norm = "none"
    norm_path: str = ""
    statistics_path: str = ""
    affine: str | None = None
    biased: bool = True
    rows: Rows = "plain"
    weights: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)

    @property
    def norm_name(self) -> str:
        """Is the name of the norm's parameters, without their last part."""
        return self.norm_path or f"{self.path}.norm"

    @property
    def parameters(self) -> dict[str, tuple[str, ...]]:
        """Is the parameters that each blob is made of; the first is the one that gives it its shape."""
        norm, moments = self.norm_name, self.statistics_path or self.norm_name
        statistics = (f"{norm}.weight", f"{norm}.bias", f"{moments}.running_mean", f"{moments}.running_var")
        weight, bias = f"{self.path}.weight", f"{self.path}.bias"
        if self.norm == "batch" and self.affine is not None:
            return {
                f"{self.blob}_w": (weight,),
                f"{self.affine}_s": (statistics[0], statistics[3]),
                f"{self.affine}_b": (statistics[1], *statistics),
            }
        own_bias = [bias] if self.biased else []
        if self.norm == "batch":
            return {
                f"{self.blob}_w": (weight, statistics[0], statistics[3]),
                f"{self.blob}_b": (statistics[1], *statistics, *own_bias),
            }
        blobs: dict[str, tuple[str, ...]] = {f"{self.blob}_w": (weight,)}
        if self.biased:
            blobs[f"{self.blob}_b"] = (bias,)
        if self.norm == "group":
            blobs |= {f"{self.blob}_gn_s": statistics[:1], f"{self.blob}_gn_b": statistics[1:2]}
        return blobs


@dataclass(frozen=True, slots=True)
class ResidualStage:
    """Is the layers of a residual stage: its blob prefix, its path, its blocks of `convs` convolutions, and whether the first projects."""

    prefix: str
    path: str
    blocks: int
    convs: Literal[2, 3]
    projected: bool


def list_stem(path: str, norm: Norm) -> Layer:
    """Returns the stem of a residual body."""
    return Layer("conv1", f"{path}stem.conv1", norm, affine="res_conv1_bn", biased=False)


def list_stage(stage: ResidualStage, norm: Norm) -> Iterator[Layer]:
    """Yields the layers of a residual stage."""
    for index in range(stage.blocks):
        blob, path = f"{stage.prefix}_{index}_branch", f"{stage.path}.{index}"
        branches = [(f"{blob}{_BRANCHES[conv]}", f"{path}.conv{conv + 1}") for conv in range(stage.convs)]
        if index == 0 and stage.projected:
            branches.append((f"{blob}1", f"{path}.shortcut"))
        for name, where in branches:
            yield Layer(name, where, norm, affine=f"{name}_bn", biased=False)


def list_pyramid(body_path: str, last_blocks: dict[int, int], norm: Norm) -> Iterator[Layer]:
    """Yields the layers of a pyramid; `last_blocks` are the numbers of the last block of each stage, finest first."""
    biased = norm == "none"
    top = max(last_blocks)
    for stage, block in last_blocks.items():
        name = f"res{stage}_{block}_sum"
        lateral = f"fpn_inner_{name}" if stage == top else f"fpn_inner_{name}_lateral"
        yield Layer(lateral, f"{body_path}fpn_lateral{stage}", norm, biased=biased)
        yield Layer(f"fpn_{name}", f"{body_path}fpn_output{stage}", norm, biased=biased)


def list_chain(blob: str, path: str, count: int, norm: Norm) -> Iterator[Layer]:
    """Yields convolutions `{path}1`, `{path}2`, .. of a head."""
    for index in range(1, count + 1):
        yield Layer(f"{blob}{index}", f"{path}{index}", norm, biased=norm == "none")


def list_box_outputs(path: str, suffix: str = "") -> tuple[Layer, Layer]:
    """Returns the output layers of a box head."""
    return (
        Layer(f"cls_score{suffix}", f"{path}.cls_score", rows="scores"),
        Layer(f"bbox_pred{suffix}", f"{path}.bbox_pred", rows="deltas"),
    )


def list_rpn(depth: int, level: str, weights: Sequence[float]) -> Iterator[Layer]:
    """Yields the layers of a region proposal network; `level` is what its blobs end with."""
    path = "proposal_generator.rpn_head"
    for index in range(depth):
        where = f"{path}.conv" if depth == 1 else f"{path}.conv.conv{index}"
        yield Layer(f"conv_rpn{index + 1 if index else ''}{level}", where)
    yield Layer(f"rpn_cls_logits{level}", f"{path}.objectness_logits")
    yield Layer(f"rpn_bbox_pred{level}", f"{path}.anchor_deltas", rows="anchor_deltas", weights=tuple(weights))


def list_retinanet(
    convs: int, levels: range, norm: Norm, weights: Sequence[float], *, own_towers: bool
) -> Iterator[Layer]:
    """Yields the layers of a RetinaNet head; with `own_towers` norms have statistics of their own on each level."""
    first = f"fpn{levels[0]}"
    step = 2 if norm == "none" else 3
    for kind in ("cls", "bbox"):
        for conv in range(convs):
            path, norm_path = f"head.{kind}_subnet.{step * conv}", f"head.{kind}_subnet.{step * conv + 1}"
            blob = f"retnet_{kind}_conv_n{conv}"
            if not own_towers:
                yield Layer(f"{blob}_{first}", path, norm, norm_path=norm_path)
                continue
            for position, level in enumerate(levels):
                statistics = f"{norm_path}.{position}"
                yield Layer(f"{blob}_fpn{level}", path, norm, norm_path=norm_path, statistics_path=statistics)
    yield Layer(f"retnet_cls_pred_{first}", "head.cls_score")
    yield Layer(f"retnet_bbox_pred_{first}", "head.bbox_pred", rows="anchor_deltas", weights=tuple(weights))
