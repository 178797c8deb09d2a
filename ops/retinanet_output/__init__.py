"""RetinaNetOutput: the candidates of every picture into its detections.

Inputs, as RetinaNetCandidates gives them: `candidate_boxes` (N, M, 4) in original pixels, `candidate_scores` (N, M), `candidate_classes`
(N, M) int64 from `first_class` on, `candidate_levels` (N, M) int64, of which the largest is the coarsest.
Outputs: `boxes` (N, D, 4), `scores` (N, D), `classes` (N, D) int64, padded with 0, -inf and 0; `count` (N,).

Scores above `score_thresh` count, on the coarsest level above `coarsest_score_thresh`, so that a picture has detections when no score is
high. Per class (`first_class` to `num_classes` - 1) all levels go through NMS at `nms_thresh` together. `max_dets` > 0 keeps exactly that
many of a picture, by score, unlike DetectionOutput, which keeps ties at the limit. Rows come class by class and, within a class, by
descending score; with `ranked` by descending score over all classes. Where `im_size` (N, 2), the original pictures' (height, width), is an
input, boxes are then clipped to them, and those without area are dropped, which comes after the limit (detectron2).
Ties: within a class the candidate that comes first wins; at the limit the lower class, then the candidate that comes first. (The original's
sorting leaves ties open.)

On the host `retinanet_results` does one picture, with soft-NMS in place of NMS where a model's options ask for it.
Source: Detectron's `test_retinanet.im_detect_bbox`, from its NMS on.
"""

from __future__ import annotations

from roiline.ops.operator import Operator
from roiline.ops.retinanet_output.function import write_retinanet_output
from roiline.ops.retinanet_output.lowering import OUTPUT_KERNELS, lower_retinanet_output
from roiline.ops.retinanet_output.reference import retinanet_output, retinanet_results

RETINANET_OUTPUT = Operator(
    name="RetinaNetOutput",
    inputs=("candidate_boxes", "candidate_scores", "candidate_classes", "candidate_levels", "im_size?"),
    outputs={"boxes": ("float32", 3), "scores": ("float32", 2), "classes": ("int64", 2), "count": ("int64", 1)},
    attributes={
        "num_classes": None,
        "first_class": 1,
        "score_thresh": None,
        "coarsest_score_thresh": 0.0,
        "nms_thresh": None,
        "max_dets": None,
        "nms_inclusive": 1,
        "size_offset": 1.0,
        "ranked": 0,
    },
    reference=retinanet_output,
    function=write_retinanet_output,
    kernels=OUTPUT_KERNELS,
    lower=lower_retinanet_output,
)

__all__ = ["RETINANET_OUTPUT", "retinanet_results"]
