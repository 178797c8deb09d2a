"""Golden whole-model cases: rebuilt from their recipe into the files that a user would hold, and compared with the original's answers."""

from __future__ import annotations

import importlib.util
import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np

BOX_TOLERANCE = 0.01
SCORE_TOLERANCE = 1e-4


@dataclass(frozen=True)
class ModelCase:
    """Is one case: the files on disk, the options for `--set`, the picture, and what the original answered."""

    name: str
    info: dict[str, Any]
    cfg: Path
    weights: Path
    overrides: tuple[tuple[str, str], ...]
    picture: Path
    expected: dict[str, np.ndarray]


@lru_cache(maxsize=4)
def _load_recipe(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"weights_recipe_{folder.name}", folder / "weights_recipe.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_weights(info: dict[str, Any], recipe_folder: Path, folder: Path) -> Path:
    """Writes the weights file that a case's json describes into `folder` and returns its path."""
    recipe = _load_recipe(recipe_folder)
    absent = set(info.get("params_not_in_file", ()))
    shapes = {name: tuple(shape) for name, shape in info["param_shapes"].items()}
    blobs = recipe.make_weights(shapes, info["seed"], info["gains"], info.get("quant", False))
    assert recipe.digest(blobs) == info["weights_sha256"], "the recipe did not give the original's weights"
    blobs = {name: blob for name, blob in blobs.items() if name not in absent}
    content: object = {"blobs": blobs}
    if info.get("pkl_variant") == "flat":
        content = blobs
    elif info.get("pkl_variant") == "old_cfg":
        content = {"blobs": blobs, "cfg": "MODEL:\n  TYPE: generalized_rcnn\n"}
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / f"{info['case']}.pkl"
    with weights.open("wb") as stream:
        pickle.dump(content, stream, protocol=2)
    return weights


def _find_picture(image: dict[str, Any], source: Path, folder: Path) -> Path:
    """Returns the stored picture, or writes it from its recipe where it is not stored."""
    if image.get("file"):
        return source / image["file"]
    seed, height, width = (int(word) for word in image["recipe"].split("(")[1].rstrip(")").split(","))
    path = folder / "picture.png"
    picture = _load_recipe(source).make_image(seed, height, width)
    path.write_bytes(cv2.imencode(".png", picture)[1].tobytes())
    return path


def build_case(description: Path, folder: Path) -> ModelCase:
    """Writes the weights file of a case into `folder`; `description` is the case's json."""
    info = json.loads(description.read_text())
    source = description.parent
    weights = write_weights(info, source, folder)
    options = info["opts"]
    with np.load(source / f"{info['case']}.npz") as stored:
        expected = {name: stored[name] for name in stored.files}
    return ModelCase(
        name=info["case"],
        info=info,
        cfg=source / f"{info['case']}.cfg.yaml",
        weights=weights,
        overrides=tuple(zip(options[::2], map(str, options[1::2]), strict=True)),
        picture=_find_picture(info["image"], source, folder),
        expected=expected,
    )


def assert_same_detections(expected: np.ndarray, boxes: np.ndarray, scores: np.ndarray, classes: np.ndarray) -> None:
    """Compares with rows (x1, y1, x2, y2, score, class): same count, order and classes, boxes and scores within tolerance."""
    assert len(expected) == len(scores)
    np.testing.assert_array_equal(classes, expected[:, 5].astype(np.int64))
    np.testing.assert_allclose(boxes, expected[:, :4], atol=BOX_TOLERANCE, rtol=0)
    np.testing.assert_allclose(scores, expected[:, 4], atol=SCORE_TOLERANCE, rtol=0)


def assert_same_proposals(expected: Sequence[np.ndarray], boxes: np.ndarray, scores: np.ndarray) -> None:
    """Compares with (boxes, scores): same count and order, within tolerance."""
    assert len(expected[1]) == len(scores)
    np.testing.assert_allclose(boxes, expected[0], atol=BOX_TOLERANCE, rtol=0)
    np.testing.assert_allclose(scores, expected[1], atol=SCORE_TOLERANCE, rtol=0)
