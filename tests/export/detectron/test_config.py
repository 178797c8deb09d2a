"""Configurations merge as Detectron merges them, and every fault is said, all at once."""

from __future__ import annotations

import json
import lzma
import pickle

import numpy as np
import pytest
from shared_data import shared_files, shared_path

from roiline.core.errors import ConfigError
from roiline.export.detectron.config import (
    DetectronConfig,
    bbox_reg_weights_override,
    config_from_text,
    list_differences,
    load_config,
)
from roiline.export.detectron.defaults import CHOICES, DEPRECATED, KEYS, RENAMED, SECTIONS, Use

SMALL = """
MODEL:
  TYPE: generalized_rcnn
  CONV_BODY: ResNet.add_ResNet50_conv4_body
  NUM_CLASSES: 81
  FASTER_RCNN: True
"""
FPN = """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: FPN.add_fpn_ResNet50_conv5_body, NUM_CLASSES: 81, FASTER_RCNN: True}
FPN: {FPN_ON: True, MULTILEVEL_ROIS: True, MULTILEVEL_RPN: True}
"""
CASCADE = (("MODEL.CASCADE_ON", "True"), ("MODEL.CLS_AGNOSTIC_BBOX_REG", "True"))


def are_equal(left: DetectronConfig, right: DetectronConfig) -> bool:
    return all(type(left[k]) is type(right[k]) and np.array_equal(left[k], right[k]) for k in KEYS)


def read_faults(text: str, *overrides: tuple[str, str]) -> str:
    with pytest.raises(ConfigError) as raised:
        config_from_text(text, overrides, source="c.yaml")
    return str(raised.value)


@pytest.mark.parametrize("path", shared_files("data/detectron-configs/*/*.yaml"))
def test_every_published_configuration_loads(path):
    config = load_config(path)
    assert config["MODEL.NUM_CLASSES"] > 0
    assert config["TEST.SCALE"] in (500, 800)
    again = config_from_text(config.yaml_text(), source="again")
    assert are_equal(config, again)
    for warning in config.warnings:
        assert "head_builder.add_roi_2mlp_head" in warning


def test_all_published_configurations_are_there():
    assert len(list(shared_path("data/detectron-configs").glob("*/*.yaml"))) == 87


@pytest.mark.parametrize("path", shared_files("golden/e2e*/*.cfg.yaml"))
def test_every_golden_configuration_loads_with_its_options(path):
    options = json.loads(path.with_name(path.name.replace(".cfg.yaml", ".json")).read_text())["opts"]
    config = load_config(path, list(zip(options[::2], options[1::2], strict=True)))
    assert set(options[::2]) <= config.set_keys


def test_the_trained_models_configurations_load():
    config = load_config(shared_path("models/bccd-detectron/bccd.yaml"))
    np.testing.assert_array_equal(config["PIXEL_MEANS"], [[[103.53, 116.28, 123.675]]])
    assert config["PIXEL_MEANS"].shape == (1, 1, 3)
    assert config["RESNETS.STRIDE_1X1"] is False
    assert config["RPN.RPN_ON"] is True
    assert config["TEST.PRECOMPUTED_PROPOSALS"] is False


def test_a_configuration_inside_weights_loads_alone():
    content = lzma.decompress(shared_path("golden/e2e/faster_R50_FPN_tiny.py2.pkl.xz").read_bytes())
    text = pickle.loads(content, encoding="latin1")["cfg"]
    config = config_from_text(text, cfg_in_weights=text)
    options = json.loads(shared_path("golden/e2e/faster_R50_FPN_tiny.json").read_text())["opts"]
    written = load_config(
        shared_path("golden/e2e/faster_R50_FPN_tiny.cfg.yaml"), list(zip(options[::2], options[1::2], strict=True))
    )
    different = [key for key in KEYS if not np.array_equal(config[key], written[key])]
    assert set(different) <= {"ROOT_DIR", "OUTPUT_DIR", "DOWNLOAD_CACHE", "NUM_GPUS", "TEST.WEIGHTS", "TRAIN.WEIGHTS"}
    assert list_differences(written, text) == []
    assert bbox_reg_weights_override(text) is None
    other = load_config(shared_path("golden/e2e/faster_R50_FPN_tiny.cfg.yaml"), [("RESNETS.STRIDE_1X1", "False")])
    assert "RESNETS.STRIDE_1X1: False here, True in the weights file" in list_differences(other, text)


