"""A thin R-50-FPN Faster R-CNN in plain torch functions, its parameters named as Detectron's blobs.

Everything that decides what a weight means is Detectron's: BGR input minus the pixel means, affine channels after the
convolutions of the body, nearest upsampling in the FPN, rounded anchors around (stride - 1) / 2, widths of
x2 - x1 + 1, RoIAlign without the half-pixel shift. Widths are read from the blobs, so that a dictionary of blobs is
the whole model. Shape letters: N images, R RoIs, A anchors per cell, K classes with background.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import roi_align

Blobs = Mapping[str, Tensor]
#: Takes the blob prefix of an affine channel and its input; batch normalisation while training.
Normalize = Callable[[str, Tensor], Tensor]

STAGE_BLOCKS = {2: 3, 3: 4, 4: 6, 5: 3}
STAGE_WIDTHS = {2: 96, 3: 128, 4: 192, 5: 256}
STEM_WIDTH = 64
WIDTH_PER_GROUP = 12
FPN_DIM = 48
MLP_HEAD_DIM = 160
NUM_CLASSES = 11
PIXEL_MEANS_BGR = (102.9801, 115.9465, 122.7717)
RPN_LEVELS = (2, 3, 4, 5, 6)
ROI_LEVELS = (2, 3, 4, 5)
ASPECT_RATIOS = (0.5, 1.0, 2.0)
ANCHOR_START_SIZE = 32
#: Half of Detectron's default scale, so that digits of 30 to 100 pixels spread over two levels.
ROI_CANONICAL_SCALE = 112
ROI_CANONICAL_LEVEL = 4
ROI_RESOLUTION = 7
ROI_SAMPLING_RATIO = 2
BBOX_REG_WEIGHTS = (10.0, 10.0, 5.0, 5.0)
RPN_REG_WEIGHTS = (1.0, 1.0, 1.0, 1.0)
DELTA_CLIP = math.log(1000.0 / 16.0)


def create_blobs(generator: torch.Generator) -> dict[str, Tensor]:
    """Create the trainable blobs with random values; affine channels start at one and zero."""
    blobs: dict[str, Tensor] = {}

    def add_layer(name: str, shape: tuple[int, ...], *, std: float | None = None, bias: bool = True) -> None:
        deviation = math.sqrt(2.0 / math.prod(shape[1:])) if std is None else std
        blobs[f"{name}_w"] = torch.randn(shape, generator=generator) * deviation
        if bias:
            blobs[f"{name}_b"] = torch.zeros(shape[0])

    def add_affine(name: str, width: int, *, scale: float = 1.0) -> None:
        blobs[f"{name}_s"], blobs[f"{name}_b"] = torch.full((width,), scale), torch.zeros(width)

    add_layer("conv1", (STEM_WIDTH, 3, 7, 7), bias=False)
    add_affine("res_conv1_bn", STEM_WIDTH)
    width_in = STEM_WIDTH
    for stage, blocks in STAGE_BLOCKS.items():
        inner, width = WIDTH_PER_GROUP * 2 ** (stage - 2), STAGE_WIDTHS[stage]
        for block in range(blocks):
            prefix = f"res{stage}_{block}_branch"
            branches = {"2a": (inner, width_in, 1, 1), "2b": (inner, inner, 3, 3), "2c": (width, inner, 1, 1)}
            if block == 0:
                branches["1"] = (width, width_in, 1, 1)
            for branch, shape in branches.items():
                add_layer(prefix + branch, shape, bias=False)
                # A small last scale lets every block start near the identity, which trains faster from scratch.
                add_affine(f"{prefix}{branch}_bn", shape[0], scale=0.2 if branch == "2c" else 1.0)
            width_in = width
    for stage, blocks in STAGE_BLOCKS.items():
        feature = f"res{stage}_{blocks - 1}_sum"
        lateral = f"fpn_inner_{feature}" + ("" if stage == 5 else "_lateral")
        add_layer(lateral, (FPN_DIM, STAGE_WIDTHS[stage], 1, 1), std=math.sqrt(1.0 / STAGE_WIDTHS[stage]))
        add_layer(f"fpn_{feature}", (FPN_DIM, FPN_DIM, 3, 3), std=math.sqrt(1.0 / (9 * FPN_DIM)))
    add_layer("conv_rpn_fpn2", (FPN_DIM, FPN_DIM, 3, 3))
    add_layer("rpn_cls_logits_fpn2", (len(ASPECT_RATIOS), FPN_DIM, 1, 1), std=0.01)
    add_layer("rpn_bbox_pred_fpn2", (4 * len(ASPECT_RATIOS), FPN_DIM, 1, 1), std=0.01)
    add_layer("fc6", (MLP_HEAD_DIM, FPN_DIM * ROI_RESOLUTION**2))
    add_layer("fc7", (MLP_HEAD_DIM, MLP_HEAD_DIM))
    add_layer("cls_score", (NUM_CLASSES, MLP_HEAD_DIM), std=0.01)
    add_layer("bbox_pred", (4 * NUM_CLASSES, MLP_HEAD_DIM), std=0.001)
    return blobs


def compute_features(blobs: Blobs, data: Tensor, normalize: Normalize) -> dict[int, Tensor]:
    """Compute the pyramid P2..P6 of a (N, 3, H, W) batch whose sides are multiples of 32."""
    x = F.conv2d(data, blobs["conv1_w"], stride=2, padding=3)
    x = F.max_pool2d(F.relu(normalize("res_conv1_bn", x)), 3, 2, 1)
    tops: dict[int, Tensor] = {}
    for stage, blocks in STAGE_BLOCKS.items():
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 2 else 1
            x = _compute_bottleneck(blobs, x, f"res{stage}_{block}_branch", stride, normalize)
        tops[stage] = x
    return _compute_pyramid(blobs, tops)


def _compute_bottleneck(blobs: Blobs, x: Tensor, prefix: str, stride: int, normalize: Normalize) -> Tensor:
    """Compute one block whose 3 x 3 convolution carries the stride (STRIDE_1X1 False)."""
    y = F.relu(normalize(f"{prefix}2a_bn", F.conv2d(x, blobs[f"{prefix}2a_w"])))
    y = F.relu(normalize(f"{prefix}2b_bn", F.conv2d(y, blobs[f"{prefix}2b_w"], stride=stride, padding=1)))
    y = normalize(f"{prefix}2c_bn", F.conv2d(y, blobs[f"{prefix}2c_w"]))
    if f"{prefix}1_w" in blobs:
        x = normalize(f"{prefix}1_bn", F.conv2d(x, blobs[f"{prefix}1_w"], stride=stride))
    return F.relu(x + y)


def _compute_pyramid(blobs: Blobs, tops: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Merge the stages from coarse to fine; P6 takes every second cell of P5."""
    features: dict[int, Tensor] = {}
    inner: Tensor | None = None
    for stage in (5, 4, 3, 2):
        name = f"res{stage}_{STAGE_BLOCKS[stage] - 1}_sum"
        lateral = f"fpn_inner_{name}" + ("" if stage == 5 else "_lateral")
        merged = F.conv2d(tops[stage], blobs[f"{lateral}_w"], blobs[f"{lateral}_b"])
        if inner is not None:
            merged = merged + F.interpolate(inner, scale_factor=2.0, mode="nearest")
        inner = merged
        features[stage] = F.conv2d(inner, blobs[f"fpn_{name}_w"], blobs[f"fpn_{name}_b"], padding=1)
    features[6] = features[5][:, :, ::2, ::2]
    return features


