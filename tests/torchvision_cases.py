"""Models of the installed torchvision with seeded weights, scaled so that they answer like trained ones: the judge of its exports."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torch import nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

CANDIDATES = 100
"""How many pairs of a RoI (or an anchor) and a class shall score above the threshold in every picture, at least (half, of few)."""

THRESHOLD = 0.05
DRAWS = 60

BODIES: dict[str, dict[str, Any]] = {
    "resnet18": {"backbone_name": "resnet18", "norm_layer": nn.BatchNorm2d},
    "resnext50_32x4d": {"backbone_name": "resnext50_32x4d", "norm_layer": nn.BatchNorm2d},
    "resnet50_group_norm": {"backbone_name": "resnet50", "norm_layer": partial(nn.GroupNorm, 32)},
}
"""Bodies that torchvision builds pyramids on beside those of its named models."""


@dataclass(frozen=True)
class EagerAnswer:
    """Is torchvision's answer for one picture: boxes (D, 4), scores and labels (D,), masks (D, H, W), keypoints (D, J, 3), their scores."""

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: np.ndarray | None
    keypoints: np.ndarray | None
    keypoint_scores: np.ndarray | None


def build_model(arch: str, pictures: list[np.ndarray], *, seed: int = 0, **arguments: Any) -> nn.Module:
    """Builds a model whose norms fit the pictures (BGR), and whose output layers have the spread of trained ones.

    `arch` names one of torchvision's constructors, or a body of `BODIES` for a Faster R-CNN on it.
    """
    torch.manual_seed(seed)
    if arch in BODIES:
        model = FasterRCNN(resnet_fpn_backbone(weights=None, **BODIES[arch]), **arguments)
    else:
        build = getattr(torchvision.models.detection, arch)
        model = build(weights=None, weights_backbone=None, **arguments)
    with torch.no_grad():
        _fit_norms(model, pictures)
        model.eval()
        for stage in _output_layers(model):
            _spread_outputs(model, stage, pictures[0])
        _separate_scores(model, pictures)
    return model


def tensor_from_picture(picture: np.ndarray) -> torch.Tensor:
    """Returns what torchvision wants of a picture (BGR): RGB planes from 0 to 1."""
    return torch.from_numpy(picture[:, :, ::-1].copy()).permute(2, 0, 1).float() / 255


def _fit_norms(model: nn.Module, pictures: list[np.ndarray]) -> None:
    """Sets running statistics from the pictures themselves, and gives norms weights and biases of their own."""
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d | nn.GroupNorm):
            norm.weight.uniform_(0.7, 1.3)
            norm.bias.normal_(0, 0.1)
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = None
            norm.reset_running_stats()
    images, _ = model.transform([tensor_from_picture(picture) for picture in pictures])
    features = model.backbone.train()(images.tensors)
    heads = getattr(model, "roi_heads", None)
    if heads is None:
        return
    boxes = [torch.tensor([[10.0, 10.0, 90.0, 90.0], [40.0, 20.0, 200.0, 150.0]])] * len(images.image_sizes)
    for pool, head in ((heads.box_roi_pool, heads.box_head), (heads.mask_roi_pool, heads.mask_head)):
        if head is not None:
            head.train()(pool(features, boxes, images.image_sizes))
            pool.scales = pool.map_levels = None


def _output_layers(model: nn.Module) -> list[dict[nn.Module, float]]:
    """Returns output layers with the spread that each shall have, stage by stage: a later stage sees what an earlier one says."""
    if hasattr(model, "head"):
        return [{model.head.classification_head.cls_logits: 1.0, model.head.regression_head.bbox_reg: 0.1}]
    heads = model.roi_heads
    stages = [
        {model.rpn.head.cls_logits: 1.0, model.rpn.head.bbox_pred: 0.1},
        {heads.box_predictor.cls_score: 1.0, heads.box_predictor.bbox_pred: 0.5},
    ]
    if heads.has_mask():
        stages.append({heads.mask_predictor.mask_fcn_logits: 2.0})
    if heads.has_keypoint():
        stages.append({heads.keypoint_predictor.kps_score_lowres: 2.0})
    return stages


def _spread_outputs(model: nn.Module, layers: dict[nn.Module, float], picture: np.ndarray) -> None:
    for layer in layers:
        layer.bias.zero_()
    for (layer, spread), values in zip(layers.items(), _record(model, list(layers), picture), strict=True):
        layer.weight.mul_(spread / float(values.std()))


