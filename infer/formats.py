"""Result files in the formats that people use, streamed from merged results; equal results give equal bytes.

`detectron`: the pickles of Detectron's test tool. Proposals: {boxes, scores, ids, cfg}, lists over images. Detections: {all_boxes,
all_segms, all_keyps, cfg}, nested lists [class][image]; class 0 has an empty list for each image, every other cell of all_boxes is an
(n, 5) array, also where an image failed. `coco`: the list of COCO's result format, class by class, images ascending.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from roiline.core.files import durable_file
from roiline.core.spec import Task
from roiline.core.structures import Float32
from roiline.infer.merge import DetectionTable, MergedResults
from roiline.infer.pickle_stream import PickleStream


def result_name(task: Task, form: str, named_range: tuple[int, int] | None) -> str:
    """Returns the file name of a result; Detectron names slices by their range, proposals in the plural and detections not."""
    if form == "coco":
        return "bbox_results.json"
    if named_range is None:
        return "rpn_proposals.pkl" if task == "proposals" else "detections.pkl"
    stem = "rpn_proposals_range" if task == "proposals" else "detection_range"
    return f"{stem}_{named_range[0]}_{named_range[1]}.pkl"


def write_proposal_pickle(path: Path, results: MergedResults, *, config_yaml: str) -> None:
    """Writes `rpn_proposals.pkl`."""
    with durable_file(path) as stream:
        writer = PickleStream(stream)
        writer.write_dict(
            [
                ("boxes", lambda: writer.write_list(results, lambda rows: writer.write_array(rows.boxes))),
                ("scores", lambda: writer.write_list(results, lambda rows: writer.write_array(rows.scores))),
                ("ids", lambda: writer.write_list(results.image_ids, writer.write_id)),
                ("cfg", lambda: writer.write_text(config_yaml)),
            ]
        )
        writer.close()


def write_detection_pickle(path: Path, table: DetectionTable, *, config_yaml: str) -> None:
    """Writes `detections.pkl`."""
    images = len(table.image_ids)

    def write_empty_class(_: int) -> None:
        writer.write_empty_lists(images)

    def write_class(class_index: int) -> None:
        if class_index == 0:
            write_empty_class(0)
        else:
            writer.write_list(table.cells(class_index), writer.write_array)

    classes = range(table.num_classes)
    with durable_file(path) as stream:
        writer = PickleStream(stream)
        writer.write_dict(
            [
                ("all_boxes", lambda: writer.write_list(classes, write_class)),
                ("all_segms", lambda: writer.write_list(classes, write_empty_class)),
                ("all_keyps", lambda: writer.write_list(classes, write_empty_class)),
                ("cfg", lambda: writer.write_text(config_yaml)),
            ]
        )
        writer.close()


def write_coco_boxes(path: Path, table: DetectionTable, *, category_ids: Sequence[int], plus_one: bool) -> None:
    """Writes `bbox_results.json`.

    `category_ids[k - 1]` is the dataset's id of the result's class k; with `plus_one` a width is x2 - x1 + 1.
    """
    with durable_file(path) as stream:
        stream.write(b"[")
        separator = b""
        for class_index in range(1, table.num_classes):
            category = category_ids[class_index - 1]
            for image_id, cell in zip(table.image_ids, table.cells(class_index), strict=True):
                if not len(cell):
                    continue
                records = _box_records(image_id, category, cell, float(plus_one))
                stream.write(separator + ", ".join(records).encode())
                separator = b", "
        stream.write(b"]")


def _box_records(image_id: int | str, category_id: int, cell: Float32, plus_one: float) -> list[str]:
    """Returns the JSON of one cell's detections; widths are of double precision, as Detectron computes them.

    The text is what `json.dumps` gives for these records, at a third of its time: a run has millions of them.
    """
    wide = cell.astype("f8")
    wide[:, 2:4] = wide[:, 2:4] - wide[:, :2] + plus_one
    start = f'{{"image_id": {json.dumps(image_id)}, "category_id": {category_id}, "bbox": ['
    return [f'{start}{x!r}, {y!r}, {w!r}, {h!r}], "score": {score!r}}}' for x, y, w, h, score in wide.tolist()]