def compute_rpn(blobs: Blobs, feature: Tensor) -> tuple[Tensor, Tensor]:
    """Compute objectness logits (N, H W A) and deltas (N, H W A, 4) of one level, in (y, x, a) order."""
    n = feature.shape[0]
    hidden = F.relu(F.conv2d(feature, blobs["conv_rpn_fpn2_w"], blobs["conv_rpn_fpn2_b"], padding=1))
    logits = F.conv2d(hidden, blobs["rpn_cls_logits_fpn2_w"], blobs["rpn_cls_logits_fpn2_b"])
    deltas = F.conv2d(hidden, blobs["rpn_bbox_pred_fpn2_w"], blobs["rpn_bbox_pred_fpn2_b"])
    return logits.permute(0, 2, 3, 1).reshape(n, -1), deltas.permute(0, 2, 3, 1).reshape(n, -1, 4)


def compute_box_head(blobs: Blobs, features: Mapping[int, Tensor], rois: Tensor) -> tuple[Tensor, Tensor]:
    """Compute class logits (R, K) and deltas (R, 4 K) of RoIs (R, 5) in network-input pixels."""
    levels = assign_levels(rois[:, 1:])
    dim = features[2].shape[1]
    pooled = features[2].new_zeros((len(rois), dim, ROI_RESOLUTION, ROI_RESOLUTION))
    for level in ROI_LEVELS:
        rows = torch.nonzero(levels == level).flatten()
        size = (ROI_RESOLUTION, ROI_RESOLUTION)
        crops = roi_align(features[level], rois[rows], size, 2.0**-level, ROI_SAMPLING_RATIO, aligned=False)
        pooled = pooled.index_copy(0, rows, crops)
    hidden = F.relu(F.linear(pooled.flatten(1), blobs["fc6_w"], blobs["fc6_b"]))
    hidden = F.relu(F.linear(hidden, blobs["fc7_w"], blobs["fc7_b"]))
    scores = F.linear(hidden, blobs["cls_score_w"], blobs["cls_score_b"])
    return scores, F.linear(hidden, blobs["bbox_pred_w"], blobs["bbox_pred_b"])


