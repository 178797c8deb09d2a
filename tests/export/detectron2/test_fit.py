"""What is said of checkpoints that do not fit, of a small model that is made here."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from roiline.core.errors import UsageError, WeightError
from roiline.export.detectron2.config import load_config
from roiline.export.detectron2.exporter import export_detectron2
from roiline.export.detectron2.source import source_from_config
from roiline.export.networks import write_network

CONFIG = """
MODEL:
  MASK_ON: true
  RESNETS: {STEM_OUT_CHANNELS: 4, RES2_OUT_CHANNELS: 8, WIDTH_PER_GROUP: 4}
  ROI_HEADS: {NUM_CLASSES: 3}
  ROI_MASK_HEAD: {CONV_DIM: 4}
  ANCHOR_GENERATOR: {SIZES: [[32, 64]]}
"""
WIDTHS = {"conv1": 4, "branch2a": 4, "branch2b": 4, "branch2c": 8, "branch1": 8}


class _Widths(dict):
    """Answers the widths that blobs have where only weights say them: those of a body that doubles from stage to stage."""

    def get(self, name, default=()):
        part = next((part for part in WIDTHS if part in name), None)
        if part is None:
            return default
        stage = int(name.partition("res")[2][:1] or 2)
        return (WIDTHS[part] * 2 ** (stage - 2),) * 2


@pytest.fixture
def cfg(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def parameters(cfg):
    """Returns parameters that fit the configuration."""
    rng = np.random.default_rng(0)
    source = source_from_config(load_config(cfg), proposals_only=False)
    network = write_network(
        source.architecture, _Widths(), resolve=lambda name: name.removeprefix("_[mask]_") if "res5" in name else name
    )
    shapes = {
        need.name.removeprefix("_[mask]_") if "res5" in need.name else need.name: need.shape
        for need in network.graph.requirements
    }
    made = {}
    for layer in source.layers:
        absent = {"deltas": 4, "masks": 1}.get(layer.rows, 0)
        for blob, names in layer.parameters.items():
            shape = (shapes[blob][0] - absent, *shapes[blob][1:])
            for name in names:
                made.setdefault(
                    name, rng.uniform(0.01, 0.1, shape if name == names[0] else shape[:1]).astype(np.float32)
                )
    return made


def export(cfg, parameters, folder, **options):
    weights = folder / "w.pkl"
    weights.write_bytes(pickle.dumps({"model": parameters, "__author__": "a test"}))
    return export_detectron2(cfg, weights, folder / "m.onnx", **options)


def test_a_model_that_fits(cfg, parameters, tmp_path):
    extra = {
        "pixel_mean": np.zeros(3),
        "a.num_batches_tracked": np.zeros((), np.int64),
        "sem_seg_head.x.weight": np.zeros(1),
    }
    report = export(cfg, parameters | extra, tmp_path, class_names=["a", "b", "c"])
    assert report.leftovers == ("not used: sem_seg_head.x.weight",)
    assert report.spec.tasks == ("proposals", "detections")
    assert report.spec.class_names == ("a", "b", "c")
    assert report.spec.masks.paste == "detectron2"


def test_the_same_files_give_the_same_bytes(cfg, parameters, tmp_path):
    first = export(cfg, parameters, tmp_path).path.read_bytes()
    assert export(cfg, parameters, tmp_path).path.read_bytes() == first


def test_all_faults_are_listed_by_detectron2s_names(cfg, parameters, tmp_path):
    wrong = dict(parameters)
    del wrong["proposal_generator.rpn_head.conv.bias"]
    wrong["roi_heads.box_predictor.bbox_pred.weight"] = np.zeros((20, 64), np.float32)
    wrong["backbone.res3.0.conv1.norm.running_var"] = np.full(8, np.nan, np.float32)
    wrong["backbone.res4.6.conv1.weight"] = np.zeros((16, 32, 1, 1), np.float32)
    with pytest.raises(WeightError) as failure:
        export(cfg, wrong, tmp_path)
    message = str(failure.value)
    lines = {line.split()[0]: line for line in message.splitlines()[2:]}
    assert "missing" in lines["proposal_generator.rpn_head.conv.bias"]
    assert "20x64" in lines["roi_heads.box_predictor.bbox_pred.weight"]
    assert "12x64" in lines["roi_heads.box_predictor.bbox_pred.weight"]
    assert "NaN" in lines["backbone.res3.0.conv1.norm.running_var"]
    assert "deeper body" in lines["backbone.res4.6.conv1.weight"]
    assert "3 classes" in message
    assert "res4 x 7" in message


@pytest.mark.parametrize("prefix", ["", "backbone."])
def test_a_deeper_body_is_another_one(prefix, cfg, parameters, tmp_path):
    deeper = parameters | {f"{prefix}res4.6.conv1.weight": np.zeros((16, 32, 1, 1), np.float32)}
    with pytest.raises(WeightError, match="a deeper body"):
        export(cfg, deeper, tmp_path)


def test_what_comes_after_detections_may_be_of_no_use(cfg, parameters, tmp_path):
    broken = parameters | {"roi_heads.mask_head.predictor.weight": np.full((3, 4, 1, 1), np.nan, np.float32)}
    report = export(cfg, broken, tmp_path)
    assert "mask head makes nothing of use" in report.leftovers[0]


def test_weights_of_another_model(cfg, parameters, tmp_path):
    pyramid = {f"backbone.bottom_up.{name.removeprefix('backbone.')}": value for name, value in parameters.items()}
    with pytest.raises(WeightError, match="do not fit"):
        export(cfg, pyramid, tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"class_names": ["a"]}, "3 classes"),
        ({"class_names": ["a", "a", "b"]}, "twice"),
        ({"task": "classification"}, "not classification"),
        ({"taps": ["nothing_like_it"]}, "nothing_like_it"),
    ],
)
def test_wrong_usage(options, said, cfg, parameters, tmp_path):
    with pytest.raises(UsageError, match=said):
        export(cfg, parameters, tmp_path, **options)
