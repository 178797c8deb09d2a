"""Trains the demo detector from scratch on composed pictures and writes its Detectron-format files.

Written are `digits.pkl` (blobs and the configuration's text), `digits.yaml` and `classes.txt`; the last lines printed
are the held-out COCO metrics of the weights as written. Needs the extras `train` and `eval`.

    python examples/make_pictures.py
    python examples/train_digits.py [--output examples/digits] [--iterations 3000] [--seed 7] [--threads 2]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import batched_nms

from roiline.examples import digits_network as network
from roiline.examples.evaluate_digits import evaluate_blobs
from roiline.examples.make_pictures import CLASS_NAMES, Glyphs, Picture, compose_picture, load_glyphs
from roiline.examples.weight_pickle import encode_weights

PICTURE_SIDE = 192
DIGITS_AT_MOST = 5
BATCH_SIZE = 8
BASE_RATE = 2e-3
WARM_UP_ITERATIONS = 60
WEIGHT_DECAY = 0.02
GRADIENT_LIMIT = 5.0
BN_MOMENTUM, BN_EPSILON = 0.05, 1e-5
RPN_POSITIVE_IOU, RPN_NEGATIVE_IOU = 0.5, 0.3
RPN_SAMPLES = 128
RPN_BETA = 1.0 / 9.0
PROPOSALS_BEFORE_NMS, PROPOSALS_AFTER_NMS, PROPOSAL_NMS = 200, 100, 0.7
ROI_SAMPLES, ROI_POSITIVES = 64, 32
PRINT_EVERY = 20
#: Configuration as Detectron reads it; what is not said here is Detectron's default.
CONFIGURATION = f"""\
MODEL:
  TYPE: generalized_rcnn
  CONV_BODY: FPN.add_fpn_ResNet50_conv5_body
  NUM_CLASSES: {network.NUM_CLASSES}
  FASTER_RCNN: True
  BBOX_REG_WEIGHTS: (10.0, 10.0, 5.0, 5.0)
PIXEL_MEANS: [[[102.9801, 115.9465, 122.7717]]]
RESNETS:
  STRIDE_1X1: False
  NUM_GROUPS: 1
  WIDTH_PER_GROUP: {network.WIDTH_PER_GROUP}
FPN:
  FPN_ON: True
  DIM: {network.FPN_DIM}
  MULTILEVEL_ROIS: True
  MULTILEVEL_RPN: True
  ROI_CANONICAL_SCALE: {network.ROI_CANONICAL_SCALE}
  ROI_CANONICAL_LEVEL: {network.ROI_CANONICAL_LEVEL}
FAST_RCNN:
  ROI_BOX_HEAD: fast_rcnn_heads.add_roi_2mlp_head
  MLP_HEAD_DIM: {network.MLP_HEAD_DIM}
  ROI_XFORM_METHOD: RoIAlign
  ROI_XFORM_RESOLUTION: {network.ROI_RESOLUTION}
  ROI_XFORM_SAMPLING_RATIO: {network.ROI_SAMPLING_RATIO}
TEST:
  SCALE: 288
  MAX_SIZE: 480
  NMS: 0.5
  SCORE_THRESH: 0.05
  DETECTIONS_PER_IM: 100
  RPN_NMS_THRESH: 0.7
  RPN_PRE_NMS_TOP_N: 500
  RPN_POST_NMS_TOP_N: 300
OUTPUT_DIR: .
"""


@dataclass(frozen=True, slots=True)
class Batch:
    """Pictures ready to train on: `data` (N, 3, H, W) float32 and per picture `boxes` (G, 4) and `classes` (G,) >= 1."""

    data: Tensor
    boxes: tuple[Tensor, ...]
    classes: tuple[Tensor, ...]


class BatchNormalizer:
    """Normalises by batch statistics while training and keeps the running ones for folding."""

    def __init__(self, blobs: dict[str, Tensor]) -> None:
        self._blobs = blobs
        names = [name.removesuffix("_s") for name in blobs if name.endswith("_bn_s")]
        self._means = {name: torch.zeros_like(blobs[f"{name}_s"]) for name in names}
        self._variances = {name: torch.ones_like(blobs[f"{name}_s"]) for name in names}

    def __call__(self, name: str, x: Tensor) -> Tensor:
        """Normalise one layer's input (N, C, H, W)."""
        scale, bias = self._blobs[f"{name}_s"], self._blobs[f"{name}_b"]
        mean, variance = self._means[name], self._variances[name]
        return F.batch_norm(x, mean, variance, scale, bias, True, BN_MOMENTUM, BN_EPSILON)

    def fold(self) -> dict[str, np.ndarray]:
        """Fold the statistics into affine channels; values are rounded to half precision, stored as float32.

        Rounding costs nothing measurable and halves the file when it is compressed.
        """
        blobs = {name: value.detach().clone() for name, value in self._blobs.items()}
        for name, mean in self._means.items():
            scale = blobs[f"{name}_s"] / torch.sqrt(self._variances[name] + BN_EPSILON)
            blobs[f"{name}_s"], blobs[f"{name}_b"] = scale, blobs[f"{name}_b"] - mean * scale
        return {name: value.half().float().numpy() for name, value in blobs.items()}


