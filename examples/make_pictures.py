"""Pictures of handwritten digits on cluttered backgrounds, with their boxes.

The digits are the 8 x 8 scans that scikit-learn bundles (UCI optdigits). They are enlarged, turned, coloured and
pasted on backgrounds of gradients, shapes, strokes and noise. Run as a script, this module writes the held-out
pictures of the demo and their COCO annotations; imported, it composes the training pictures in memory. Training and
held-out pictures never share a digit sample: every fifth sample is held out.

    python examples/make_pictures.py [--output examples/digits] [--count 24] [--seed 2024]
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Box = tuple[int, int, int, int]

CLASS_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
#: Ids that neither start at 1 nor equal the class index, as real data sets have them.
CATEGORY_IDS = tuple(range(11, 21))
HELD_OUT_EVERY = 5
JPEG_QUALITY = 85
GLYPH_HEIGHT_PX = (30.0, 100.0)
SHORTEST_SIDE_PX = 128
PLACEMENT_TRIES = 12
MIN_LUMA_CONTRAST = 60.0
LUMA_BGR = np.array([0.114, 0.587, 0.299], np.float32)


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Digit samples: `images` (M, 8, 8) float32 ink in 0..1 and `labels` (M,) int64, 0..9."""

    images: Floats
    labels: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Picture:
    """One composed picture.

    `pixels` (H, W, 3) uint8 BGR; `boxes` (G, 4) int64, x1 y1 x2 y2 of the outermost inked pixels, both inclusive;
    `labels` (G,) int64, 0..9.
    """

    pixels: Pixels
    boxes: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]


def load_glyphs(*, held_out: bool) -> Glyphs:
    """Load the held-out or the training part of scikit-learn's digits."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    chosen = (np.arange(len(digits.target)) % HELD_OUT_EVERY == 0) == held_out
    images = (digits.images[chosen] / 16.0).astype(np.float32)
    return Glyphs(images, digits.target[chosen].astype(np.int64))


def compose_picture(rng: np.random.Generator, glyphs: Glyphs, height: int, width: int, *, most: int) -> Picture:
    """Compose one picture with up to `most` digits that do not overlap.

    Raises:
        ValueError: if a side is too short for a digit.
    """
    if min(height, width) < SHORTEST_SIDE_PX:
        raise ValueError(f"a picture needs at least {SHORTEST_SIDE_PX} pixels a side, got {height} x {width}")
    canvas = _draw_background(rng, height, width)
    boxes: list[Box] = []
    labels: list[int] = []
    for _ in range(int(rng.integers(max(1, most // 2), most + 1))):
        sample = int(rng.integers(len(glyphs.labels)))
        ink = _render_glyph(rng, glyphs.images[sample])
        corner = _find_place(rng, ink.shape, (height, width), boxes)
        if corner is None:
            continue
        x, y = corner
        _blend_ink(rng, canvas[y : y + ink.shape[0], x : x + ink.shape[1]], ink)
        boxes.append((x, y, x + ink.shape[1] - 1, y + ink.shape[0] - 1))
        labels.append(int(glyphs.labels[sample]))
    noise = rng.normal(0.0, rng.uniform(0.0, 8.0), canvas.shape).astype(np.float32)
    pixels = np.clip(np.rint(canvas + noise), 0, 255).astype(np.uint8)
    return Picture(pixels, np.array(boxes, np.int64).reshape(-1, 4), np.array(labels, np.int64))


def iterate_held_out(seed: int, count: int) -> Iterator[Picture]:
    """Compose the held-out pictures in order; each depends on the seed and its own index only."""
    glyphs = load_glyphs(held_out=True)
    for index in range(count):
        rng = np.random.default_rng([seed, index])
        longer, shorter = int(rng.integers(300, 421)), int(rng.integers(240, 321))
        height, width = (shorter, longer) if index % 2 == 0 else (longer, shorter)
        yield compose_picture(rng, glyphs, height, width, most=8)


def write_data_set(output: Path, *, seed: int, count: int) -> None:
    """Write `pictures/*.jpg` and `annotations.json` (COCO) below `output`."""
    (output / "pictures").mkdir(parents=True, exist_ok=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index, picture in enumerate(iterate_held_out(seed, count)):
        image_id, name = 100 + index, f"digits_{index:03d}.jpg"
        encoded = cv2.imencode(".jpg", picture.pixels, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1]
        (output / "pictures" / name).write_bytes(encoded.tobytes())
        height, width = picture.pixels.shape[:2]
        images.append({"id": image_id, "file_name": name, "height": height, "width": width, "license": 1})
        annotations.extend(annotations_from_picture(picture, image_id, first_id=len(annotations) + 1))
    document = {
        "info": {"description": "Handwritten digits on cluttered backgrounds", "version": "1", "year": 2024},
        "licenses": [{"id": 1, "name": "CC BY 4.0", "url": "https://creativecommons.org/licenses/by/4.0/"}],
        "categories": [
            {"id": i, "name": n, "supercategory": "digit"} for i, n in zip(CATEGORY_IDS, CLASS_NAMES, strict=True)
        ],
        "images": images,
        "annotations": annotations,
    }
    (output / "annotations.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def annotations_from_picture(picture: Picture, image_id: int, *, first_id: int) -> list[dict[str, Any]]:
    """State a picture's digits as COCO annotations: x, y, width, height in pixels."""
    entries = []
    for offset, (box, label) in enumerate(zip(picture.boxes.tolist(), picture.labels.tolist(), strict=True)):
        x1, y1, x2, y2 = box
        width, height = x2 - x1 + 1, y2 - y1 + 1
        entries.append(
            {
                "id": first_id + offset,
                "image_id": image_id,
                "category_id": CATEGORY_IDS[label],
                "bbox": [x1, y1, width, height],
                "area": width * height,
                "iscrowd": 0,
            }
        )
    return entries