def assign_levels(boxes: Tensor) -> Tensor:
    """Assign boxes (R, 4) to pyramid levels by the square root of their area, with Detectron's epsilon."""
    side = torch.sqrt((boxes[:, 2] - boxes[:, 0] + 1) * (boxes[:, 3] - boxes[:, 1] + 1))
    level = torch.floor(ROI_CANONICAL_LEVEL + torch.log2(side / ROI_CANONICAL_SCALE + 1e-6))
    return level.clamp(ROI_LEVELS[0], ROI_LEVELS[-1]).to(torch.int64)


def generate_cell_anchors(level: int) -> np.ndarray:
    """Generate the (A, 4) anchors of a level's first cell; rounding is half-to-even and happens at stride size."""
    stride, size = 2.0**level, ANCHOR_START_SIZE * 2.0 ** (level - RPN_LEVELS[0])
    centre, rows = (stride - 1) / 2, []
    for ratio in ASPECT_RATIOS:
        width = np.rint(np.sqrt(stride * stride / ratio))
        height = np.rint(width * ratio)
        half_w, half_h = (width * size / stride - 1) / 2, (height * size / stride - 1) / 2
        rows.append((centre - half_w, centre - half_h, centre + half_w, centre + half_h))
    return np.array(rows, np.float64)


def generate_anchors(level: int, height: int, width: int) -> Tensor:
    """Generate the (H W A, 4) anchors of a level's map, in (y, x, a) order."""
    shift_x, shift_y = np.meshgrid(np.arange(width) * 2.0**level, np.arange(height) * 2.0**level)
    shifts = np.stack([shift_x, shift_y, shift_x, shift_y], axis=-1).reshape(-1, 1, 4)
    return torch.from_numpy((shifts + generate_cell_anchors(level)).reshape(-1, 4).astype(np.float32))


def decode_boxes(boxes: Tensor, deltas: Tensor, weights: Sequence[float]) -> Tensor:
    """Decode deltas (R, M, 4) against boxes (R, 4) to boxes (R, M, 4); the far corner gets Detectron's -1."""
    size = (boxes[:, 2:] - boxes[:, :2] + 1)[:, None]
    centre = boxes[:, None, :2] + 0.5 * size
    scaled = deltas / torch.tensor(weights)
    middle = scaled[..., :2] * size + centre
    extent = torch.exp(scaled[..., 2:].clamp(max=DELTA_CLIP)) * size
    return torch.cat([middle - 0.5 * extent, middle + 0.5 * extent - 1], dim=-1)


def encode_boxes(boxes: Tensor, targets: Tensor, weights: Sequence[float]) -> Tensor:
    """Encode targets (R, 4) against boxes (R, 4) as deltas (R, 4), the inverse of `decode_boxes`."""
    size, goal = boxes[:, 2:] - boxes[:, :2] + 1, targets[:, 2:] - targets[:, :2] + 1
    shift = (targets[:, :2] + 0.5 * goal - boxes[:, :2] - 0.5 * size) / size
    return torch.cat([shift, torch.log(goal / size)], dim=1) * torch.tensor(weights)


def clip_boxes(boxes: Tensor, height: float, width: float) -> Tensor:
    """Clip boxes (..., 4) to the pixels of a height by width picture."""
    limits = torch.tensor([width, height, width, height], dtype=boxes.dtype) - 1
    return torch.minimum(boxes.clamp(min=0), limits)


def compute_overlaps(first: Tensor, second: Tensor) -> Tensor:
    """Compute the (R, G) IoU of boxes (R, 4) and (G, 4), widths with +1."""
    corner = torch.maximum(first[:, None, :2], second[None, :, :2])
    extent = (torch.minimum(first[:, None, 2:], second[None, :, 2:]) - corner + 1).clamp(min=0)
    shared = extent[..., 0] * extent[..., 1]
    areas = [((b[:, 2] - b[:, 0] + 1) * (b[:, 3] - b[:, 1] + 1)) for b in (first, second)]
    return shared / (areas[0][:, None] + areas[1][None] - shared)