def iterate_batches(seed: int) -> Iterator[Batch]:
    """Compose training batches without end, from training samples only."""
    glyphs = load_glyphs(held_out=False)
    rng = np.random.default_rng([seed, 1])
    means = np.array(network.PIXEL_MEANS_BGR, np.float32)
    while True:
        pictures = [_compose_with_digits(rng, glyphs) for _ in range(BATCH_SIZE)]
        data = np.stack([(p.pixels.astype(np.float32) - means).transpose(2, 0, 1) for p in pictures])
        boxes = tuple(torch.from_numpy(p.boxes.astype(np.float32)) for p in pictures)
        # Channels-last maps are what the convolutions of a CPU run fastest on.
        images = torch.from_numpy(data).contiguous(memory_format=torch.channels_last)
        yield Batch(images, boxes, tuple(torch.from_numpy(p.labels + 1) for p in pictures))


def _compose_with_digits(rng: np.random.Generator, glyphs: Glyphs) -> Picture:
    """Compose a picture that has at least one digit."""
    while True:
        picture = compose_picture(rng, glyphs, PICTURE_SIDE, PICTURE_SIDE, most=DIGITS_AT_MOST)
        if len(picture.labels):
            return picture


def compute_losses(
    blobs: network.Blobs, batch: Batch, normalize: network.Normalize, generator: torch.Generator
) -> dict[str, Tensor]:
    """Compute the four losses of Faster R-CNN on one batch."""
    features = network.compute_features(blobs, batch.data, normalize)
    outputs = [network.compute_rpn(blobs, features[level]) for level in network.RPN_LEVELS]
    anchors = [network.generate_anchors(level, *features[level].shape[2:]) for level in network.RPN_LEVELS]
    logits, deltas = torch.cat([o[0] for o in outputs], dim=1), torch.cat([o[1] for o in outputs], dim=1)
    losses = _compute_rpn_losses(logits, deltas, torch.cat(anchors), batch, generator)
    rois, classes, targets = [], [], []
    for index in range(len(batch.boxes)):
        found = _propose(anchors, [(o[0][index].detach(), o[1][index].detach()) for o in outputs])
        sample = _sample_rois(found, batch.boxes[index], batch.classes[index], generator)
        rois.append(F.pad(sample[0], (1, 0), value=float(index)))
        classes.append(sample[1])
        targets.append(sample[2])
    scores, regressed = network.compute_box_head(blobs, features, torch.cat(rois))
    return losses | _compute_box_losses(scores, regressed, torch.cat(classes), torch.cat(targets))


