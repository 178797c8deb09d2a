"""Thin models of any family: seeded weights made from what a network says that it needs, with few channels where weights decide."""

from __future__ import annotations

import pickle
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from roiline.core.spec import ModelSpec
from roiline.export.detectron.config import DetectronConfig, config_from_text
from roiline.export.detectron.exporter import export_detectron
from roiline.export.detectron.source import architecture_from_config
from roiline.export.networks import Network, write_network

THIN = {
    "FPN.DIM": "32",
    "FAST_RCNN.MLP_HEAD_DIM": "32",
    "FAST_RCNN.CONV_HEAD_DIM": "32",
    "MRCNN.DIM_REDUCED": "32",
    "KRCNN.CONV_HEAD_DIM": "32",
}
"""Options for `--set` that make every width small which a configuration fixes (multiples of 32: group normalisation divides them)."""


class ThinShapes(Mapping[str, tuple[int, ...]]):
    """Answers a width for every blob: 32 channels, 64 inside residual blocks with groups."""

    def __init__(self, groups: int) -> None:
        self._inner = max(32, groups)

    def __getitem__(self, name: str) -> tuple[int, ...]:
        return ((self._inner if re.search(r"branch2[ab]_w$", name) else 32),) * 2

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def lay_out(text: str, overrides: Sequence[tuple[str, str]], *, proposals_only: bool = False) -> Network:
    """Lays out the network of a configuration over thin shapes."""
    return lay_out_config(config_from_text(text, overrides), proposals_only=proposals_only)


def lay_out_config(config: DetectronConfig, *, proposals_only: bool = False) -> Network:
    """Lays out the network of a merged configuration over thin shapes."""
    architecture = architecture_from_config(config, proposals_only=proposals_only)
    return write_network(architecture, ThinShapes(config["RESNETS.NUM_GROUPS"]))


def make_blobs(network: Network, seed: int = 7) -> dict[str, np.ndarray]:
    """Makes seeded weights for all that a network needs, scaled so that activations neither vanish nor explode."""
    return {need.name: _make_blob(need.name, need.shape, seed) for need in network.graph.requirements}


def _make_blob(name: str, shape: Sequence[int], seed: int) -> np.ndarray:
    rng = np.random.default_rng((zlib.crc32(name.encode()) + seed) & 0xFFFFFFFF)
    if name.endswith("_s"):
        return rng.uniform(0.5, 1.0, shape).astype(np.float32) * (0.01 if name == "res_conv1_bn_s" else 1.0)
    if name.endswith("_b"):
        return rng.normal(0, 0.1, shape).astype(np.float32)
    return rng.normal(0, np.sqrt(2.0 / np.prod(shape[1:])), shape).astype(np.float32)


@dataclass(frozen=True)
class ThinModel:
    """Is an exported thin model: its weights, its specification, and its file."""

    blobs: dict[str, np.ndarray]
    spec: ModelSpec
    path: Path

    @cached_property
    def session(self) -> Any:
        """Is a session of ONNX Runtime over the model."""
        return open_session(self.path)

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs the whole model; feeds that it does not take are left out."""
        wanted = {tensor.name: feeds[tensor.name] for tensor in self.session.get_inputs()}
        names = [tensor.name for tensor in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, wanted), strict=True))


def export_thin(text: str, folder: Path, *, taps: Sequence[str] = (), overrides: Mapping[str, str] = THIN) -> ThinModel:
    """Exports the model of a configuration with thin weights."""
    sets = tuple(overrides.items())
    blobs = make_blobs(lay_out(text, sets))
    cfg, weights, out = folder / "model.yaml", folder / "model.pkl", folder / "model.onnx"
    cfg.write_text(text)
    weights.write_bytes(pickle.dumps({"blobs": blobs}, protocol=2))
    report = export_detectron(cfg, weights, out, overrides=sets, taps=taps)
    return ThinModel(blobs, report.spec, out)


def open_session(path: Path) -> Any:
    """Opens a model file in ONNX Runtime with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def feed_pictures(images: int, height: int, width: int, scale: float = 1.25) -> dict[str, np.ndarray]:
    """Makes seeded pictures as network input."""
    rng = np.random.default_rng(3)
    return {
        "data": rng.normal(0, 50, (images, 3, height, width)).astype(np.float32),
        "im_info": np.tile(np.array([[height, width, scale]], np.float32), (images, 1)),
        "im_size": np.tile(np.array([[height, width]], np.float32) / np.float32(scale), (images, 1)).round(),
    }


def feed_rois(images: int, each: int, height: int, width: int) -> dict[str, np.ndarray]:
    """Makes seeded RoIs; every third proposal of a picture stands for its first one's row."""
    rng = np.random.default_rng(4)
    low = rng.uniform(0, 0.6, (images * each, 2)) * (width, height)
    size = rng.uniform(0.1, 0.4, (images * each, 2)) * (width, height)
    image = np.repeat(np.arange(images), each)[:, None]
    index = np.arange(images * each)
    index[::3] = index[::3] // each * each
    return {
        "rois": np.concatenate([image, low, low + size], axis=1).astype(np.float32),
        "roi_index": index.astype(np.int64),
        "roi_count": np.full(images, each, np.int64),
    }
