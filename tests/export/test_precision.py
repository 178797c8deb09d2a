"""Precisions of a finished model: what is rewritten, what stays, and that every family runs and still sees what it saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
import pytest
from caffe2_nets import encode_operator, export_net
from onnx import helper, numpy_helper
from thin_models import export_thin, feed_pictures, feed_rois, open_session

from roiline.core.errors import EngineError, ExportError, UsageError
from roiline.core.spec import ModelSpec, spec_from_json
from roiline.engines.model_file import cut_model, read_spec
from roiline.engines.protocol import Stage
from roiline.engines.registry import open_engine
from roiline.export.activation_ranges import answer_feeds, measure_ranges
from roiline.export.half_precision import BF16, FP16, check_fp16_range, convert_to_half
from roiline.export.precision import Converted, Verdict, convert_model
from roiline.export.quantization import MOST, choose_scales, find_quantized, quantize
from roiline.export.trunk import find_trunk

C4 = """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: ResNet.add_ResNet50_conv4_body, NUM_CLASSES: 5, FASTER_RCNN: True}
RPN: {SIZES: [32, 64], ASPECT_RATIOS: [0.5, 1.0]}
FAST_RCNN: {ROI_BOX_HEAD: ResNet.add_ResNet_roi_conv5_head, ROI_XFORM_METHOD: RoIAlign}
TEST: {RPN_PRE_NMS_TOP_N: 60, RPN_POST_NMS_TOP_N: 20, SCORE_THRESH: 0.1, NMS: 0.5}
"""
FPN = """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: FPN.add_fpn_ResNet50_conv5_body, NUM_CLASSES: 5, FASTER_RCNN: True}
FPN: {FPN_ON: True, MULTILEVEL_ROIS: True, MULTILEVEL_RPN: True}
FAST_RCNN: {ROI_BOX_HEAD: fast_rcnn_heads.add_roi_2mlp_head, ROI_XFORM_METHOD: RoIAlign, ROI_XFORM_RESOLUTION: 7}
TEST: {RPN_PRE_NMS_TOP_N: 60, RPN_POST_NMS_TOP_N: 20, SCORE_THRESH: 0.1, NMS: 0.5}
"""
MASK = FPN.replace("True}\nFPN", "True, MASK_ON: True}\nFPN") + (
    "MRCNN: {ROI_MASK_HEAD: mask_rcnn_heads.mask_rcnn_fcn_head_v1up4convs, RESOLUTION: 28, ROI_XFORM_RESOLUTION: 14,"
    " ROI_XFORM_METHOD: RoIAlign}\n"
)
KEYPOINTS = FPN.replace("True}\nFPN", "True, KEYPOINTS_ON: True}\nFPN").replace("NUM_CLASSES: 5", "NUM_CLASSES: 2") + (
    "KRCNN: {ROI_KEYPOINTS_HEAD: keypoint_rcnn_heads.add_roi_pose_head_v1convX, NUM_STACKED_CONVS: 2, NUM_KEYPOINTS: 17,"
    " USE_DECONV_OUTPUT: True, HEATMAP_SIZE: 56, ROI_XFORM_METHOD: RoIAlign, ROI_XFORM_RESOLUTION: 14}\n"
)
NORMALISED = FPN.replace("FPN_ON: True", "FPN_ON: True, USE_GN: True").replace("_2mlp_", "_Xconv1fc_gn_") + (
    "RESNETS: {STEM_FUNC: basic_gn_stem, SHORTCUT_FUNC: basic_gn_shortcut, TRANS_FUNC: bottleneck_gn_transformation}\n"
)
CASCADE = FPN.replace("True}\nFPN", "True, CASCADE_ON: True, CLS_AGNOSTIC_BBOX_REG: True}\nFPN") + (
    "CASCADE_RCNN: {ROI_BOX_HEAD: cascade_rcnn_heads.add_roi_2mlp_head}\n"
)
RETINANET = """
MODEL: {TYPE: retinanet, CONV_BODY: FPN.add_fpn_ResNet50_conv5_body, NUM_CLASSES: 5}
FPN: {FPN_ON: True, MULTILEVEL_RPN: True, RPN_MAX_LEVEL: 7, RPN_MIN_LEVEL: 3, COARSEST_STRIDE: 128, EXTRA_CONV_LEVELS: True}
RETINANET: {RETINANET_ON: True, NUM_CONVS: 2, ASPECT_RATIOS: [1.0, 2.0], SCALES_PER_OCTAVE: 1, ANCHOR_SCALE: 4}
TEST: {NMS: 0.5}
"""
RFCN = """
MODEL: {TYPE: rfcn, CONV_BODY: ResNet.add_ResNet50_conv5_body, NUM_CLASSES: 4}
RESNETS: {RES5_DILATION: 2}
RFCN: {PS_GRID_SIZE: 3}
TEST: {SCORE_THRESH: 0.1, NMS: 0.5}
"""
CLASSIFIER = """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: ResNet.add_ResNet50_conv5_body, NUM_CLASSES: 5, CLASSIFICATION: True}
CLASSIFICATION: {MLP_HEAD: classification_heads.add_Xmlp_head, MLP_HEADS_DIM: [24, 16, 8]}
TEST: {SCALE: 96, MAX_SIZE: 64}
"""
TRACKER = """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: ResNet.add_ResNet50_conv4_body, NUM_CLASSES: 4, FASTER_RCNN: True, TRACKING_ON: True}
FAST_RCNN: {ROI_BOX_HEAD: ResNet.add_ResNet_roi_conv5_head, ROI_XFORM_METHOD: RoIAlign, ROI_XFORM_RESOLUTION: 7}
TRCNN: {MLP_HEAD_DIM: 32, MLP_HIDDEN_DIM: 24, DETECTION_THRESH: 0.25}
TEST: {SCALE: 96, MAX_SIZE: 160, SCORE_THRESH: 0.2, DETECTIONS_PER_IM: 9, RPN_PRE_NMS_TOP_N: 60, RPN_POST_NMS_TOP_N: 20}
"""
FAMILIES = {
    "C4": C4,
    "given proposals": C4.replace("FASTER_RCNN: True", "FASTER_RCNN: False"),
    "proposals": FPN.replace("FASTER_RCNN: True", "FASTER_RCNN: True, RPN_ONLY: True"),
    "pyramid": FPN,
    "masks": MASK,
    "keypoints": KEYPOINTS,
    "group normalisation": NORMALISED,
    "cascade": CASCADE,
    "RetinaNet": RETINANET,
    "R-FCN": RFCN,
    "classifier": CLASSIFIER,
    "tracker": TRACKER,
}
AMPLIFYING = {"group normalisation"}
"""Families whose thin models, one channel a group, make every difference twice as large from stage to stage."""
SIZE = 96, 128
FEEDS = feed_pictures(1, *SIZE) | feed_rois(1, 8, *SIZE)
MOST_ERROR = {"fp16": 0.01, "int8": 0.2}
"""Of features, relative to their length: a thin network's layers each add theirs."""