def test_defaults_are_those_of_the_original():
    text = pickle.loads(shared_path("golden/dataset/mask/detections.pkl").read_bytes())["cfg"]
    config = config_from_text(text, check=False)
    unset = {key for key in KEYS if not KEYS[key].fork} - config.set_keys
    assert unset == set()
    changed = {key for key in config.set_keys if not np.array_equal(config[key], KEYS[key].default)}
    assert {key.split(".")[0] for key in changed} <= {
        *("MODEL", "FPN", "FAST_RCNN", "MRCNN", "TEST", "TRAIN", "RPN", "RESNETS", "SOLVER"),
        *("NUM_GPUS", "OUTPUT_DIR", "ROOT_DIR", "DOWNLOAD_CACHE"),
    }


def test_the_tables_are_consistent():
    assert not SECTIONS & set(KEYS)
    assert not DEPRECATED & set(KEYS)
    assert not set(RENAMED) & set(KEYS)
    assert {new for new, _ in RENAMED.values()} <= set(KEYS)
    assert all(KEYS[key].default in choices for key, choices in CHOICES.items())
    assert KEYS["TEST.NMS"].use is Use.TAKEN
    assert KEYS["SOLVER.BASE_LR"].use is Use.IRRELEVANT


def test_texts_are_decoded_and_types_follow_the_defaults():
    text = SMALL + (
        "RPN: {SIZES: '(32, 64)', ASPECT_RATIOS: [0.5, 1]}\n"
        'TEST: {NMS: 5e-1, SOFT_NMS: {SIGMA: "0.25"}, DATASETS: [a], WEIGHTS: https://host/model.pkl}\n'
        "SOLVER: {STEPS: '(0, 1)', LRS: [1.0]}\n"
        "PIXEL_MEANS: '[[[1, 2, 3]]]'\nBBOX_XFORM_CLIP: 4.0\n"
        "OUTPUT_DIR: None\nMATLAB: 7\n"
    )
    config = config_from_text(text, [("TEST.SCALE", "480"), ("MODEL.BBOX_REG_WEIGHTS", "(1., 2., 3., 4.)")])
    assert config["RPN.SIZES"] == (32, 64)
    assert config["RPN.ASPECT_RATIOS"] == (0.5, 1)
    assert (config["TEST.NMS"], config["TEST.SOFT_NMS.SIGMA"], config["TEST.SCALE"]) == (0.5, 0.25, 480)
    assert config["TEST.WEIGHTS"] == "https://host/model.pkl"
    assert config["SOLVER.STEPS"] == [0, 1]
    assert (config["OUTPUT_DIR"], config["MATLAB"]) == ("None", "7")
    assert config["PIXEL_MEANS"].dtype == np.float64
    assert type(config["BBOX_XFORM_CLIP"]) is np.float64
    assert config["MODEL.BBOX_REG_WEIGHTS"] == (1.0, 2.0, 3.0, 4.0)
    assert config.get_section("TEST")["SOFT_NMS"]["METHOD"] == "linear"
    assert config.get_section("RPN")["SIZES"] == (32, 64)
    with pytest.raises(KeyError):
        config["TEST.NSM"]


