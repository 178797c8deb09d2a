"""The demo's weights: Detectron's names, shapes and file form, and a configuration that agrees with them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

pytest.importorskip("roiline.examples", reason="a wheel holds no examples")

from roiline.examples.make_pictures import CLASS_NAMES
from roiline.examples.weight_pickle import encode_weights

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
BLOCKS = {2: 3, 3: 4, 4: 6, 5: 3}
AFFINE = ("_s", "_b")


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    return pickle.loads((DIGITS / "digits.pkl").read_bytes(), encoding="latin1")


@pytest.fixture(scope="module")
def configuration() -> dict[str, Any]:
    return yaml.safe_load((DIGITS / "digits.yaml").read_text(encoding="utf-8"))


def _expected_shapes(configuration: dict[str, Any], widths: dict[int, int]) -> dict[str, tuple[int, ...]]:
    """State every blob of a R-50-FPN Faster R-CNN, from the configuration and the widths of the stages."""
    shapes: dict[str, tuple[int, ...]] = {"conv1_w": (64, 3, 7, 7)}
    affine = {"res_conv1_bn": 64}
    before = 64
    for stage, blocks in BLOCKS.items():
        inner, width = configuration["RESNETS"]["WIDTH_PER_GROUP"] * 2 ** (stage - 2), widths[stage]
        for block in range(blocks):
            prefix = f"res{stage}_{block}_branch"
            layers = {"2a": (inner, before, 1, 1), "2b": (inner, inner, 3, 3), "2c": (width, inner, 1, 1)}
            if block == 0:
                layers["1"] = (width, before, 1, 1)
            for branch, shape in layers.items():
                shapes[f"{prefix}{branch}_w"] = shape
                affine[f"{prefix}{branch}_bn"] = shape[0]
            before = width
    shapes |= {name + suffix: (width,) for name, width in affine.items() for suffix in AFFINE}
    dim, hidden = configuration["FPN"]["DIM"], configuration["FAST_RCNN"]["MLP_HEAD_DIM"]
    classes = configuration["MODEL"]["NUM_CLASSES"]
    layers = {
        "fpn_inner_res5_2_sum": (dim, widths[5], 1, 1),
        "fpn_inner_res4_5_sum_lateral": (dim, widths[4], 1, 1),
        "fpn_inner_res3_3_sum_lateral": (dim, widths[3], 1, 1),
        "fpn_inner_res2_2_sum_lateral": (dim, widths[2], 1, 1),
        "conv_rpn_fpn2": (dim, dim, 3, 3),
        "rpn_cls_logits_fpn2": (3, dim, 1, 1),
        "rpn_bbox_pred_fpn2": (12, dim, 1, 1),
        "fc6": (hidden, dim * 49),
        "fc7": (hidden, hidden),
        "cls_score": (classes, hidden),
        "bbox_pred": (4 * classes, hidden),
    }
    layers |= {f"fpn_res{stage}_{blocks - 1}_sum": (dim, dim, 3, 3) for stage, blocks in BLOCKS.items()}
    shapes |= {f"{name}_w": shape for name, shape in layers.items()}
    shapes |= {f"{name}_b": shape[:1] for name, shape in layers.items()}
    return shapes


def test_blobs_have_detectron_names_and_shapes(content: dict[str, Any], configuration: dict[str, Any]) -> None:
    widths = {stage: content["blobs"][f"res{stage}_0_branch1_w"].shape[0] for stage in BLOCKS}
    shapes = {name: blob.shape for name, blob in content["blobs"].items()}
    assert shapes == _expected_shapes(configuration, widths)


def test_blobs_are_finite_float32(content: dict[str, Any]) -> None:
    for name, blob in content["blobs"].items():
        assert blob.dtype == np.float32, name
        assert np.isfinite(blob).all(), name
        assert np.any(blob != 0), name


def test_file_is_below_six_megabytes() -> None:
    assert (DIGITS / "digits.pkl").stat().st_size < 6_000_000


def test_file_is_a_python_2_pickle_that_the_writer_repeats(content: dict[str, Any]) -> None:
    written = (DIGITS / "digits.pkl").read_bytes()
    assert written.startswith(b"\x80\x02")
    assert encode_weights(content["blobs"], content["cfg"]) == written


def test_file_carries_its_configuration(content: dict[str, Any], configuration: dict[str, Any]) -> None:
    assert set(content) == {"blobs", "cfg"}
    assert yaml.safe_load(content["cfg"]) == configuration
    assert configuration["MODEL"]["BBOX_REG_WEIGHTS"] == "(10.0, 10.0, 5.0, 5.0)"


def test_class_names_are_one_a_line_without_background(configuration: dict[str, Any]) -> None:
    lines = (DIGITS / "classes.txt").read_text(encoding="utf-8").splitlines()
    assert lines == list(CLASS_NAMES)
    assert len(lines) + 1 == configuration["MODEL"]["NUM_CLASSES"]


def test_writer_keeps_values_and_shapes() -> None:
    rng = np.random.default_rng(3)
    blobs = {"x_w": rng.normal(size=(2, 3, 1, 1)).astype(np.float32), "a_b": np.array([-0.0, 1e-40], np.float32)}
    read = pickle.loads(encode_weights(blobs, "MODEL: {}\n"), encoding="latin1")
    assert read["cfg"] == "MODEL: {}\n"
    assert list(read["blobs"]) == ["a_b", "x_w"]
    for name, blob in blobs.items():
        assert read["blobs"][name].tobytes() == blob.tobytes()
        assert read["blobs"][name].shape == blob.shape


def test_writer_takes_transposed_arrays() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    read = pickle.loads(encode_weights({"x_w": array}, ""), encoding="latin1")
    np.testing.assert_array_equal(read["blobs"]["x_w"], array)


def test_writer_refuses_other_types() -> None:
    with pytest.raises(TypeError, match="float32, got float64"):
        encode_weights({"x_w": np.zeros(2)}, "")  # type: ignore[dict-item]
