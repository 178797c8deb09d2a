"""What a dataset run needs beside a net's own outputs: padded proposals and detections, written into the graph as seams.

A Caffe2 detector answers one picture a call, in flat rows. Where the net ends in one BoxWithNMSLimit over boxes of a BBoxTransform, its
rows are given the form that every model of ours has; likewise its RoIs, where one operator ranks them. The net's own outputs stay the
outputs of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from roiline.core.errors import UsageError
from roiline.export.caffe2.netdef import OperatorDef
from roiline.export.caffe2.translation import Call, Translation

PICTURE_INPUTS = ("data", "im_info")


class DatasetSeams(NamedTuple):
    """Is what a net offers a dataset run: the tensors of each task's seam, and K, background included (1: no detections)."""

    seams: Mapping[str, tuple[str, ...]]
    num_classes: int


def write_dataset_seams(translation: Translation, where: str) -> DatasetSeams:
    """Writes the seams that a net allows.

    Raises:
        UsageError: it takes other inputs than pictures, or makes neither proposals nor detections that can be recognised.
    """
    if set(translation.inputs) != set(PICTURE_INPUTS):
        raise UsageError(
            f"{where}: a run over datasets feeds {' and '.join(PICTURE_INPUTS)}; this net takes "
            f"{', '.join(translation.inputs) or 'nothing'}. Leave --cfg out to export it as it is"
        )
    seams = {"proposals": _write_proposals(translation)}
    classes = 1
    last = _last_step(translation)
    if last is not None:
        seams["detections"] = _write_detections(translation, *last)
        classes = translation.blobs[last[0].inputs[0]].dim(1) or 0
        if classes < 2:
            raise UsageError(f"{where}: the number of classes of `{last[0].inputs[0]}` cannot be told; leave --cfg out")
    seams = {name: tensors for name, tensors in seams.items() if tensors}
    if not seams:
        raise UsageError(
            f"{where}: this net has neither proposals ranked by one operator nor one BoxWithNMSLimit over boxes of a "
            "BBoxTransform, so it cannot run over datasets; leave --cfg out to export it as it is"
        )
    return DatasetSeams(seams, classes)


def _write_proposals(translation: Translation) -> tuple[str, ...]:
    """Writes proposals in original pixels where one operator ranks the RoIs of the whole net, else nothing."""
    operators = translation.net.operators
    ranking = [operator for operator in operators if operator.type.startswith("Collect")]
    ranking = ranking or [operator for operator in operators if operator.type.startswith("GenerateProposals")]
    if len(ranking) != 1:
        return ()
    g, rois = translation.graph, translation.blobs[ranking[0].outputs[0]].name
    boxes = g.op("Div", g.columns(rois, 1, 5), g.columns("im_info", 2, 3, axis=1))
    scores = translation.ranked[rois]
    return (
        _write_padded(translation, "proposal_boxes", boxes, (1, "R", 4)),
        _write_padded(translation, "proposal_scores", scores, (1, "R")),
        _write_count(translation, "proposal_count", scores),
    )


def _last_step(translation: Translation) -> tuple[OperatorDef, OperatorDef] | None:
    """Returns the net's BoxWithNMSLimit and the BBoxTransform before it, where it has exactly one of each so joined."""
    limits = [operator for operator in translation.net.operators if operator.type == "BoxWithNMSLimit"]
    if len(limits) != 1:
        return None
    before = [operator for operator in translation.net.operators if limits[0].inputs[1] in operator.outputs]
    return (limits[0], before[0]) if len(before) == 1 and before[0].type == "BBoxTransform" else None


def _write_detections(translation: Translation, limit: OperatorDef, transform: OperatorDef) -> tuple[str, ...]:
    """Writes detections in original pixels, classes counted from 1."""
    g = translation.graph
    scores, boxes, classes = (translation.blobs[name].name for name in limit.outputs[:3])
    if Call(translation, transform).flag("apply_scale", True):
        boxes = g.op("Div", boxes, g.columns("im_info", 2, 3, axis=1))
    if not Call(translation, limit).flag("output_classes_include_bg_cls", True):
        classes = g.op("Add", classes, g.scalar(1.0))
    return (
        _write_padded(translation, "detection_boxes", boxes, (1, "D", 4)),
        _write_padded(translation, "detection_scores", scores, (1, "D")),
        _write_padded(translation, "detection_classes", g.cast(classes, np.int64), (1, "D"), np.int64),
        _write_count(translation, "detection_count", scores),
    )


def _write_padded(
    translation: Translation,
    name: str,
    rows: str,
    shape: tuple[int | str, ...],
    dtype: type[np.generic] = np.float32,
) -> str:
    """Gives the rows of the one picture the axis of pictures, and declares the result as a seam."""
    g = translation.graph
    return _declare(translation, g.op("Unsqueeze", rows, g.ints(0), name=translation.names.free(name)), shape, dtype)


def _write_count(translation: Translation, name: str, rows: str) -> str:
    count = translation.graph.op("Shape", rows, name=translation.names.free(name), start=0, end=1)
    return _declare(translation, count, (1,), np.int64)


def _declare(translation: Translation, name: str, shape: tuple[int | str, ...], dtype: type[np.generic]) -> str:
    element: onnx.TensorProto.DataType = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    translation.graph.declare(helper.make_tensor_value_info(name, element, shape))
    return name
