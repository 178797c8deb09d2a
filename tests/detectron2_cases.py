"""Golden whole-model cases of detectron2: rebuilt from their recipe into the files that a user would hold."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from model_cases import _load_recipe, write_weights
from shared_data import shared_path

from roiline.core.spec import ModelSpec
from roiline.core.structures import ImageBatch
from roiline.infer.preparation import prepare_picture, stack_batch

FOLDER = "golden/detectron2/e2e"


@dataclass(frozen=True)
class Detectron2Case:
    """Is one case: its description, its files on disk, and what the original answered."""

    name: str
    info: dict[str, Any]
    cfg: Path
    weights: Path
    arrays: dict[str, np.ndarray]

    def expect(self, key: str, image: int) -> np.ndarray:
        """Returns what the original answered for one image."""
        return self.arrays[f"{key}/im{image}" if len(self.info["images"]) > 1 else key]

    def masks(self, image: int) -> list[list[Any]]:
        """Returns rows (class, size, run lengths, area) of one image."""
        rows = self.info["masks_rle"]
        return rows[image] if len(self.info["images"]) > 1 else rows


def recipe_of(expression: str) -> Any:
    """Returns what a recipe's call makes, `weights_recipe.make_image(3, 150, 210)`."""
    name, arguments = re.fullmatch(r"weights_recipe\.(\w+)\((.*)\)", expression).groups()
    recipe = _load_recipe(shared_path("golden/detectron2"))
    return getattr(recipe, name)(*(int(part) for part in arguments.split(",")))


def build_detectron2_case(name: str, folder: Path) -> Detectron2Case:
    """Writes the files of a case into `folder`."""
    info = json.loads(shared_path(f"{FOLDER}/{name}.json").read_text())
    cfg = folder / f"{name}.yaml"
    cfg.write_text(info["config_yaml"])
    with np.load(shared_path(f"{FOLDER}/{name}.npz")) as stored:
        arrays = {key: stored[key] for key in stored.files}
    return Detectron2Case(name, info, cfg, _write_weights(info, folder / f"{name}.pkl"), arrays)


def _write_weights(info: dict[str, Any], path: Path) -> Path:
    if "weights" in info:
        source = shared_path(re.match(r"(\S+\.json)", info["weights"])[1])
        return write_weights(json.loads(source.read_text()), source.parent, path.parent)
    with path.open("wb") as stream:
        pickle.dump({"model": make_parameters(info), "__author__": "a test"}, stream, protocol=2)
    return path


def make_parameters(info: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns the parameters of a case that has a recipe."""
    recipe = _load_recipe(shared_path("golden/detectron2"))
    shapes = {name: tuple(shape) for name, shape in info["param_shapes"].items()}
    made = recipe.make_weights(shapes, info["seed"], info["gains"], info["identity_bn"], info["edits"])
    assert recipe.digest(made) == info["weights_sha256"], "the recipe did not give the original's weights"
    return made


def digest_of(parameters: dict[str, np.ndarray]) -> str:
    """Returns the digest that descriptions give of weights."""
    digest: str = _load_recipe(shared_path("golden/detectron2")).digest(parameters)
    return digest


def make_batch(case: Detectron2Case, spec: ModelSpec) -> ImageBatch:
    """Returns the case's images as network input; results are wanted in the size that the case says."""
    pictures = [recipe_of(image["recipe"]) for image in case.info["images"]]
    batch = stack_batch([prepare_picture(one, spec.images) for one in pictures], range(len(pictures)), padded=True)
    sizes = np.array([image["output_hw"] for image in case.info["images"]], np.float32)
    proposals = ()
    if spec.given_proposals is not None:
        proposals = tuple(recipe_of(image["proposals"]["recipe"])[0] for image in case.info["images"])
    return replace(batch, sizes=sizes, proposals=proposals)
