"""`roiline verify` on a model that something was done to: it fails, and names the stage where that was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper
from run_support import make_spec, write_model
from thin_models import THIN, ThinModel, export_thin

from roiline.checks.verify.detectron_plan import read_detectron_source
from roiline.checks.verify.pictures import generate_picture
from roiline.checks.verify.running import VerifyRequest, run_verification
from roiline.checks.verify.verification import Picture, Verification, verify_model
from roiline.cli import main
from roiline.core.errors import EXIT_DONE, EXIT_INPUT, ModelError, UsageError
from roiline.core.spec import METADATA_KEY, Source

TEXT = """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: FPN.add_fpn_ResNet50_conv5_body, NUM_CLASSES: 4, FASTER_RCNN: True, MASK_ON: True}
FPN: {FPN_ON: True, MULTILEVEL_ROIS: True, MULTILEVEL_RPN: True}
FAST_RCNN: {ROI_BOX_HEAD: fast_rcnn_heads.add_roi_2mlp_head, ROI_XFORM_METHOD: RoIAlign, ROI_XFORM_RESOLUTION: 7,
  ROI_XFORM_SAMPLING_RATIO: 2}
MRCNN: {ROI_MASK_HEAD: mask_rcnn_heads.mask_rcnn_fcn_head_v1up4convs, RESOLUTION: 28, ROI_XFORM_METHOD: RoIAlign,
  ROI_XFORM_RESOLUTION: 14, ROI_XFORM_SAMPLING_RATIO: 2, DILATION: 1}
TEST: {SCALE: 96, MAX_SIZE: 160, RPN_PRE_NMS_TOP_N: 100, RPN_POST_NMS_TOP_N: 20, DETECTIONS_PER_IM: 10, NMS: 0.5}
"""
PICTURES = (Picture("made up", generate_picture(3, 96, 120)),)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ThinModel:
    return export_thin(TEXT, tmp_path_factory.mktemp("verified"))


def verify(model: ThinModel, path: Path, **options: bool) -> Verification:
    source = read_detectron_source(
        model.path.with_name("model.yaml"), model.path.with_name("model.pkl"), tuple(THIN.items())
    )
    return verify_model(path, source, PICTURES, **options)


def alter(model: ThinModel, folder: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    altered = onnx.load(str(model.path))
    change(altered)
    path = folder / "altered.onnx"
    onnx.save(altered, str(path))
    return path


def node_of(altered: onnx.ModelProto, name: str) -> onnx.NodeProto:
    """Returns the node that makes a tensor."""
    return next(node for node in altered.graph.node if name in node.output)


def conv_before(altered: onnx.ModelProto, name: str) -> onnx.NodeProto:
    """Returns the convolution whose result becomes a tensor: of a named one, or before its ReLU."""
    node = node_of(altered, name)
    return node if node.op_type == "Conv" else node_of(altered, node.input[0])


def set_attribute(node: onnx.NodeProto, **values: object) -> None:
    for name, value in values.items():
        kept = [one for one in node.attribute if one.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])


def change_weight(altered: onnx.ModelProto, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    tensor = next(one for one in altered.graph.initializer if one.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(change(numpy_helper.to_array(tensor).copy())), name))


def flip_one(values: np.ndarray) -> np.ndarray:
    """Flips the sign of one weight, an ordinary one: the median of all by size."""
    flat = values.reshape(-1)
    middle = np.argsort(np.abs(flat))[len(flat) // 2]
    flat[middle] = -flat[middle]
    return values


def shift_rois(altered: onnx.ModelProto, name: str) -> None:
    """Shifts a RoIAlign by half a pixel: in its node's attributes and in the function that runs."""
    node = node_of(altered, name)
    set_attribute(node, half_pixel=1)
    function = next(f for f in altered.functions if f.name == node.op_type and f.overload == node.overload)
    shifted = 0
    for inner in function.node:
        if inner.op_type == "RoiAlign":
            set_attribute(inner, coordinate_transformation_mode=b"half_pixel")
            shifted += 1
    assert shifted


def swap_spec_channels(altered: onnx.ModelProto) -> None:
    entry = next(one for one in altered.metadata_props if one.key == METADATA_KEY)
    plain = json.loads(entry.value)
    plain["images"]["channel_order"] = "RGB"
    entry.value = json.dumps(plain)


def lower_threshold(altered: onnx.ModelProto) -> None:
    entry = next(one for one in altered.metadata_props if one.key == METADATA_KEY)
    plain = json.loads(entry.value)
    plain["detection"]["score_thresh"] = 0.2
    entry.value = json.dumps(plain)


def move_stride(altered: onnx.ModelProto) -> None:
    """Moves the stride of res4's first block from its 1x1 to its 3x3."""
    set_attribute(conv_before(altered, "res4_0_branch2a"), strides=[1, 1])
    set_attribute(conv_before(altered, "res4_0_branch2b"), strides=[2, 2])


def exchange_classes(values: np.ndarray) -> np.ndarray:
    return values[[0, 2, 1, 3]]