def _record(model: nn.Module, layers: list[nn.Module], picture: np.ndarray) -> list[torch.Tensor]:
    """Runs a model and returns all that each layer said, flat over levels: (rows, channels)."""
    said: dict[nn.Module, list[torch.Tensor]] = {layer: [] for layer in layers}

    def note(layer: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        said[layer].append(output.movedim(1, -1).flatten(0, -2))

    handles = [layer.register_forward_hook(note) for layer in layers]
    model([tensor_from_picture(picture)])
    for handle in handles:
        handle.remove()
    return [torch.cat(values) for values in said.values()]


def _separate_scores(model: nn.Module, pictures: list[np.ndarray]) -> None:
    """Sets the biases of class scores: `CANDIDATES` are above the threshold in every picture, the best of them far from each other.

    Noise moves logits by much the same amount everywhere, so of many draws the one is taken whose best logits are the farthest apart.
    """
    one_stage = hasattr(model, "head")
    layer = model.head.classification_head.cls_logits if one_stage else model.roi_heads.box_predictor.cls_score
    recorded = [logits.double() for picture in pictures for logits in _record(model, [layer], picture)]
    least = [_keep_highest(logits) for logits in recorded] if one_stage else recorded
    add = _add_to_anchors if one_stage else _add_to_classes
    draws = [torch.randn(len(layer.bias), dtype=torch.float64) * 0.7 for _ in range(DRAWS)]
    biases = [add(least, draw) for draw in draws]
    layer.bias.copy_(max(biases, key=lambda bias: min(_narrowest_gap(one, bias, one_stage=one_stage) for one in least)))


def _keep_highest(logits: torch.Tensor) -> torch.Tensor:
    """Returns logits (anchors, channels) with -inf for all but a few thousand."""
    return torch.where(logits >= logits.flatten().topk(4000).values[-1], logits, -torch.inf)


def _add_to_anchors(recorded: list[torch.Tensor], draw: torch.Tensor) -> torch.Tensor:
    """Returns a draw raised or lowered so that enough candidates pass."""
    threshold = torch.logit(torch.tensor(THRESHOLD, dtype=torch.float64))
    return draw + _choose_bias([(threshold - logits - draw).flatten() for logits in recorded])


def _add_to_classes(recorded: list[torch.Tensor], draw: torch.Tensor) -> torch.Tensor:
    """Returns a draw with a background such that enough candidates pass."""
    needed = []
    for logits in recorded:
        powers = (logits + draw).exp()
        foreground = powers[:, 1:]
        most = ((foreground / THRESHOLD - foreground.sum(1, keepdim=True)) / powers[:, :1]).clamp(min=1e-9).log()
        needed.append(-most.flatten())
    bias = draw.clone()
    bias[0] -= _choose_bias(needed)
    return bias


def _choose_bias(needed: list[torch.Tensor]) -> float:
    """Returns the middle of the widest gap between what candidates need, near what the poorest picture needs."""
    least = max(float(one.sort().values[min(CANDIDATES, len(one) // 2)]) for one in needed)
    every = torch.cat(needed).sort().values
    above = every[every >= least][:20]
    widest = int((above[1:] - above[:-1]).argmax())
    return float(above[widest : widest + 2].mean())


def _narrowest_gap(logits: torch.Tensor, bias: torch.Tensor, *, one_stage: bool) -> float:
    """Returns the least distance between the best scores, as logits."""
    scores = (logits + bias).sigmoid() if one_stage else (logits + bias).softmax(1)[:, 1:]
    best = scores.flatten().topk(40).values.logit()
    return float((best[:-1] - best[1:]).min())


def answer(model: nn.Module, picture: np.ndarray) -> EagerAnswer:
    """Runs a model on one picture (BGR)."""
    with torch.no_grad():
        (found,) = model([tensor_from_picture(picture)])
    part = {name: value.numpy() for name, value in found.items()}
    masks = part["masks"][:, 0] if "masks" in part else None
    return EagerAnswer(
        part["boxes"], part["scores"], part["labels"], masks, part.get("keypoints"), part.get("keypoints_scores")
    )


def save_state(model: nn.Module, path: Path) -> Path:
    """Saves a model's state dict."""
    torch.save(model.state_dict(), path)
    return path


def disturb_weights(model: nn.Module, *, relative: float = 1e-6) -> None:
    """Multiplies every weight by one plus a little noise."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + relative * torch.randn(parameter.shape, generator=generator))
