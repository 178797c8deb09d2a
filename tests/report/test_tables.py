from __future__ import annotations

import json

import pytest
from shared_data import shared_path

from roiline.report.detection_metrics import DetectionMetrics
from roiline.report.tables import format_copy_paste, format_detection_table, format_recall_table


def test_detections_have_one_decimal_of_percent_and_a_row_a_class() -> None:
    text = format_detection_table("pets", DetectionMetrics({"AP": 0.48367, "APl": -1.0}, {"cat": 1.0, "dog": -1.0}))
    heading, *rows = text.splitlines()
    assert heading.startswith("pets: box AP")
    assert [row.split() for row in rows] == [
        ["AP", "48.4"],
        ["APl", "-"],
        ["AP", "of", "cat", "100.0"],
        ["AP", "of", "dog", "-"],
    ]
    assert len({len(row) for row in rows}) == 1


def test_masks_and_keypoints_say_what_they_are() -> None:
    metrics = DetectionMetrics({"AP": 0.5}, {"cat": 0.5})
    assert format_detection_table("pets", metrics, "mask").startswith("pets: mask AP, IoU .50:.95, at most 100 ")
    assert format_detection_table("pets", metrics, "keypoint").startswith("pets: keypoint AP, OKS .50:.95, at most 20 ")


def test_recalls_have_three_decimals() -> None:
    rows = format_recall_table("pets", {"AR@100": 0.55217, "ARl@1000": -1.0}).splitlines()[1:]
    assert [row.split() for row in rows] == [["AR@100", "0.552"], ["ARl@1000", "-"]]


@pytest.mark.golden
@pytest.mark.parametrize("folder", ["rpn", "rpn_3way", "rpn_class_specific_ar"])
def test_copy_paste_lines_are_the_originals(folder: str) -> None:
    golden = json.loads(shared_path(f"golden/dataset/{folder}/metrics.json").read_text())
    lines = format_copy_paste("coco_cc12", "box_proposal", golden["recall"]["coco_cc12"]["box_proposal"])
    assert lines.splitlines() == [f"copypaste: {line}" for line in golden["copypaste"]]
    log = shared_path(f"golden/dataset/{folder}/log_excerpt.txt").read_text()
    assert all(line in log for line in lines.splitlines())