def test_every_fault_of_keys_is_listed_at_once():
    message = read_faults(
        "MODEL: {NUM_CLASS: 3, ROI_HEAD: x, MASK_ON: 1, NUM_CLASSES: '81a'}\n"
        "TEST: {NMS: 1, SCALES: 600, RPN_NMS_TRESH: 0.5, SCALE: 600.0, BBOX_AUG: 3}\n"
        "NOTHING: {a: {b: 1}}\nFPN:\nDEDUP_BOXES: {a: 1}\nNUM_CLASSES: 3\nPIXEL_MEANS: [1, [2]]\n"
        "RPN: {SIZES: None}\nFAST_RCNN: {3: 4}\n",
        ("TEST", "1"),
        ("TEST.MAX_SIZE", "big"),
    )
    for expected in [
        "MODEL.NUM_CLASS: unknown key; did you mean MODEL.NUM_CLASSES?",
        "MODEL.ROI_HEAD: is called FAST_RCNN.ROI_BOX_HEAD now",
        "MODEL.MASK_ON: expected True or False like False, got int 1",
        "MODEL.NUM_CLASSES: expected an integer like -1, got str '81a'",
        "TEST.NMS: expected a float like 0.3, got int 1; write 1.0",
        "TEST.SCALES: is called TEST.SCALE now and is one number",
        "TEST.RPN_NMS_TRESH: unknown key; did you mean TEST.RPN_NMS_THRESH",
        "TEST.SCALE: expected an integer like 600, got float 600.0",
        "TEST.BBOX_AUG: is a section; expected keys below it",
        "NOTHING: unknown key\n",
        "FPN: is a section; expected keys below it, got nothing",
        "DEDUP_BOXES: expected a float, got a mapping of keys",
        "NUM_CLASSES: unknown key; did you mean MODEL.NUM_CLASSES?",
        "PIXEL_MEANS: ",
        "RPN.SIZES: expected a tuple like (64, 128, 256, 512), got nothing",
        "FAST_RCNN.3: unknown key",
        "TEST: names a section; set one of its keys",
        "TEST.MAX_SIZE: expected an integer like 1000, got str 'big'",
    ]:
        assert expected in message
    assert message.startswith("c.yaml: this configuration cannot be used:\n")


def test_deprecated_keys_are_warned_about():
    config = config_from_text(SMALL + "RPN: {ON: True}\nUSE_GPU_NMS: True\n", [("TEST.NUM_TEST_IMAGES", "5")])
    assert [warning.split()[0] for warning in config.warnings] == ["RPN.ON", "USE_GPU_NMS", "TEST.NUM_TEST_IMAGES"]


def test_renamed_functions_are_resolved():
    text = SMALL + "MRCNN: {ROI_MASK_HEAD: mask_rcnn_heads.ResNet_mask_rcnn_fcn_head_v1up4convs}\n"
    config = config_from_text(text)
    assert config.function("MRCNN.ROI_MASK_HEAD") == "mask_rcnn_heads.mask_rcnn_fcn_head_v1up4convs"
    assert config.function("FAST_RCNN.ROI_BOX_HEAD") is None
    assert "is called mask_rcnn_heads.mask_rcnn_fcn_head_v1up4convs now" in config.warnings[0]


def test_derived_values_are_inferred():
    assert config_from_text(SMALL)["RPN.RPN_ON"] is True
    fast = config_from_text(SMALL.replace("FASTER_RCNN: True", "FASTER_RCNN: False"))
    assert (fast["RPN.RPN_ON"], fast["TEST.PRECOMPUTED_PROPOSALS"]) == (False, True)
    adapted = config_from_text(SMALL + "TRAIN: {DOMAIN_ADAPTATION: True}\n")
    assert adapted["TRAIN.DOMAIN_ADAPTATION"] is False
    assert "serve training only" in adapted.warnings[0]


def test_old_weights_force_their_regression_weights():
    assert bbox_reg_weights_override(None) is None
    assert bbox_reg_weights_override("MODEL: {BBOX_REG_WEIGHTS: (10., 10., 5., 5.)}") is None
    assert bbox_reg_weights_override("MODEL: {NUM_CLASSES: 81}") == (1.0, 1.0, 1.0, 1.0)
    old = "!!python/object/new:utils.collections.AttrDict {dictitems: {TEST: {}}, state: {__immutable__: true}}"
    config = config_from_text(SMALL, cfg_in_weights=old)
    assert config["MODEL.BBOX_REG_WEIGHTS"] == (1.0, 1.0, 1.0, 1.0)
    assert "older than that key" in config.warnings[0]
    with pytest.raises(ConfigError, match="inside the weights file"):
        bbox_reg_weights_override("a: [")


