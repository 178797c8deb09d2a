"""Weights files are read in every layout, and what is no weights file is named."""

from __future__ import annotations

import hashlib
import json
import lzma
import pickle

import numpy as np
import pytest
from shared_data import shared_files, shared_path

from roiline.core.errors import WeightError
from roiline.export.detectron.weights import derive_structure, read_weights


def write_pickle(path, content, protocol=2):
    path.write_bytes(pickle.dumps(content, protocol))
    return path


def test_a_python_2_file_gives_the_blobs_that_were_written(tmp_path):
    content = lzma.decompress(shared_path("golden/e2e/faster_R50_FPN_tiny.py2.pkl.xz").read_bytes())
    path = tmp_path / "model_final.pkl"
    path.write_bytes(content)
    stored = json.loads(shared_path("golden/e2e/faster_R50_FPN_tiny.json").read_text())
    weights = read_weights(path)
    assert weights.sha256 == hashlib.sha256(content).hexdigest()
    assert weights.cfg_text.startswith("!!python/object/new:utils.collections.AttrDict")
    everything = pickle.loads(content, encoding="latin1")["blobs"]
    momentum = [name for name in everything if name.endswith("_momentum")]
    assert weights.dropped_momentum == len(momentum) > 0
    assert sorted(weights.blobs) == sorted(set(everything) - set(momentum))
    assert {name: list(weights.blobs[name].shape) for name in stored["param_shapes"]} == stored["param_shapes"]
    for name, blob in weights.blobs.items():
        assert blob.dtype == np.float32
        assert blob.flags.c_contiguous
        assert not blob.flags.writeable
        np.testing.assert_array_equal(blob, everything[name])
    assert weights.notes == ()


@pytest.mark.parametrize(
    "path", [*shared_files("models/bccd-detectron/bccd.pkl"), *shared_files("models/*/coco_cc_mask.pkl")]
)
def test_trained_files_are_read(path):
    weights = read_weights(path)
    structure = derive_structure(weights.blobs)
    assert (structure.family, structure.depth, structure.norm) == ("ResNet", 50, "bn")
    assert (structure.groups, structure.width_per_group) == (1, 32)
    assert structure.has_fpn
    assert structure.has_rpn
    assert weights.dropped_momentum > 0


def test_the_old_layout_is_read(tmp_path):
    blobs = {"conv1_w": np.ones((2, 3), np.float32), "conv1_w_momentum": np.ones((2, 3), np.float32), "unset": None}
    weights = read_weights(write_pickle(tmp_path / "flat.pkl", blobs))
    assert list(weights.blobs) == ["conv1_w"]
    assert (weights.cfg_text, weights.dropped_momentum) == (None, 1)
    assert read_weights(write_pickle(tmp_path / "cfg.pkl", {**blobs, "cfg": "MODEL: {}"})).cfg_text == "MODEL: {}"


