from __future__ import annotations

import lzma

import numpy as np
import onnx
import pytest
from caffe2_nets import encode_operator, export_net, run_model
from shared_data import shared_path

from roiline.core.errors import UsageError
from roiline.engines.model_file import cut_model, read_spec
from roiline.engines.protocol import Stage
from roiline.export.caffe2.exporter import export_caffe2

CFG = """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: ResNet.add_ResNet50_conv4_body, NUM_CLASSES: 3, FASTER_RCNN: true}
FAST_RCNN: {ROI_BOX_HEAD: ResNet.add_ResNet_roi_conv5_head}
TEST: {SCALE: 96, MAX_SIZE: 128}
"""
RNG = np.random.default_rng(2)
FILLS = {
    "logits_w": RNG.standard_normal((3, 3, 1, 1)).astype(np.float32),
    "logits_b": np.zeros(3, np.float32),
    "deltas_w": (0.1 * RNG.standard_normal((12, 3, 1, 1))).astype(np.float32),
    "deltas_b": np.zeros(12, np.float32),
    "anchor": np.array([[-8, -8, 15, 15], [-16, -4, 23, 11], [-4, -16, 11, 23]], np.float32),
    "cls_w": RNG.standard_normal((3, 12)).astype(np.float32),
    "cls_b": np.zeros(3, np.float32),
    "box_w": (0.1 * RNG.standard_normal((12, 12))).astype(np.float32),
    "box_b": np.zeros(12, np.float32),
}
DATA = RNG.standard_normal((1, 3, 12, 16)).astype(np.float32)
IM_INFO = np.array([[12, 16, 0.5]], np.float32)
PROPOSALS = {"spatial_scale": 1.0, "min_size": 0.0, "post_nms_topN": 20, "nms_thresh": 0.9}


def detector(apply_scale=0, first_class=1):
    """Returns the operators of a small detector on one map."""
    return [
        encode_operator("Conv", ["data", "logits_w", "logits_b"], ["logits"], {"kernel": 1}),
        encode_operator("Sigmoid", ["logits"], ["probs"]),
        encode_operator("Conv", ["data", "deltas_w", "deltas_b"], ["deltas"], {"kernel": 1}),
        encode_operator(
            "GenerateProposals", ["probs", "deltas", "im_info", "anchor"], ["rois", "roi_probs"], PROPOSALS
        ),
        encode_operator("RoIAlign", ["data", "rois"], ["pooled"], {"pooled_h": 2, "pooled_w": 2, "sampling_ratio": 2}),
        encode_operator("FC", ["pooled", "cls_w", "cls_b"], ["cls"]),
        encode_operator("Softmax", ["cls"], ["cls"]),
        encode_operator("FC", ["pooled", "box_w", "box_b"], ["box"]),
        encode_operator("BBoxTransform", ["rois", "box", "im_info"], ["pred"], {"apply_scale": apply_scale}),
        encode_operator(
            "BoxWithNMSLimit",
            ["cls", "pred"],
            ["scores", "boxes", "classes"],
            {"output_classes_include_bg_cls": first_class},
        ),
    ]


@pytest.fixture
def cfg(tmp_path):
    path = tmp_path / "cfg.yaml"
    path.write_text(CFG)
    return path


def run_with_seams(report, folder):
    """Runs the net's own outputs and every seam."""
    seams = [name for task in report.spec.tasks for name in report.spec.seams[task]]
    cut = cut_model(onnx.load(report.path), Stage(outputs=(*report.outputs, *seams)), where="model")
    onnx.checker.check_model(cut)
    onnx.save(cut, folder / "cut.onnx")
    return run_model(folder / "cut.onnx", {"data": DATA, "im_info": IM_INFO})


@pytest.mark.parametrize(("apply_scale", "first_class"), [(0, 1), (1, 1), (0, 0)])
def test_seams_hold_the_rows_of_the_net(tmp_path, cfg, apply_scale, first_class):
    outputs = ["scores", "boxes", "classes", "rois", "roi_probs"]
    report = export_net(
        tmp_path,
        detector(apply_scale, first_class),
        ["data", "im_info"],
        outputs,
        FILLS,
        cfg=cfg,
        class_names=("cat", "dog"),
    )
    spec = read_spec(report.path)
    assert spec == report.spec
    assert spec.tasks == ("proposals", "detections")
    assert (spec.class_names, spec.class_names_known, spec.detection) == (("cat", "dog"), True, None)
    assert (spec.images.scale, spec.images.max_size, spec.images.channel_order) == (96, 128, "BGR")
    assert spec.seams["images"] == ("data", "im_info")
    assert spec.seams["outputs"] == tuple(outputs)
    got = run_with_seams(report, tmp_path)
    boxes, scores, classes, count = (got[name] for name in spec.seams["detections"])
    assert count.tolist() == [len(got["scores"])]
    assert len(got["scores"]) > 3
    np.testing.assert_allclose(boxes[0], got["boxes"] / (IM_INFO[0, 2] if apply_scale else 1), rtol=1e-6)
    np.testing.assert_array_equal(scores[0], got["scores"])
    np.testing.assert_array_equal(classes[0], got["classes"] + (1 - first_class))
    assert classes.dtype == np.int64
    assert set(classes[0]) <= {1, 2}
    boxes, scores, count = (got[name] for name in spec.seams["proposals"])
    np.testing.assert_allclose(boxes[0], got["rois"][:, 1:] / IM_INFO[0, 2], rtol=1e-6)
    np.testing.assert_array_equal(scores[0], got["roi_probs"])
    assert count.tolist() == [len(got["rois"])]


