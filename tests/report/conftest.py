from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from roiline.infer.datasets import load_dataset
from roiline.infer.roidb import Dataset

SIZES = {4: (60, 80), 9: (100, 120), 12: (90, 70)}
"""Image id -> (height, width)."""

CATEGORIES = ({"id": 30, "name": "cat"}, {"id": 20, "name": "dog"})

ANNOTATIONS = (
    {"id": 0, "image_id": 4, "category_id": 30, "bbox": [10, 10, 20, 20], "area": 400, "iscrowd": 0},
    {"id": 1, "image_id": 4, "category_id": 20, "bbox": [40, 20, 30, 30], "area": 900, "iscrowd": 0},
    {"id": 2, "image_id": 9, "category_id": 30, "bbox": [20, 20, 60, 60], "area": 3600, "iscrowd": 0},
    {"id": 3, "image_id": 9, "category_id": 20, "bbox": [0, 0, 110, 90], "area": 9900, "iscrowd": 1},
)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Three pictures, two of them annotated; categories in an order that is not that of their ids."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for key, (height, width) in SIZES.items():
        cv2.imwrite(str(folder / f"p{key}.png"), np.full((height, width, 3), 90, np.uint8))
    content = {
        "images": [{"id": k, "file_name": f"p{k}.png", "height": h, "width": w} for k, (h, w) in SIZES.items()],
        "categories": list(CATEGORIES),
        "annotations": list(ANNOTATIONS),
    }
    file = tmp_path / "pets.json"
    file.write_text(json.dumps(content))
    return load_dataset(file, images=folder)