def test_scopes_are_dropped_and_types_are_cast(tmp_path):
    blobs = {
        "gpu_0/a_w": np.ones(3, np.float16),
        "gpu_1/a_w": np.ones(3, np.float16),
        "b_w": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "c_w": np.arange(3, dtype=">f4"),
        "d": 7,
        "e": np.float64(0.5),
        "f_w": np.array([1e300]),
    }
    weights = read_weights(write_pickle(tmp_path / "w.pkl", {"blobs": blobs, "cfg": None}))
    assert sorted(weights.blobs) == ["a_w", "b_w", "c_w", "d", "e", "f_w"]
    np.testing.assert_array_equal(weights.blobs["b_w"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(weights.blobs["c_w"], [0, 1, 2])
    assert (weights.blobs["d"].shape, weights.blobs["d"].dtype) == ((), np.float32)
    assert np.isinf(weights.blobs["f_w"][0])
    assert weights.notes == (
        "2 blobs were cast from float16 to float32",
        "3 blobs were cast from float64 to float32",
        "1 blobs were cast from int64 to float32",
        "2 names had a scope (gpu_0/...), which was dropped",
    )


def test_all_values_that_are_no_parameters_are_listed(tmp_path):
    blobs = {
        "good_w": np.ones(3, np.float32),
        "text_w": np.array(["a"]),
        "list_w": [1, 2],
        "name": "abc",
        "complex_w": np.ones(2, np.complex64),
        "gpu_0/x_w": np.ones(2),
        "gpu_1/x_w": np.zeros(2),
    }
    with pytest.raises(WeightError) as raised:
        read_weights(write_pickle(tmp_path / "w.pkl", {"blobs": blobs}))
    message = str(raised.value)
    assert "5 values of this weights file are no parameters" in message
    for expected in (
        "text_w: an array of <U1, shape (1,)",
        "list_w: a list",
        "name: a str",
        "complex_w: an array of complex64, shape (2,)",
        "gpu_1/x_w: another scope holds other values of x_w",
    ):
        assert expected in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([1, 2], "got a list of 2"),
        (5, "got a int"),
        ("text", "got a str"),
        ({}, "holds no parameters"),
        ({"blobs": {}}, "holds no parameters"),
        ({"blobs": [1]}, "`blobs` is a list"),
        ({"a_momentum": np.ones(2)}, "holds no parameters but momentum"),
        ({"blobs": {"a": np.ones(1)}, "cfg": 5}, "expected its YAML text"),
        ({"model": {"a": np.ones(2)}, "__author__": "x"}, "roiline export detectron2"),
        ({"state_dict": {"a": np.ones(2)}}, "roiline export torchvision"),
        ({"all_boxes": [], "cfg": ""}, "a detections file"),
        ({"boxes": [], "scores": [], "ids": []}, "a proposal file"),
        ({"blobs": {"a": np.array([None])}}, "array of Python objects"),
    ],
)
def test_other_pickles_are_named(tmp_path, content, expected):
    with pytest.raises(WeightError, match=expected):
        read_weights(write_pickle(tmp_path / "w.pkl", content))


def test_a_configuration_given_as_a_tree_becomes_text(tmp_path):
    content = {"blobs": {"a": np.ones(1)}, "cfg": {"MODEL": {"NUM_CLASSES": 3}}}
    assert read_weights(write_pickle(tmp_path / "w.pkl", content)).cfg_text == "MODEL:\n  NUM_CLASSES: 3\n"
    assert read_weights(write_pickle(tmp_path / "b.pkl", {**content, "cfg": b"A: 1"}, 4)).cfg_text == "A: 1"


@pytest.mark.parametrize("path", shared_files("models/*/original_*.pkl"))
def test_result_files_of_the_original_are_named(path):
    with pytest.raises(WeightError, match=r"a detections file|a proposal file"):
        read_weights(path)


STRUCTURES = {
    "e2e/faster_R50_C4_small": ("ResNet", 50, 1, "bn", False, True),
    "e2e/retinanet_R50_FPN_small": ("ResNet", 50, 1, "bn", True, False),
    "e2e/mask_R50_FPN_gn_small": ("ResNet", 50, 1, "gn", True, True),
    "e2e_more/retinanet_R101_FPN_a": ("ResNet", 101, 1, "bn", True, False),
    "e2e_more/faster_R152_FPN_a": ("ResNet", 152, 1, "bn", True, True),
    "e2e_more/mask_X152_32g_FPN_a": ("ResNet", 152, 32, "bn", True, True),
    "e2e_more/rpn_X101_64g_FPN_a": ("ResNet", 101, 64, "bn", True, True),
    "e2e_more/da_faster_VGG16_a": ("VGG16", None, None, None, False, True),
    "e2e_more/rpn_VGG_CNN_M_1024_a": ("VGG_CNN_M_1024", None, None, None, False, True),
}


@pytest.mark.parametrize("case", STRUCTURES)
def test_the_structure_is_derived_from_names_and_shapes(case):
    stored = json.loads(shared_path(f"golden/{case}.json").read_text())
    found = derive_structure({name: np.empty(shape) for name, shape in stored["param_shapes"].items()})
    assert (found.family, found.depth, found.groups, found.norm, found.has_fpn, found.has_rpn) == STRUCTURES[case]


def test_odd_shapes_give_no_structure():
    found = derive_structure({"res2_0_branch2b_w": np.empty((8, 3, 3, 3)), "res2_1_branch2b_w": np.empty(3)})
    assert (found.family, dict(found.blocks), found.depth, found.groups) == ("ResNet", {2: 2}, None, None)
    assert derive_structure({"x": np.empty(1)}).family is None