FAULTS: dict[str, tuple[Callable[[onnx.ModelProto], None], str]] = {
    "one weight flipped in res3": (lambda m: change_weight(m, "res3_1_branch2b_w", flip_one), "body res3"),
    "one weight flipped in the pyramid": (lambda m: change_weight(m, "fpn_res4_5_sum_w", flip_one), "FPN"),
    "one weight flipped in the RPN": (lambda m: change_weight(m, "conv_rpn_fpn2_w", flip_one), "RPN"),
    "one weight flipped in the box head": (lambda m: change_weight(m, "fc7_w", flip_one), "box head"),
    "one weight flipped in the mask head": (lambda m: change_weight(m, "_[mask]_fcn2_w", flip_one), "mask head"),
    "a stride moved": (move_stride, "body res4"),
    "RoIAlign of boxes shifted": (lambda m: shift_rois(m, "roi_feat"), "box head: RoI features"),
    "RoIAlign of masks shifted": (lambda m: shift_rois(m, "_[mask]_roi_feat"), "mask head: RoI features"),
    "channels swapped in the weights": (lambda m: change_weight(m, "conv1_w", lambda w: w[:, ::-1]), "body stem"),
    "channels swapped in the specification": (swap_spec_channels, "settings"),
    "another threshold in the specification": (lower_threshold, "settings"),
    "two classes exchanged": (lambda m: change_weight(m, "cls_score_w", exchange_classes), "box head"),
    "a weight that is no number": (
        lambda m: change_weight(m, "fpn_inner_res5_2_sum_w", lambda w: np.full_like(w, np.nan)),
        "FPN",
    ),
}


def test_the_model_as_it_was_exported_passes(model: ThinModel) -> None:
    found = verify(model, model.path, by_layer=True)
    assert found.failed is None
    assert {stage.name for stage in found.stages} >= {
        *(
            "settings",
            "input",
            "body stem",
            "body res2",
            "body res5",
            "FPN",
            "RPN",
            "proposals",
            "box head: RoI features",
        ),
        *("box head", "detections", "mask head: RoI features", "mask head", "whole model"),
    }
    assert found.not_compared == ()
    boxes = next(stage for stage in found.stages if stage.name == "detections").measures[0]
    assert boxes.shape[0] > 5
    assert max(stage.worst.error for stage in found.stages if stage.name != "whole model") < 1e-4


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_at_its_stage(fault: str, model: ThinModel, tmp_path: Path) -> None:
    change, stage = FAULTS[fault]
    failed = verify(model, alter(model, tmp_path, change)).failed
    assert failed is not None
    assert failed.name == stage


def test_stages_before_and_after_a_fault_are_judged_by_themselves(model: ThinModel, tmp_path: Path) -> None:
    change, _ = FAULTS["one weight flipped in the RPN"]
    found = verify(model, alter(model, tmp_path, change))
    assert {stage.name for stage in found.stages if not stage.passed} <= {"RPN", "proposals", "whole model"}


@pytest.mark.parametrize(
    ("stage", "before", "after"),
    [
        ("proposals", "RPN_POST_NMS_TOP_N: 20", "RPN_POST_NMS_TOP_N: 20, RPN_NMS_THRESH: 0.3"),
        ("detections", "NMS: 0.5", "NMS: 0.1"),
    ],
)
def test_another_rule_in_the_graph_fails_at_its_stage(
    stage: str, before: str, after: str, model: ThinModel, tmp_path: Path
) -> None:
    wrong = export_thin(TEXT.replace(before, after), tmp_path)
    altered = onnx.load(str(wrong.path))
    del altered.metadata_props[:]  # what it says of itself stays right: only the graph is wrong
    altered.metadata_props.extend(onnx.load(str(model.path)).metadata_props)
    onnx.save(altered, str(wrong.path))
    failed = verify(model, wrong.path).failed
    assert failed is not None
    assert failed.name == stage


def test_a_model_of_another_kind_is_refused(model: ThinModel, tmp_path: Path) -> None:
    bare = export_thin(TEXT.replace(", MASK_ON: True", ""), tmp_path)
    with pytest.raises(ModelError, match="do not match: the network of the configuration has mask_rois"):
        verify(model, bare.path)


def test_a_picture_without_detections_passes(model: ThinModel, tmp_path: Path) -> None:
    bare = export_thin(TEXT.replace("NMS: 0.5", "NMS: 0.5, SCORE_THRESH: 1.5"), tmp_path)
    found = verify(bare, bare.path)
    assert found.failed is None
    assert next(stage for stage in found.stages if stage.name == "detections").measures[0].shape == (0,)


@pytest.mark.parametrize(("name", "kind"), [("model.plan", "detectron"), ("model.onnx", "torchvision")])
def test_models_that_it_cannot_look_into_are_refused(name: str, kind: str, tmp_path: Path) -> None:
    spec = make_spec(source=Source(kind, "0" * 64, ""))
    path = write_model(tmp_path / "model.onnx", spec)
    with pytest.raises(
        UsageError, match=r"a built engine has no tensors|the reference knows checkpoints of detectron, detectron2"
    ):
        run_verification(VerifyRequest(path.with_name(name), tmp_path / "c.yaml", tmp_path / "w.pkl"))


def test_the_command_says_pass_or_names_the_stage(model: ThinModel, tmp_path: Path) -> None:
    sets = [word for pair in THIN.items() for word in ("--set", *pair)]
    files = ["--cfg", str(model.path.with_name("model.yaml")), "--weights", str(model.path.with_name("model.pkl"))]
    out = tmp_path / "out"
    done = CliRunner().invoke(
        main, ["verify", str(model.path), *files, *sets, "-o", str(out), "--engine", "onnxruntime"]
    )
    assert done.exit_code == EXIT_DONE, done.output
    assert "pass  whole model" in done.output
    assert "pass  engine onnxruntime" in done.output
    certificate = json.loads((out / "certificate.json").read_text())
    assert certificate["passed"] is True
    assert len(certificate["files"]["weights"]["sha256"]) == 64
    change, stage = FAULTS["a stride moved"]
    wrong = alter(model, tmp_path, change)
    failed = CliRunner().invoke(main, ["verify", str(wrong), *files, *sets, "-o", str(out)])
    assert failed.exit_code == EXIT_INPUT
    assert failed.output.count("the first stage that leaves its tolerance is `body res4`") == 1
    assert json.loads((out / "certificate.json").read_text())["first_failed_stage"] == stage
