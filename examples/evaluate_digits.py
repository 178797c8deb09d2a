"""Held-out metrics of the demo detector with Detectron's test rules, apart from roiline's own code.

This is a second opinion on the shipped weights: torch for the network, numpy for the rules around it, a COCO
evaluator for the numbers. Needs the extras `train` and `eval`.

    python examples/evaluate_digits.py [--data examples/digits]
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
import yaml
from torch import Tensor

from roiline.examples import digits_network as network

#: What is printed: our title and the evaluator's key (its "third" recall is the one of 100 detections a picture).
SHOWN_METRICS = (("AP .50:.95", "AP_all"), ("AP .50", "AP_50"), ("AP .75", "AP_75"), ("AR .50:.95 of 100", "AR_third"))


def detect_digits(
    blobs: Mapping[str, Tensor], image: np.ndarray, test: Mapping[str, Any]
) -> list[tuple[int, np.ndarray]]:
    """Detect in one BGR picture: (class index >= 1, x1 y1 x2 y2 score) in original pixels."""
    data, scale = _prepare_image(image, int(test["SCALE"]), int(test["MAX_SIZE"]))
    features = network.compute_features(blobs, data, _apply_affine(blobs))
    rois = _propose(blobs, features, data.shape[2:], test)
    logits, deltas = network.compute_box_head(blobs, features, rois)
    scores = torch.softmax(logits, dim=1).numpy()
    decoded = network.decode_boxes(rois[:, 1:] / scale, deltas.reshape(len(rois), -1, 4), network.BBOX_REG_WEIGHTS)
    boxes = network.clip_boxes(decoded, *map(float, image.shape[:2])).numpy()
    found: list[tuple[int, np.ndarray]] = []
    for index in range(1, scores.shape[1]):
        rows = np.nonzero(scores[:, index] > test["SCORE_THRESH"])[0]
        candidates = np.column_stack([boxes[rows, index], scores[rows, index]])
        found.extend((index, candidates[row]) for row in suppress_boxes(candidates, test["NMS"]))
    found.sort(key=lambda detection: -detection[1][4])
    return found[: int(test["DETECTIONS_PER_IM"])]


def suppress_boxes(boxes: np.ndarray, threshold: float) -> list[int]:
    """Return the rows of boxes (D, 5) that greedy NMS keeps; an IoU equal to the threshold suppresses."""
    areas = (boxes[:, 2] - boxes[:, 0] + 1) * (boxes[:, 3] - boxes[:, 1] + 1)
    order = np.argsort(-boxes[:, 4], kind="stable")
    kept: list[int] = []
    while len(order):
        first, rest = order[0], order[1:]
        kept.append(int(first))
        corner = np.maximum(boxes[first, :2], boxes[rest, :2])
        extent = np.maximum(np.minimum(boxes[first, 2:4], boxes[rest, 2:4]) - corner + 1, 0)
        shared = extent[:, 0] * extent[:, 1]
        order = rest[shared / (areas[first] + areas[rest] - shared) < threshold]
    return kept


def _prepare_image(image: np.ndarray, target: int, max_size: int) -> tuple[Tensor, float]:
    """Subtract the means, resize by one factor, pad to multiples of 32: (1, 3, H, W) and the factor."""
    shorter, longer = min(image.shape[:2]), max(image.shape[:2])
    scale = target / shorter
    if np.round(scale * longer) > max_size:
        scale = max_size / longer
    centred = image.astype(np.float32) - np.array(network.PIXEL_MEANS_BGR, np.float32)
    resized = cv2.resize(centred, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
    height, width = resized.shape[:2]
    padded = np.zeros((-(-height // 32) * 32, -(-width // 32) * 32, 3), np.float32)
    padded[:height, :width] = resized
    return torch.from_numpy(padded.transpose(2, 0, 1)[None].copy()), scale


def _apply_affine(blobs: Mapping[str, Tensor]) -> network.Normalize:
    """Return the affine channel of a shipped model."""
    return lambda name, x: x * blobs[f"{name}_s"][:, None, None] + blobs[f"{name}_b"][:, None, None]


def _propose(
    blobs: Mapping[str, Tensor], features: Mapping[int, Tensor], size_hw: tuple[int, ...], test: Mapping[str, Any]
) -> Tensor:
    """Make the RoIs (R, 5): per level top N, decode, clip, NMS; then the best over all levels."""
    rows_of_levels = []
    for level in network.RPN_LEVELS:
        logits, deltas = network.compute_rpn(blobs, features[level])
        scores = torch.sigmoid(logits[0])
        # Scores near one are often equal; a stable order lets the first of them win, as roiline does.
        rows = torch.sort(scores, descending=True, stable=True).indices[: int(test["RPN_PRE_NMS_TOP_N"])]
        anchors = network.generate_anchors(level, *features[level].shape[2:])[rows]
        decoded = network.decode_boxes(anchors, deltas[0, rows][:, None], network.RPN_REG_WEIGHTS)[:, 0]
        boxes = network.clip_boxes(decoded, *map(float, size_hw))
        candidates = torch.cat([boxes, scores[rows, None]], dim=1).numpy()
        kept = suppress_boxes(candidates, test["RPN_NMS_THRESH"])[: int(test["RPN_POST_NMS_TOP_N"])]
        rows_of_levels.append(candidates[kept])
    merged = np.concatenate(rows_of_levels)
    best = np.argsort(-merged[:, 4], kind="stable")[: int(test["RPN_POST_NMS_TOP_N"])]
    return torch.from_numpy(np.column_stack([np.zeros(len(best), np.float32), merged[best, :4]]))


def evaluate_blobs(blobs: Mapping[str, np.ndarray], data: Path) -> float:
    """Print the COCO metrics on the held-out pictures below `data` and return AP (IoU .50:.95)."""
    from faster_coco_eval import COCO, COCOeval_faster

    truth = COCO(str(data / "annotations.json"))
    test = yaml.safe_load((data / "digits.yaml").read_text(encoding="utf-8"))["TEST"]
    tensors = {name: torch.from_numpy(value) for name, value in blobs.items()}
    ids = sorted(truth.getCatIds())
    results = []
    with torch.inference_mode():
        for entry in truth.loadImgs(truth.getImgIds()):
            path = data / "pictures" / entry["file_name"]
            image = cv2.imread(str(path))
            if image is None:
                raise FileNotFoundError(f"{path} is missing or no picture; run make_pictures.py first")
            for index, (x1, y1, x2, y2, score) in detect_digits(tensors, image, test):
                box = [float(x1), float(y1), float(x2 - x1 + 1), float(y2 - y1 + 1)]
                found = {"category_id": ids[index - 1], "bbox": box, "score": float(score)}
                results.append({"image_id": entry["id"]} | found)
    evaluation = COCOeval_faster(truth, truth.loadRes(results), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    metrics = evaluation.stats_as_dict
    for title, key in SHOWN_METRICS:
        print(f"{title:20s} {metrics[key]:.3f}")
    return float(metrics["AP_all"])


def main() -> None:
    """Evaluate the shipped weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "digits")
    arguments = parser.parse_args()
    content = pickle.loads((arguments.data / "digits.pkl").read_bytes(), encoding="latin1")  # noqa: S301 - our own file
    evaluate_blobs(content["blobs"], arguments.data)


if __name__ == "__main__":
    main()