class Lenient:
    """Calibrates on made-up feeds, and lets everything pass."""

    def feeds(self, spec: ModelSpec) -> Iterator[dict[str, np.ndarray]]:
        yield FEEDS

    def judge(self, spec, expected: Sequence[object], got: Sequence[object]) -> Verdict:
        assert len(expected) == len(got) == 1
        return Verdict(("seen",), ("look",))


def _convert(path, precision: str) -> Converted:
    model = onnx.load(path)
    calibration = None if precision == "bf16" else Lenient()
    return convert_model(model, read_spec(path), precision, calibration)


def _types(model: onnx.ModelProto) -> dict[str, int]:
    """Returns the element types of all tensors of a graph that follow from it."""
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    infos = (*graph.input, *graph.output, *graph.value_info)
    stored = {tensor.name: tensor.data_type for tensor in graph.initializer}
    return stored | {info.name: info.type.tensor_type.elem_type for info in infos}


@pytest.fixture(scope="module")
def pyramid(tmp_path_factory):
    return export_thin(FPN, tmp_path_factory.mktemp("pyramid"), taps=["res3_3_sum", "fc6"])


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """Returns a model of a family, and what it showed: a blob after a few layers, and its features, where only they are comparable."""
    thin = export_thin(FAMILIES[request.param], tmp_path_factory.mktemp("family"), taps=["res2_2_sum"])
    model = onnx.load(thin.path)
    compared = ["res2_2_sum", *(() if request.param in AMPLIFYING else thin.spec.seams["features"])]
    return model, measure_ranges(model, find_quantized(model.graph).values(), compared, [FEEDS])


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_every_family_runs_and_sees_the_same_features(family, precision):
    before, measured = family
    after = convert_to_half(before, FP16) if precision == "fp16" else quantize(before, measured.ranges)
    onnx.checker.check_model(after)
    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    assert list(after.graph.value_info) == list(before.graph.value_info)
    (expected,) = measured.answers
    names = {info.name for info in after.graph.output} | set(expected)
    (got,) = answer_feeds(after, sorted(names), [FEEDS])
    assert all(np.isfinite(array).all() for array in got.values())
    for name in expected:
        error = np.linalg.norm(got[name] - expected[name]) / np.linalg.norm(expected[name])
        assert 0 < error < MOST_ERROR[precision], name