def test_the_fork_shows_in_its_keys_and_decides_the_canonical_level():
    assert config_from_text(FPN)["FPN.ROI_CANONICAL_LEVEL"] == 4
    pest = config_from_text(FPN, [("MODEL.WEIGHTED_LOSS", "True")])
    assert pest["FPN.ROI_CANONICAL_LEVEL"] == 5
    assert "FPN.ROI_CANONICAL_LEVEL is 5" in pest.warnings[0]
    chosen = config_from_text(FPN, [("MODEL.GAM", "True"), ("FPN.ROI_CANONICAL_LEVEL", "4")])
    assert (chosen["FPN.ROI_CANONICAL_LEVEL"], chosen.warnings) == (4, ())
    saved = "{MODEL: {BACKBONE_NAME: '', BBOX_REG_WEIGHTS: '(10., 10., 5., 5.)'}}"
    assert config_from_text(FPN, cfg_in_weights=saved)["FPN.ROI_CANONICAL_LEVEL"] == 5
    assert config_from_text(FPN, CASCADE)["FPN.ROI_CANONICAL_LEVEL"] == 4


CONDITIONS = {
    "classes": (SMALL, [("MODEL.NUM_CLASSES", "0")], "MODEL.NUM_CLASSES is 0"),
    "no type": ("MODEL: {NUM_CLASSES: 3}", [], "MODEL.TYPE is empty"),
    "no body": ("MODEL: {NUM_CLASSES: 3}", [], "MODEL.CONV_BODY is empty"),
    "scale": (SMALL, [("TEST.SCALE", "0")], "TEST.SCALE is 0; it must be above 0"),
    "canonical scale": (SMALL, [("FPN.ROI_CANONICAL_SCALE", "0")], "FPN.ROI_CANONICAL_SCALE is 0; it must be above 0"),
    "anchor start": (SMALL, [("FPN.RPN_ANCHOR_START_SIZE", "0")], "FPN.RPN_ANCHOR_START_SIZE is 0; it must be above 0"),
    "infinite": (SMALL, [("TEST.NMS", "1e999")], "TEST.NMS is inf; expected a finite number"),
    "overlap": (SMALL, [("TEST.NMS", "1.5")], "TEST.NMS is 1.5; it must be from 0 to 1"),
    "samples": (
        SMALL,
        [("FAST_RCNN.ROI_XFORM_SAMPLING_RATIO", "100000000")],
        "FAST_RCNN.ROI_XFORM_SAMPLING_RATIO is 100000000; it must be at most 64",
    ),
    "ratios": (SMALL, [("RPN.ASPECT_RATIOS", "(1, 'x')")], "RPN.ASPECT_RATIOS is (1, 'x')"),
    "no sizes": (SMALL, [("RPN.SIZES", "()")], "RPN.SIZES is ()"),
    "regression": (SMALL, [("MODEL.BBOX_REG_WEIGHTS", "(1., 1.)")], "expected four numbers above 0"),
    "choice": (SMALL, [("TEST.SOFT_NMS.METHOD", "square")], "understood: 'hard', 'linear', 'gaussian'"),
    "size dependent": (SMALL, [("TEST.BBOX_AUG.SCALE_SIZE_DEP", "True")], "understood: False"),
    "fpn off": (FPN, [("FPN.FPN_ON", "False")], "an FPN body, but FPN.FPN_ON is False"),
    "fpn on": (SMALL, [("FPN.FPN_ON", "True")], "which has one scale"),
    "levels": (FPN, [("FPN.MULTILEVEL_RPN", "False")], "the pyramid has the levels 2 to 5"),
    "least level": (FPN, [("FPN.ROI_MIN_LEVEL", "3")], "they must be equal"),
    "greatest level": (FPN, [("FPN.ROI_MAX_LEVEL", "7")], "below FPN.ROI_MAX_LEVEL, 7"),
    "shared mask head": (
        SMALL,
        [("MODEL.MASK_ON", "True"), ("MRCNN.ROI_MASK_HEAD", "mask_rcnn_heads.mask_rcnn_fcn_head_v0upshare")],
        "MRCNN.ROI_XFORM_RESOLUTION (7) and FAST_RCNN.ROI_XFORM_RESOLUTION (14) must be equal",
    ),
    "odd mask factor": (SMALL, [("MODEL.MASK_ON", "True"), ("MRCNN.UPSAMPLE_RATIO", "3")], "even factor"),
    "odd keypoint factor": (SMALL, [("MODEL.KEYPOINTS_ON", "True"), ("KRCNN.UP_SCALE", "3")], "even factor"),
    "keypoints": (SMALL, [("MODEL.KEYPOINTS_ON", "True")], "KRCNN.NUM_KEYPOINTS is -1"),
    "two group sizes": (SMALL, [("GROUP_NORM.DIM_PER_GP", "4")], "exactly one of GROUP_NORM.DIM_PER_GP"),
    "no group size": (SMALL, [("GROUP_NORM.NUM_GROUPS", "-1")], "exactly one of GROUP_NORM.DIM_PER_GP"),
    "agnostic": (FPN, CASCADE[:1], "a cascade needs MODEL.CLS_AGNOSTIC_BBOX_REG: True"),
    "cascade without fpn": (SMALL, CASCADE, "a cascade needs FPN.FPN_ON: True"),
    "stages": (
        FPN,
        [*CASCADE, ("CASCADE_RCNN.NUM_STAGE", "2")],
        "BBOX_REG_WEIGHTS has 3 entries for CASCADE_RCNN.NUM_STAGE: 2",
    ),
    "stage weights": (FPN, [*CASCADE, ("CASCADE_RCNN.STAGE_WEIGHTS", "(1., 0., 1.)")], "all must be above 0"),
    "stage entry": (FPN, [*CASCADE, ("CASCADE_RCNN.BBOX_REG_WEIGHTS", "(1., 2., 3.)")], "has the entry 1.0"),
    "scaling": (FPN, [*CASCADE, ("CASCADE_RCNN.SCALE_GRAD", "True")], "exclude each other"),
    "ensemble": (FPN, [*CASCADE, ("CASCADE_RCNN.TEST_STAGE", "1")], "needs a TEST_STAGE of 2 or more"),
    "test stage": (FPN, [*CASCADE, ("CASCADE_RCNN.TEST_STAGE", "4")], "but CASCADE_RCNN.NUM_STAGE is 3"),
    "union": (
        SMALL,
        [("TEST.BBOX_AUG.ENABLED", "True"), ("TEST.BBOX_AUG.SCORE_HEUR", "AVG")],
        "UNION goes for both or for neither",
    ),
    "no union": (
        SMALL,
        [
            (f"TEST.BBOX_AUG.{key}", value)
            for key, value in [("ENABLED", "True"), ("SCORE_HEUR", "AVG"), ("COORD_HEUR", "AVG")]
        ],
        "a model with its own RPN needs UNION",
    ),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_violated_conditions_are_named(name):
    text, overrides, expected = CONDITIONS[name]
    assert expected in read_faults(text, *overrides)


def test_violated_conditions_are_listed_at_once_and_can_be_left_out():
    message = read_faults("MODEL: {CASCADE_ON: True}\nGROUP_NORM: {NUM_GROUPS: -1}\n")
    assert message.startswith("c.yaml: this configuration cannot be built:\n")
    assert message.count("\n") == 6
    assert config_from_text("PIXEL_MEANS: [[[1., 2., 3.]]]", check=False)["PIXEL_MEANS"][0, 0, 2] == 3


@pytest.mark.parametrize("text", ["", "just text", "- a\n- b", "3"])
def test_what_is_no_mapping_is_refused(text):
    assert "expected a mapping of sections" in read_faults(text)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="expected a file, this is a folder"):
        load_config(tmp_path)
    binary = tmp_path / "model.pkl"
    binary.write_bytes(pickle.dumps({"blobs": np.ones(3)}, 2))
    with pytest.raises(ConfigError, match=r"model\.pkl"):
        load_config(binary)
    hostile = tmp_path / "hostile.yaml"
    hostile.write_text("MODEL: !!python/object/apply:os.system ['touch x']")
    with pytest.raises(ConfigError, match="nothing was run"):
        load_config(hostile)