def _draw_background(rng: np.random.Generator, height: int, width: int) -> Floats:
    """Draw a smooth colour field (H, W, 3), shapes and strokes on it, some of them like parts of digits."""
    cells = rng.uniform(0, 255, (int(rng.integers(2, 5)), int(rng.integers(2, 5)), 3)).astype(np.float32)
    if rng.random() < 0.3:
        cells = np.broadcast_to(cells[:1, :1], cells.shape) + rng.normal(0, 6, cells.shape).astype(np.float32)
    field = cv2.resize(np.ascontiguousarray(cells, np.float32), (width, height), interpolation=cv2.INTER_CUBIC)
    canvas: Floats = np.clip(field, 0, 255).astype(np.float32)
    for _ in range(int(rng.integers(0, 14))):
        _draw_clutter(rng, canvas)
    if rng.random() < 0.4:
        cv2.GaussianBlur(canvas, (0, 0), float(rng.uniform(0.5, 1.5)), canvas)
    return canvas


def _draw_clutter(rng: np.random.Generator, canvas: Floats) -> None:
    """Draw one rectangle, line, arc or zigzag of random colour into the canvas, in place."""
    height, width = canvas.shape[:2]
    colour = rng.uniform(0, 255, 3).tolist()
    x, y = int(rng.integers(width)), int(rng.integers(height))
    reach = int(rng.integers(8, 70))
    thickness = int(rng.integers(1, 7))
    kind = int(rng.integers(4))
    if kind == 0:
        cv2.rectangle(canvas, (x, y), (x + reach, y + int(rng.integers(6, 60))), colour, cv2.FILLED)
    elif kind == 1:
        end = (int(rng.integers(width)), int(rng.integers(height)))
        cv2.line(canvas, (x, y), end, colour, thickness)
    elif kind == 2:
        axes = (reach // 2, int(rng.integers(4, 40)))
        start = float(rng.uniform(0, 360))
        stop = start + float(rng.uniform(40, 250))
        cv2.ellipse(canvas, (x, y), axes, float(rng.uniform(0, 180)), start, stop, colour, thickness)
    else:
        steps = rng.integers(-reach, reach + 1, (int(rng.integers(2, 5)), 2)) // 2
        points = (np.array([x, y]) + np.cumsum(steps, axis=0)).astype(np.int32)
        cv2.polylines(canvas, [points.reshape(-1, 1, 2)], False, colour, thickness)


def _render_glyph(rng: np.random.Generator, sample: Floats) -> Floats:
    """Enlarge one 8 x 8 sample to a turned, sheared patch of ink in 0..1, cropped to its inked pixels."""
    low, high = GLYPH_HEIGHT_PX
    height = float(np.exp(rng.uniform(math.log(low), math.log(high))))
    scale_y = height / 8.0
    scale_x = scale_y * float(rng.uniform(0.85, 1.25))
    angle, shear = math.radians(float(rng.uniform(-14, 14))), float(rng.uniform(-0.15, 0.15))
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    linear = turn @ np.array([[1.0, shear], [0.0, 1.0]]) @ np.diag([scale_x, scale_y])
    side = math.ceil(height * 2.2)
    offset = np.array([side / 2, side / 2]) - linear @ np.array([3.5, 3.5])
    matrix = np.column_stack([linear, offset]).astype(np.float64)
    grey = cv2.warpAffine(sample, matrix, (side, side), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_CONSTANT)
    level, gain = float(rng.uniform(0.4, 0.55)), float(rng.uniform(2.5, 7.0))
    ink: Floats = np.clip((grey - level) * gain + 0.5, 0.0, 1.0).astype(np.float32)
    rows, columns = np.nonzero((ink > 0.5).any(axis=1))[0], np.nonzero((ink > 0.5).any(axis=0))[0]
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _find_place(
    rng: np.random.Generator, shape: tuple[int, ...], size_hw: tuple[int, int], boxes: list[Box]
) -> tuple[int, int] | None:
    """Find a free x, y for a patch, or None when the tries run out."""
    height, width = shape[0], shape[1]
    for _ in range(PLACEMENT_TRIES):
        x = int(rng.integers(2, size_hw[1] - width - 1))
        y = int(rng.integers(2, size_hw[0] - height - 1))
        if all(x > b[2] + 2 or x + width < b[0] - 1 or y > b[3] + 2 or y + height < b[1] - 1 for b in boxes):
            return x, y
    return None


def _blend_ink(rng: np.random.Generator, region: Floats, ink: Floats) -> None:
    """Paint the ink over a region of the canvas, in place, in a colour that stands out from it."""
    ground = float((region.reshape(-1, 3).mean(axis=0) * LUMA_BGR).sum())
    colour = rng.uniform(0, 255, 3).astype(np.float32)
    while abs(float((colour * LUMA_BGR).sum()) - ground) < MIN_LUMA_CONTRAST:
        colour = rng.uniform(0, 255, 3).astype(np.float32)
    alpha = ink[..., None] * np.float32(rng.uniform(0.8, 1.0))
    region[...] = region * (1 - alpha) + colour * alpha


def main() -> None:
    """Write the held-out pictures of the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "digits")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=2024)
    arguments = parser.parse_args()
    write_data_set(arguments.output, seed=arguments.seed, count=arguments.count)


if __name__ == "__main__":
    main()
