"""Reading detectron2's configurations: merging, bases, versions, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from roiline.core.errors import ConfigError
from roiline.export.detectron2.arithmetic import evaluate_arithmetic
from roiline.export.detectron2.config import load_config
from roiline.export.detectron2.defaults import DEFAULTS, IRRELEVANT, RENAMED, TAKEN


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_every_key_is_either_taken_or_irrelevant():
    assert not set(TAKEN) & set(IRRELEVANT)
    assert all(new in DEFAULTS for new in RENAMED.values())


def test_an_empty_file_gives_the_defaults(tmp_path):
    assert dict(load_config(write(tmp_path, "c.yaml", "")).values) == dict(DEFAULTS)


def test_bases_are_relative_and_merged_below(tmp_path):
    write(tmp_path, "base.yaml", "MODEL: {RESNETS: {DEPTH: 101, NORM: GN}}\nTEST: {DETECTIONS_PER_IMAGE: 7}\n")
    write(tmp_path, "middle/m.yaml", "_BASE_: ../base.yaml\nMODEL: {RESNETS: {DEPTH: 50}}\n")
    top = write(tmp_path, "top/t.yaml", "_BASE_: ../middle/m.yaml\nINPUT: {FORMAT: RGB}\n")
    config = load_config(top, [("TEST.DETECTIONS_PER_IMAGE", "9")])
    assert config["MODEL.RESNETS.DEPTH"] == 50
    assert config["MODEL.RESNETS.NORM"] == "GN"
    assert config["INPUT.FORMAT"] == "RGB"
    assert config["TEST.DETECTIONS_PER_IMAGE"] == 9


def test_several_bases_are_merged_in_order(tmp_path):
    write(tmp_path, "a.yaml", "MODEL: {RESNETS: {DEPTH: 101}, MASK_ON: true}")
    write(tmp_path, "b.yaml", "MODEL: {RESNETS: {DEPTH: 152}}")
    config = load_config(write(tmp_path, "c.yaml", "_BASE_: [a.yaml, b.yaml]"))
    assert (config["MODEL.RESNETS.DEPTH"], config["MODEL.MASK_ON"]) == (152, True)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"c.yaml": "_BASE_: d.yaml", "d.yaml": "_BASE_: c.yaml"}, "circle"),
        ({"c.yaml": "_BASE_: c.yaml"}, "circle"),
        ({"c.yaml": "_BASE_: gone.yaml"}, "gone.yaml"),
        ({"c.yaml": "_BASE_: https://example.org/x.yaml"}, "nothing is downloaded"),
        ({"c.yaml": "_BASE_: 3"}, "names a configuration file"),
        ({"c.yaml": "_BASE_: b.yaml\nMODEL: {MASK_ON: {X: 1}}", "b.yaml": "MODEL: {MASK_ON: true}"}, "section here"),
        ({"c.yaml": "[1, 2]"}, "expected a mapping"),
        ({"c.yaml": "MODEL: !!python/object/apply:os.system ['true']"}, "nothing was run"),
        ({"c.yaml": "MODEL: {PIXEL_MEAN: !!python/object/apply:eval ['__import__(\"os\")']}"}, "no arithmetic"),
        ({"c.yaml": "VERSION: 3"}, "VERSION"),
    ],
)
def test_files_that_cannot_be_read(files, said, tmp_path):
    for name, text in files.items():
        write(tmp_path, name, text)
    with pytest.raises(ConfigError, match=said):
        load_config(tmp_path / "c.yaml")


def test_all_wrong_keys_are_said_at_once(tmp_path):
    text = "MODEL: {MASK_OM: true, RESNETS: 50, MASK_ON: 1}\nTEST: {AUG: {FLIP: maybe}}\nSOLVER: {BASE_LR: 1}\n"
    with pytest.raises(ConfigError) as failure:
        load_config(write(tmp_path, "c.yaml", text), [("INPUT.MIN_SIZE", "3"), ("MODEL.ROI_HEADS.NMS", "0.3")])
    message = str(failure.value)
    for part in (
        "MODEL.MASK_OM: unknown key; did you mean MODEL.MASK_ON",
        "MODEL.RESNETS: is a section",
        "MODEL.MASK_ON: expected True or False",
        "TEST.AUG.FLIP: expected True or False",
        "INPUT.MIN_SIZE: unknown key",
        "MODEL.ROI_HEADS.NMS: unknown key; it is called MODEL.ROI_HEADS.NMS_THRESH_TEST now",
    ):
        assert part in message
    assert "BASE_LR" not in message  # a whole number serves as a real one


@pytest.mark.parametrize(
    ("mark", "kind", "section"),
    [
        ("VERSION: 1\n", "GeneralizedRCNN", "RPN"),
        ("MODEL: {WEIGHT: x}\n", "GeneralizedRCNN", "RPN"),
        ("TEST: {AUG_ON: false}\n", "RetinaNet", "RETINANET"),
    ],
)
def test_old_files_are_read_by_their_old_names(mark, kind, section, tmp_path):
    old = f"""_BASE_: mark.yaml
