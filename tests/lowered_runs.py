"""The same model two ways on the host: as it is, in ONNX Runtime, and lowered, with its kernels compiled by g++."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from roiline.engines import host_kernels
from roiline.engines.model_file import cut_model
from roiline.engines.protocol import Device, Stage

TEST = "TEST: {RPN_PRE_NMS_TOP_N: 60, RPN_POST_NMS_TOP_N: 20, SCORE_THRESH: 0.1, NMS: 0.5}\n"
C4 = (
    """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: ResNet.add_ResNet50_conv4_body, NUM_CLASSES: 5, FASTER_RCNN: True}
RPN: {SIZES: [32, 64], ASPECT_RATIOS: [0.5, 1.0]}
FAST_RCNN: {ROI_BOX_HEAD: ResNet.add_ResNet_roi_conv5_head, ROI_XFORM_METHOD: RoIAlign}
"""
    + TEST
)
MASKS = """
MRCNN: {ROI_MASK_HEAD: mask_rcnn_heads.mask_rcnn_fcn_head_v0upshare, RESOLUTION: 14, ROI_XFORM_RESOLUTION: 14, DILATION: 1}
"""
PYRAMID = (
    """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: FPN.add_fpn_ResNet50_conv5_body, NUM_CLASSES: 5, FASTER_RCNN: True}
FPN: {FPN_ON: True, MULTILEVEL_ROIS: True, MULTILEVEL_RPN: True}
FAST_RCNN: {ROI_BOX_HEAD: fast_rcnn_heads.add_roi_2mlp_head, ROI_XFORM_METHOD: RoIAlign, ROI_XFORM_RESOLUTION: 7}
"""
    + TEST
)
KEYPOINTS = """
KRCNN: {ROI_KEYPOINTS_HEAD: keypoint_rcnn_heads.add_roi_pose_head_v1convX, NUM_STACKED_CONVS: 1, NUM_KEYPOINTS: 5,
  USE_DECONV_OUTPUT: True, ROI_XFORM_METHOD: RoIAlign, ROI_XFORM_RESOLUTION: 14, UP_SCALE: 2}
"""
FAMILIES = {
    "masks on one level": C4.replace("FASTER_RCNN: True", "FASTER_RCNN: True, MASK_ON: True") + MASKS,
    "maxima": C4.replace("RoIAlign", "RoIPoolF"),
    "pyramid with keypoints": PYRAMID.replace("FASTER_RCNN: True", "FASTER_RCNN: True, KEYPOINTS_ON: True") + KEYPOINTS,
    "cascade": PYRAMID.replace(
        "FASTER_RCNN: True", "FASTER_RCNN: True, CASCADE_ON: True, CLS_AGNOSTIC_BBOX_REG: True"
    ).replace("fast_rcnn_heads.add_roi_2mlp_head", "fast_rcnn_heads.add_roi_Xconv1fc_gn_head")
    + "CASCADE_RCNN: {ROI_BOX_HEAD: cascade_rcnn_heads.add_roi_Xconv1fc_gn_head}\n",
    "position-sensitive": """
MODEL: {TYPE: rfcn, CONV_BODY: ResNet.add_ResNet50_conv5_body, NUM_CLASSES: 4, FASTER_RCNN: True}
RESNETS: {RES5_DILATION: 2}
RFCN: {ROI_BOX_HEAD: rfcn_heads.add_rfcn_head, PS_GRID_SIZE: 3}
"""
    + TEST,
    "one stage": """
MODEL: {TYPE: retinanet, CONV_BODY: FPN.add_fpn_ResNet50_conv5_body, NUM_CLASSES: 5}
FPN: {FPN_ON: True, MULTILEVEL_RPN: True, RPN_MAX_LEVEL: 5}
RETINANET: {RETINANET_ON: True, NUM_CONVS: 1, SCALES_PER_OCTAVE: 1, PRE_NMS_TOP_N: 50, INFERENCE_TH: 0.2}
TEST: {NMS: 0.5, DETECTIONS_PER_IM: 20}
""",
}
SIZE = 96, 128


def run_both(
    path: Path, feeds: Mapping[str, np.ndarray], stage: Stage | None = None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the outputs of the model (or a stage) in ONNX Runtime, and those of its lowered form."""
    session = open_plain_session(path, stage)
    names = [tensor.name for tensor in session.get_outputs()]
    values = session.run(names, {tensor.name: feeds[tensor.name] for tensor in session.get_inputs()})
    backend = host_kernels.open_backend(path, stage, Device())
    try:
        lowered = backend.run({info.name: feeds[info.name] for info in backend.inputs})
    finally:
        backend.close()
    return dict(zip(names, values, strict=True)), lowered


def open_plain_session(path: Path, stage: Stage | None) -> onnxruntime.InferenceSession:
    """Opens a model with the optimisations that do not depend on what else is in a session, as the lowered form has them."""
    model = onnx.load(str(path))
    model = model if stage is None else cut_model(model, stage, where=str(path))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def assert_same_answers(expected: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray]) -> None:
    """Compares all outputs: same shapes, same counts, classes and order; values within the last bits of exp and sqrt."""
    assert set(got) == set(expected)
    for name, tensor in expected.items():
        assert got[name].shape == tensor.shape, name
        assert got[name].dtype == tensor.dtype, name
        if tensor.dtype.kind == "i":
            np.testing.assert_array_equal(got[name], tensor, err_msg=name)
        else:
            np.testing.assert_allclose(got[name], tensor, rtol=1e-5, atol=2e-4, err_msg=name)