def test_a_dataset_run_feeds_one_picture_a_call(tmp_path, cfg):
    report = export_net(tmp_path, detector(), ["data", "im_info"], ["scores", "boxes", "classes"], FILLS, cfg=cfg)
    for info in onnx.load(report.path).graph.input:
        assert info.type.tensor_type.shape.dim[0].dim_value == 1
    assert report.spec.class_names == ("class_1", "class_2")
    free = export_net(tmp_path, detector(), ["data", "im_info"], ["scores", "boxes", "classes"], FILLS)
    for info in onnx.load(free.path).graph.input:
        assert info.type.tensor_type.shape.dim[0].dim_param


def test_no_proposal_and_no_detection_pass_through(tmp_path, cfg):
    nothing = {
        **FILLS,
        "logits_b": np.full(3, -np.float32(np.finfo(np.float32).max) / 4),
        "cls_b": np.array([50, 0, 0], np.float32),
    }
    operators = detector()
    operators[3] = encode_operator(
        "GenerateProposals",
        ["probs", "deltas", "im_info", "anchor"],
        ["rois", "roi_probs"],
        {**PROPOSALS, "min_size": 1e6},
    )
    report = export_net(tmp_path, operators, ["data", "im_info"], ["scores", "boxes", "classes"], nothing, cfg=cfg)
    got = run_with_seams(report, tmp_path)
    assert got["scores"].shape == (0,)
    assert got["boxes"].shape == (0, 4)
    assert [got[name].shape for name in report.spec.seams["detections"]] == [(1, 0, 4), (1, 0), (1, 0), (1,)]
    assert [got[name].shape for name in report.spec.seams["proposals"]] == [(1, 0, 4), (1, 0), (1,)]


@pytest.mark.golden
def test_the_seams_of_the_original_net(tmp_path):
    net = shared_path("golden/pb/fpn_tiny_fused/model.pb")
    init = tmp_path / "init.pb"
    init.write_bytes(lzma.decompress((net.parent / "model_init.pb.xz").read_bytes()))
    report = export_caffe2(
        net, init, tmp_path / "model.onnx", cfg=shared_path("golden/e2e/faster_R50_FPN_tiny.cfg.yaml")
    )
    assert report.outputs == ("score_nms", "bbox_nms", "class_nms")
    assert len(report.spec.class_names) == 4
    seams = [*report.spec.seams["detections"], *report.spec.seams["proposals"]]
    cut = cut_model(onnx.load(report.path), Stage(outputs=tuple(seams)), where="model")
    onnx.save(cut, tmp_path / "cut.onnx")
    with np.load(net.parent / "run.npz") as run:
        got = run_model(tmp_path / "cut.onnx", {name: run[f"padded/{name}"] for name in ("data", "im_info")})
        np.testing.assert_allclose(got[seams[0]][0], run["padded/bbox_nms"], atol=0.01)
        np.testing.assert_array_equal(got[seams[2]][0], run["padded/class_nms"])
        rois = run["padded/rpn_rois"][:, 1:] / run["padded/im_info"][0, 2]
        np.testing.assert_allclose(got[seams[4]][0], rois, atol=0.01)
        assert (np.diff(got[seams[5]][0]) <= 0).all()
        assert got[seams[6]].tolist() == [50]


POOL = encode_operator("MaxPool", ["data"], ["pooled"], {"kernel": 1})


@pytest.mark.parametrize(
    ("operators", "inputs", "message"),
    [
        ([POOL], ["data"], "feeds data and im_info; this net takes data"),
        (
            [*detector(), encode_operator("Tanh", ["more"], ["t"])],
            ["data", "im_info", "more"],
            "takes data, im_info, more",
        ),
        ([POOL], ["data", "im_info"], "neither proposals"),
        ([POOL, detector()[3]], ["data", "im_info", "probs", "deltas"], "takes data, im_info, probs, deltas"),
    ],
)
def test_other_nets_are_refused_with_a_configuration(tmp_path, cfg, operators, inputs, message):
    with pytest.raises(UsageError, match=message):
        export_net(tmp_path, operators, inputs, ["pooled"], FILLS, cfg=cfg)


def test_a_configuration_of_another_model_is_noticed(tmp_path, cfg):
    options = {"fills": FILLS, "cfg": cfg}
    report = export_net(tmp_path, detector(), ["data", "im_info"], ["scores"], **options)
    assert report.warnings == ()
    report = export_net(
        tmp_path, detector(), ["data", "im_info"], ["scores"], **options, overrides=(("MODEL.NUM_CLASSES", "81"),)
    )
    assert "MODEL.NUM_CLASSES is 81, and the net has 3 classes" in report.warnings[0]


def test_class_names_must_fit(tmp_path, cfg):
    for names in (("a",), ("a", "a")):
        with pytest.raises(UsageError, match="the net has 2 classes beside the background"):
            export_net(tmp_path, detector(), ["data", "im_info"], ["scores"], FILLS, cfg=cfg, class_names=names)


def test_the_names_of_seams_never_meet_a_blob(tmp_path, cfg):
    operators = [*detector(), encode_operator("Copy", ["scores"], ["detection_scores"])]
    report = export_net(tmp_path, operators, ["data", "im_info"], ["detection_scores"], FILLS, cfg=cfg)
    assert report.spec.seams["detections"][1] == "detection_scores_"
