"""Two evaluated runs side by side: their metrics, and the pictures in which they differ most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roiline.core.errors import DataError
from roiline.report.picture_scores import MOST_PICTURES, PictureDifference, find_differences, score_pictures
from roiline.report.result_columns import DetectionResults, ProposalResults, Results
from roiline.report.tables import format_columns, format_difference

_HEADINGS = {
    "box": "box AP, x 100",
    "mask": "mask AP, x 100",
    "keypoint": "keypoint AP, x 100",
    "voc": "Pascal VOC's AP of boxes, x 100",
    "box_proposal": "average recall of proposals",
}
_SCALES = {"box_proposal": 1.0}


def compare_metrics(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, dict[str, dict[str, float]]]:
    """Returns the tables of what both runs were scored on, and B - A of each metric that both have.

    Raises:
        DataError: the runs have nothing in common.
    """
    shared = [task for task in _HEADINGS if task in a and task in b]
    if not shared:
        raise DataError("the two results have nothing in common to compare (detections and proposals?)")
    texts, differences = [], {}
    for task in shared:
        texts.append(format_difference(_HEADINGS[task], a[task], b[task], scale=_SCALES.get(task, 100.0)))
        differences[task] = {
            name: b[task][name] - value
            for name, value in a[task].items()
            if value >= 0 and b[task].get(name, -1.0) >= 0
        }
    return "\n\n".join(texts), differences


def compare_pictures(a: Sequence[Results], b: Sequence[Results]) -> tuple[str, list[dict[str, Any]]]:
    """Returns the table and the records of the pictures in which boxes (else proposals) of two runs differ most.

    Raises:
        DataError: the runs are over different pictures.
    """
    for kind in (DetectionResults, ProposalResults):
        first, second = (next((one for one in side if isinstance(one, kind)), None) for side in (a, b))
        if first is not None and second is not None:
            found = find_differences(score_pictures(first), score_pictures(second))
            return _describe(found, len(first.entries)), [_to_plain(one) for one in found[:MOST_PICTURES]]
    return "", []


def _describe(found: Sequence[PictureDifference], images: int) -> str:
    heading = (
        f"pictures that differ (objects found and false boxes at IoU .5, scores from .5 on): {len(found)} of {images}"
    )
    if not found:
        return heading
    table: list[tuple[str, ...]] = [("image", "objects", "found A", "found B", "false A", "false B")]
    table += [
        (str(one.a.image_id), *map(str, (one.a.objects, one.a.found, one.b.found, one.a.false, one.b.false)))
        for one in found[:MOST_PICTURES]
    ]
    return f"{heading}\n{format_columns(table)}"


def _to_plain(one: PictureDifference) -> dict[str, Any]:
    return {
        "image_id": one.a.image_id,
        "objects": one.a.objects,
        "found": [one.a.found, one.b.found],
        "false": [one.a.false, one.b.false],
    }