def _compute_rpn_losses(
    logits: Tensor, deltas: Tensor, anchors: Tensor, batch: Batch, generator: torch.Generator
) -> dict[str, Tensor]:
    """Compute the objectness and regression losses on sampled anchors of every picture."""
    class_loss, box_loss = logits.new_zeros(()), logits.new_zeros(())
    for index, boxes in enumerate(batch.boxes):
        overlaps = network.compute_overlaps(anchors, boxes)
        best, owner = overlaps.max(dim=1)
        positive = (best >= RPN_POSITIVE_IOU) | (overlaps >= overlaps.max(dim=0).values - 1e-5).any(dim=1)
        chosen = _choose(positive, RPN_SAMPLES // 2, generator)
        others = _choose((best < RPN_NEGATIVE_IOU) & ~positive, RPN_SAMPLES - len(chosen), generator)
        rows = torch.cat([chosen, others])
        labels = (torch.arange(len(rows)) < len(chosen)).float()
        class_loss = class_loss + F.binary_cross_entropy_with_logits(logits[index, rows], labels)
        goals = network.encode_boxes(anchors[chosen], boxes[owner[chosen]], network.RPN_REG_WEIGHTS)
        error = F.smooth_l1_loss(deltas[index, chosen], goals, beta=RPN_BETA, reduction="sum")
        box_loss = box_loss + error / len(rows)
    return {"rpn_cls": class_loss / len(batch.boxes), "rpn_bbox": box_loss / len(batch.boxes)}


def _choose(mask: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Choose at most `most` of the marked rows at random."""
    rows = torch.nonzero(mask).flatten()
    return rows[torch.randperm(len(rows), generator=generator)[:most]]


def _propose(anchors: list[Tensor], outputs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Make one picture's training proposals (R, 4) from the RPN's per-level logits and deltas."""
    boxes, scores, levels = [], [], []
    for level, (field, (logits, deltas)) in enumerate(zip(anchors, outputs, strict=True)):
        top, rows = logits.topk(min(PROPOSALS_BEFORE_NMS, len(logits)))
        decoded = network.decode_boxes(field[rows], deltas[rows][:, None], network.RPN_REG_WEIGHTS)[:, 0]
        boxes.append(network.clip_boxes(decoded, PICTURE_SIDE, PICTURE_SIDE))
        scores.append(top)
        levels.append(torch.full((len(rows),), level))
    found, inclusive = torch.cat(boxes), torch.tensor([0.0, 0.0, 1.0, 1.0])
    kept = batched_nms(found + inclusive, torch.cat(scores), torch.cat(levels), PROPOSAL_NMS)
    return found[kept[:PROPOSALS_AFTER_NMS]]


def _sample_rois(
    proposals: Tensor, boxes: Tensor, classes: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Sample RoIs (R, 4) with classes (R,) and delta targets (R, 4); ground truth is among the candidates."""
    candidates = torch.cat([boxes, proposals])
    best, owner = network.compute_overlaps(candidates, boxes).max(dim=1)
    chosen = _choose(best >= 0.5, ROI_POSITIVES, generator)
    others = _choose(best < 0.5, ROI_SAMPLES - len(chosen), generator)
    rows = torch.cat([chosen, others])
    labels = classes[owner[rows]] * (torch.arange(len(rows)) < len(chosen))
    targets = network.encode_boxes(candidates[rows], boxes[owner[rows]], network.BBOX_REG_WEIGHTS)
    return candidates[rows], labels, targets


def _compute_box_losses(scores: Tensor, deltas: Tensor, classes: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Compute the classification loss and the class's own regression loss over all sampled RoIs."""
    rows = torch.nonzero(classes > 0).flatten()
    own = deltas.reshape(len(deltas), -1, 4)[rows, classes[rows]]
    box_loss = F.smooth_l1_loss(own, targets[rows], beta=1.0, reduction="sum") / len(classes)
    return {"cls": F.cross_entropy(scores, classes), "bbox": box_loss}


def compute_rate(iteration: int, iterations: int) -> float:
    """Compute the learning rate: a linear warm-up, then half a cosine down to zero."""
    if iteration < WARM_UP_ITERATIONS:
        return BASE_RATE * (iteration + 1) / WARM_UP_ITERATIONS
    done = (iteration - WARM_UP_ITERATIONS) / max(1, iterations - WARM_UP_ITERATIONS)
    return BASE_RATE * 0.5 * (1 + math.cos(math.pi * done))


def train_blobs(iterations: int, seed: int) -> dict[str, np.ndarray]:
    """Train from random values and return the folded blobs."""
    generator = torch.Generator().manual_seed(seed)
    blobs = {name: value.requires_grad_() for name, value in network.create_blobs(generator).items()}
    normalizer = BatchNormalizer(blobs)
    groups = [
        {"params": [v for v in blobs.values() if v.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [v for v in blobs.values() if v.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=BASE_RATE)
    started_s = time.perf_counter()
    for iteration, batch in zip(range(iterations), iterate_batches(seed), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = compute_rate(iteration, iterations)
        losses = compute_losses(blobs, batch, normalizer, generator)
        optimizer.zero_grad()
        torch.autograd.backward(torch.stack(list(losses.values())).sum())
        torch.nn.utils.clip_grad_norm_(blobs.values(), GRADIENT_LIMIT)
        optimizer.step()
        if iteration % PRINT_EVERY == 0 or iteration == iterations - 1:
            shown = " ".join(f"{name} {value.item():.3f}" for name, value in losses.items())
            print(f"{iteration:5d} {time.perf_counter() - started_s:7.1f} s  {shown}", flush=True)
    return normalizer.fold()


def write_model(output: Path, blobs: dict[str, np.ndarray]) -> None:
    """Write the weights as Detectron does (a pickle of protocol 2), the configuration and the class names."""
    (output / "digits.pkl").write_bytes(encode_weights(blobs, CONFIGURATION))
    (output / "digits.yaml").write_text(CONFIGURATION, encoding="utf-8")
    (output / "classes.txt").write_text("".join(f"{name}\n" for name in CLASS_NAMES), encoding="utf-8")


def main() -> None:
    """Train, write and evaluate the demo detector."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "digits")
    parser.add_argument("--iterations", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    blobs = train_blobs(arguments.iterations, arguments.seed)
    write_model(arguments.output, blobs)
    evaluate_blobs(blobs, arguments.output)


if __name__ == "__main__":
    main()
