from __future__ import annotations

from pathlib import Path

import pytest

from roiline.core.errors import ConfigError, UsageError
from roiline.core.yamls import load_yaml
from roiline.export.torchvision.options import MODELS, load_options


def load(tmp_path: Path, text: str, arch: str = "fasterrcnn_resnet50_fpn", **given: int):
    cfg = tmp_path / "options.yaml"
    cfg.write_text(text)
    return load_options(arch, cfg, **given)


@pytest.mark.parametrize("arch", MODELS)
def test_defaults_are_complete_and_survive_their_own_yaml(tmp_path, arch):
    options = load_options(arch, None)
    text = options.yaml_text()
    tree = load_yaml(text, source="yaml")
    assert tree.pop("arch") == arch
    cfg = tmp_path / "again.yaml"
    cfg.write_text("\n".join(text.splitlines()[1:]))
    assert load_options(arch, cfg).values == options.values


@pytest.mark.torch
def test_defaults_are_torchvisions():
    pytest.importorskip("torch", reason="torchvision is the judge")
    detection = pytest.importorskip("torchvision.models.detection", reason="torchvision is the judge")
    for arch in MODELS:
        model = getattr(detection, arch)(weights=None, weights_backbone=None).eval()
        options = load_options(arch, None)
        transform = model.transform
        assert options["min_size"] == transform.min_size[-1]
        assert options["max_size"] == transform.max_size
        assert list(options["image_mean"]) == list(transform.image_mean)
        assert list(options["image_std"]) == list(transform.image_std)
        assert options["size_divisible"] == transform.size_divisible
        if MODELS[arch].one_stage:
            generator, name = model.anchor_generator, "anchor_generator"
            assert options["topk_candidates"] == model.topk_candidates
            rules = (model.score_thresh, model.nms_thresh, model.detections_per_img)
            assert rules == (options["score_thresh"], options["nms_thresh"], options["detections_per_img"])
        else:
            generator, name = model.rpn.anchor_generator, "rpn_anchor_generator"
            _compare_two_stages(model, options)
        assert options[name]["sizes"] == tuple(tuple(sizes) for sizes in generator.sizes)
        assert options[name]["aspect_ratios"] == tuple(tuple(ratios) for ratios in generator.aspect_ratios)


def _compare_two_stages(model, options):
    rpn, heads = model.rpn, model.roi_heads
    assert options["rpn_pre_nms_top_n_test"] == rpn.pre_nms_top_n()
    assert options["rpn_post_nms_top_n_test"] == rpn.post_nms_top_n()
    assert (options["rpn_nms_thresh"], options["rpn_score_thresh"]) == (rpn.nms_thresh, rpn.score_thresh)
    assert options["box_score_thresh"] == heads.score_thresh
    assert options["box_nms_thresh"] == heads.nms_thresh
    assert options["box_detections_per_img"] == heads.detections_per_img
    assert options["bbox_reg_weights"] == heads.box_coder.weights
    for name in ("box_roi_pool", "mask_roi_pool", "keypoint_roi_pool"):
        pool = getattr(heads, name)
        if pool is not None:
            given = options[name]
            assert given["output_size"] == pool.output_size[0]
            assert given["sampling_ratio"] == pool.sampling_ratio
            assert list(given["featmap_names"]) == list(pool.featmap_names)
            assert (given["canonical_scale"], given["canonical_level"]) == (pool.canonical_scale, pool.canonical_level)


def test_arguments_take_torchvisions_forms(tmp_path):
    options = load(
        tmp_path,
        """
min_size: [640, 672, 704]
image_mean: null
rpn_anchor_generator: {sizes: [8, 16, 32, 64, 128], aspect_ratios: [1, 2]}
box_roi_pool: {output_size: [9, 9]}
rpn_fg_iou_thresh: 0.6
trainable_backbone_layers: 2
""",
    )
    assert options["min_size"] == 704
    assert options["image_mean"] == (0.485, 0.456, 0.406)
    assert options["rpn_anchor_generator"]["sizes"] == ((8,), (16,), (32,), (64,), (128,))
    assert options["rpn_anchor_generator"]["aspect_ratios"] == ((1, 2),) * 5
    assert options["box_roi_pool"]["output_size"] == 9
    assert options["box_roi_pool"]["sampling_ratio"] == 2


def test_every_fault_is_listed(tmp_path):
    text = "min_size: large\nbox_score_tresh: 0.1\nbbox_reg_weights: [1, 2]\nscore_thresh: 0.1\nbox_roi_pool: {output_size: [7, 14]}\n"
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert "min_size: expected a whole number, got 'large'" in message
    assert "box_score_tresh: no argument of this model (is box_score_thresh meant?)" in message
    assert "bbox_reg_weights: expected 4 numbers" in message
    assert "score_thresh: no argument of this model" in message
    assert "box_roi_pool: expected a square output_size" in message


@pytest.mark.parametrize("text", ["- a\n", "min_size: [\n"])
def test_what_is_no_mapping_is_refused(tmp_path, text):
    with pytest.raises(ConfigError):
        load(tmp_path, text)


def test_an_absent_file_an_unknown_model_and_two_numbers_of_classes(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml: no such file"):
        load_options("fasterrcnn_resnet50_fpn", tmp_path / "absent.yaml")
    with pytest.raises(UsageError, match="known: fasterrcnn_resnet50_fpn,"):
        load_options("fasterrcnn_resnet18", None)
    with pytest.raises(UsageError, match="says num_classes 5"):
        load(tmp_path, "num_classes: 5\n", num_classes=4)
    assert load(tmp_path, "num_classes: 5\n", num_classes=5)["num_classes"] == 5