@pytest.mark.parametrize("kind", [FP16, BF16])
def test_layers_are_half_and_what_is_numeric_is_not(kind, pyramid):
    model = onnx.load(pyramid.path)
    converted = convert_to_half(model, kind)
    onnx.checker.check_model(converted)
    types, trunk = _types(converted), find_trunk(converted.graph)
    float32 = onnx.TensorProto.FLOAT
    assert len(trunk.layers) == len(find_trunk(model.graph).layers)
    for node in converted.graph.node:
        taken = {types.get(name) for name in node.input}
        if node.name in trunk.layers:
            assert taken == {kind.element}, node.name
        elif node.domain == "roiline" or node.op_type in ("Softmax", "Sigmoid"):
            assert kind.element not in taken, node.name
    declared = {name for tensors in pyramid.spec.seams.values() for name in tensors}
    assert {types[name] for name in declared} <= {float32, onnx.TensorProto.INT64}
    assert {types[name] for name in ("res3_3_sum", "fc6")} == {float32}
    assert converted.ByteSize() < 0.6 * model.ByteSize()


def test_a_half_model_is_cut_at_its_seams(pyramid):
    model = convert_to_half(onnx.load(pyramid.path), FP16)
    features, raw = pyramid.spec.seams["features"], pyramid.spec.seams["raw"]
    (body,) = answer_feeds(cut_model(model, Stage(features), where="model"), features, [FEEDS])
    head = cut_model(model, Stage(raw, features), where="model")
    assert "conv1" not in {name for node in head.graph.node for name in node.output}
    (joined,) = answer_feeds(head, raw, [FEEDS | body])
    (whole,) = answer_feeds(model, raw, [FEEDS])
    for name in raw:
        np.testing.assert_allclose(joined[name], whole[name], rtol=0, atol=2e-3)


def test_first_and_output_layers_stay_float_in_int8(pyramid):
    model = onnx.load(pyramid.path)
    chosen = find_quantized(model.graph)
    made = {node.name: node.output[0] for node in model.graph.node}
    quantized = {made[name] for name in chosen}
    everything = {made[name] for name in find_trunk(model.graph).layers}
    outputs = {f"rpn_{part}_fpn{level}" for part in ("cls_logits", "bbox_pred") for level in range(2, 7)}
    (first,) = (made[name] for name in find_trunk(model.graph).first)
    assert everything - quantized == {first, "cls_score", "bbox_pred"} | outputs
    assert "data" not in chosen.values()


def test_int8_weights_are_symmetric_and_per_channel(pyramid):
    model = _convert(pyramid.path, "int8").model
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    original = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(pyramid.path).graph.initializer}
    whole, scales = stored["res2_0_branch2b_w_int8"], stored["res2_0_branch2b_w_scale"]
    assert whole.dtype == np.int8
    assert scales.shape == (len(whole),)
    assert (np.abs(whole.astype(int)).max(axis=(1, 2, 3)) == MOST).all()
    back = whole * scales[:, None, None, None]
    assert np.abs(back - original["res2_0_branch2b_w"]).max() <= scales.max() / 2 * 1.001
    assert "res2_0_branch2b_w" not in stored
    zeros = [tensor for name, tensor in stored.items() if name.startswith("int8_zero")]
    assert [zero.tolist() for zero in zeros] == [0]


def test_channels_without_weights_have_a_scale():
    assert (choose_scales(np.zeros(3, np.float32)) > 0).all()


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_the_same_model_gives_the_same_bytes_and_says_what_it_is(pyramid, precision):
    first, second = _convert(pyramid.path, precision), _convert(pyramid.path, precision)
    assert first.model.SerializeToString(deterministic=True) == second.model.SerializeToString(deterministic=True)
    assert first.spec.precision == precision
    (text,) = (entry.value for entry in first.model.metadata_props if entry.key == "roiline")
    assert spec_from_json(text, where="model") == first.spec
    assert first.verdict == (Verdict() if precision == "bf16" else Verdict(("seen",), ("look",)))


def test_a_specification_without_precision_is_fp32(pyramid):
    text = pyramid.spec.to_json()
    line = ' "precision": "fp32",\n'
    assert line in text
    assert spec_from_json(text.replace(line, ""), where="model").precision == "fp32"


def test_onnx_runtime_says_that_it_has_no_bf16(pyramid, tmp_path):
    path = tmp_path / "bf16.onnx"
    onnx.save(_convert(pyramid.path, "bf16").model, path)
    assert read_spec(path).precision == "bf16"
    with pytest.raises(EngineError, match=r"lacks a kernel .* bf16 model.*--precision"):
        open_engine(path)