MODEL:
  META_ARCHITECTURE: {kind}
  ROI_HEADS: {{NMS: 0.4, SCORE_THRESH: 0.1}}
  RPN_HEAD: {{NAME: StandardRPNHead}}
  {section}: {{ANCHOR_SIZES: [[10, 20]], ANCHOR_ASPECT_RATIOS: [[1.0]]}}
TEST: {{DETECTIONS_PER_IMG: 5}}
"""
    write(tmp_path, "mark.yaml", mark)
    config = load_config(write(tmp_path, "c.yaml", old))
    assert config["MODEL.ROI_HEADS.NMS_THRESH_TEST"] == 0.4
    assert config["MODEL.ROI_HEADS.SCORE_THRESH_TEST"] == 0.1
    assert config["MODEL.ANCHOR_GENERATOR.SIZES"] == [[10, 20]]
    assert config["MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS"] == [[1.0]]
    assert config["TEST.DETECTIONS_PER_IMAGE"] == 5
    assert config.warnings


def test_the_merged_tree_reads_back(tmp_path):
    text = "MODEL: {ANCHOR_GENERATOR: {SIZES: [[16], [32.5]]}, ROI_KEYPOINT_HEAD: {CONV_DIMS: '(8, 8)'}, WEIGHTS: ''}\n"
    config = load_config(write(tmp_path, "c.yaml", text))
    again = load_config(write(tmp_path, "d.yaml", config.yaml_text()))
    assert dict(again.values) == dict(config.values)


def test_the_sizes_of_a_retinanet_are_read(tmp_path):
    call = '!!python/object/apply:eval ["[[x, x * 2**(1.0/3), x * 2**(2.0/3) ] for x in [32, 64]]"]'
    config = load_config(write(tmp_path, "c.yaml", f"MODEL: {{ANCHOR_GENERATOR: {{SIZES: {call}}}}}"))
    assert config["MODEL.ANCHOR_GENERATOR.SIZES"] == [[x, x * 2 ** (1.0 / 3), x * 2 ** (2.0 / 3)] for x in (32, 64)]


@pytest.mark.parametrize("text", ["1 + 2 * 3", "[x / 2 for x in range(1, 9, 2)]", "(-1, 2.5, 'a')", "2 ** -3 // 1 % 2"])
def test_arithmetic(text):
    assert evaluate_arithmetic(text) == eval(text)  # noqa: S307  # the texts are those above


@pytest.mark.parametrize(
    "text",
    [
        "open('x')",
        "().__class__",
        "[x for x in range(10**9)]",
        "9**9**9",
        "[[[a for a in range(999)] for b in range(999)] for c in range(999)]",
        "'a' * 10**9",
        "[1] * 10**9",
        "lambda: 1",
        "1 / 0",
        "range('a')",
        "x",
        "1 +",
        "[y for y in 3]",
        "[y for y in [1] if y]",
    ],
)
def test_what_is_no_arithmetic_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        evaluate_arithmetic(text)