def test_weights_beyond_fp16_are_named():
    layer = helper.make_node("Gemm", ["data", "fc_w"], ["fc"], name="Gemm_1")
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [layer],
        "net",
        [info("data", onnx.TensorProto.FLOAT, [1, 1])],
        [info("fc", onnx.TensorProto.FLOAT, [1, 1])],
        [numpy_helper.from_array(np.full((1, 1), 7e4, np.float32), "fc_w")],
    )
    model = helper.make_model(graph)
    with pytest.raises(ExportError, match="fc_w reach 7e\\+04, and fp16 ends at 65504"):
        convert_to_half(model, FP16)
    (weight,) = convert_to_half(model, BF16).graph.initializer
    assert (
        np.frombuffer(weight.raw_data, "<u2").astype(np.uint32).item() << 16 == 0x47890000
    )  # 70144: seven bits and the ties rule


def test_features_beyond_fp16_are_named():
    check_fp16_range({"res2_2_sum": 65504.0})
    with pytest.raises(ExportError, match=r"features exceed 65504.*: fc6 \(7e\+04\);"):
        check_fp16_range({"res2_2_sum": 12.0, "fc6": 7e4})


def test_bf16_weights_are_rounded_to_nearest_even():
    values = np.array([1.0, 1.00390625, 1.01171875, -3.14159274, 0.0], np.float32)
    stored = BF16.store("w_bf16", values, source="w")
    bits = np.frombuffer(stored.raw_data, "<u2").astype(np.uint32) << 16
    assert bits.view(np.float32).tolist() == [1.0, 1.0, 1.015625, -3.140625, 0.0]


def test_ranges_are_the_largest_magnitudes_of_all_pictures(pyramid):
    feeds = [FEEDS, FEEDS | {"data": FEEDS["data"] * np.float32(-2)}]
    measured = measure_ranges(onnx.load(pyramid.path), ["data", "res3_3_sum"], ["count"], feeds)
    largest = float(np.abs(feeds[1]["data"]).max())
    assert largest <= measured.ranges["data"] <= largest * (1 + 2**-7)
    assert [set(answers) for answers in measured.answers] == [{"count"}] * 2


def test_ranges_need_pictures_and_finite_values(pyramid):
    model = onnx.load(pyramid.path)
    with pytest.raises(ExportError, match="nothing to calibrate on"):
        measure_ranges(model, ["data"], ["count"], [])
    with pytest.raises(ExportError, match="not finite on the calibration pictures: data"):
        measure_ranges(model, ["data"], ["count"], [FEEDS | {"data": FEEDS["data"] * np.float32(np.inf)}])


@pytest.mark.parametrize(
    ("precision", "calibration", "message"),
    [
        ("int8", None, "give a dataset with --calibrate"),
        ("fp32", Lenient(), "nothing to compare"),
        ("bf16", Lenient(), "runs no bf16"),
    ],
)
def test_precision_and_calibration_belong_together(precision, calibration, message, pyramid):
    with pytest.raises(UsageError, match=message):
        convert_model(onnx.load(pyramid.path), pyramid.spec, precision, calibration)


def test_a_foreign_net_is_rewritten_too(tmp_path):
    rng = np.random.default_rng(5)
    fills = {
        "w1": rng.normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32),
        "b1": rng.normal(0, 0.1, 8).astype(np.float32),
        "w2": rng.normal(0, 0.2, (6, 8, 1, 1)).astype(np.float32),
        "b2": rng.normal(0, 0.1, 6).astype(np.float32),
    }
    layers = [
        encode_operator("Conv", ["data", "w1", "b1"], ["c1"], {"kernel": 3, "pad": 1}),
        encode_operator("Relu", ["c1"], ["c1"]),
        encode_operator("Conv", ["c1", "w2", "b2"], ["c2"], {"kernel": 1}),
        encode_operator("Sigmoid", ["c2"], ["probs"]),
    ]
    feeds = {"data": rng.normal(0, 1, (1, 3, 9, 7)).astype(np.float32)}
    answers = {}
    for precision in ("fp32", "fp16"):
        report = export_net(tmp_path, layers, ["data"], ["probs"], fills, precision=precision)
        assert report.spec.precision == precision
        session = open_session(report.path)
        assert session.get_outputs()[0].type == "tensor(float)"
        (answers[precision],) = session.run(["probs"], feeds)
    difference = np.abs(answers["fp16"] - answers["fp32"]).max()
    assert 0 < difference < 2e-3
    with pytest.raises(UsageError, match="give --cfg"):
        export_net(tmp_path, layers, ["data"], ["probs"], fills, precision="int8", calibration=Lenient())
