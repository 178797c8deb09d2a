"""Result files in the formats that people use, streamed from merged results; equal results give equal bytes.

`detectron`: the pickles of Detectron's test tool. Proposals: {boxes, scores, ids, cfg}, lists over images. Detections: {all_boxes,
all_segms, all_keyps, cfg}, nested lists [class][image]; class 0 has an empty list for each image, every other cell of all_boxes is an
(n, 5) array, also where an image failed, of all_segms a list of n masks {size: [h, w], counts}, of all_keyps a list of n arrays (4, J).
`coco`: the lists of COCO's result format for boxes, masks and keypoints, class by class, images ascending.
`json` (classification): the names of the classes, background first, and for each image its scores in that order and the best class's name;
no scores and no name where the image failed.
`detectron2`, `mmdet` (proposals) are in `proposal_formats`, `parquet` is in `parquet_results`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from roiline.core.files import durable_file
from roiline.core.spec import Task
from roiline.core.structures import Float32
from roiline.infer.detection_table import DetectionTable
from roiline.infer.merge import MergedResults
from roiline.infer.pickle_stream import PickleStream
from roiline.infer.result_rows import KeypointRows, MaskRows, Part
from roiline.ops.keypoint_decode import KeypointConfidence, score_keypoints

Cell = TypeVar("Cell", Float32, MaskRows, KeypointRows)

CLASSIFICATION_FILE = "classifications.json"
BACKGROUND = "__background__"
_FORMAT_VERSION = 1
_STEMS: dict[tuple[Task, str], tuple[str, str, str]] = {
    ("proposals", "detectron"): ("rpn_proposals", "rpn_proposals", ".pkl"),
    ("detections", "detectron"): ("detections", "detection", ".pkl"),
    ("proposals", "detectron2"): ("box_proposals", "box_proposals", ".pkl"),
    ("proposals", "mmdet"): ("proposals", "proposals", ".pkl"),
    ("proposals", "parquet"): ("proposals", "proposals", ".parquet"),
    ("detections", "parquet"): ("detections", "detections", ".parquet"),
}
"""The name of a file, that of one over a range, and the suffix; Detectron names ranges of detections in the singular."""
_COCO_NAMES: dict[Part, str] = {"masks": "segmentations_results.json", "keypoints": "keypoints_results.json"}


def result_names(
    task: Task, form: str, named_range: tuple[int, int] | None, parts: Sequence[Part] = ()
) -> tuple[str, ...]:
    """Returns the file names of a format, that of boxes or proposals first."""
    if form == "json":
        return (CLASSIFICATION_FILE,)
    if form == "coco":
        return ("bbox_results.json", *(_COCO_NAMES[part] for part in parts))
    stem, range_stem, suffix = _STEMS[task, form]
    if named_range is None:
        return (f"{stem}{suffix}",)
    return (f"{range_stem}_range_{named_range[0]}_{named_range[1]}{suffix}",)


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


def write_classifications(path: Path, results: MergedResults, *, class_names: Sequence[str]) -> None:
    """Writes `classifications.json`; `class_names` are those beside the background."""
    names = (BACKGROUND, *class_names)
    with durable_file(path) as stream:
        stream.write(f'{{"format_version": {_FORMAT_VERSION}, "classes": {json.dumps(names)}, "images": ['.encode())
        separator = b"\n"
        for image_id, rows in zip(results.image_ids, results, strict=True):
            scores = rows.scores.tolist()
            best = names[rows.scores.argmax()] if scores else None
            record = {"image_id": image_id, "best": best, "scores": scores}
            stream.write(separator + json.dumps(record).encode())
            separator = b",\n"
        stream.write(b"\n]}\n")


def write_detection_pickle(path: Path, table: DetectionTable, *, config_yaml: str) -> None:
    """Writes `detections.pkl`."""
    images = len(table.image_ids)

    def write_classes(
        cells: Callable[[int], Iterable[Cell]],
        write_cell: Callable[[Cell], None],
        has: Callable[[int], bool] = lambda _: True,
    ) -> None:
        writer.write_list(range(table.num_classes), lambda index: write_class(index, cells, write_cell, has))

    def write_class(
        index: int,
        cells: Callable[[int], Iterable[Cell]],
        write_cell: Callable[[Cell], None],
        has: Callable[[int], bool],
    ) -> None:
        if index == 0 or not has(index):
            writer.write_empty_lists(images)
        else:
            writer.write_list(cells(index), write_cell)

    def write_masks(cell: MaskRows) -> None:
        writer.write_list(cell.counts, lambda counts: write_mask(cell.size_hw, counts))

    def write_mask(size_hw: tuple[int, int], counts: bytes) -> None:
        writer.write_dict(
            [
                ("size", lambda: writer.write_list(size_hw, writer.write_integer)),
                ("counts", lambda: writer.write_bytes(counts)),
            ]
        )

    def write_keypoints(cell: KeypointRows) -> None:
        writer.write_list(cell.points, writer.write_array)

    with durable_file(path) as stream:
        writer = PickleStream(stream)
        writer.write_dict(
            [
                ("all_boxes", lambda: write_classes(table.box_cells, writer.write_array)),
                ("all_segms", lambda: write_classes(table.mask_cells, write_masks, table.has_masks)),
                ("all_keyps", lambda: write_classes(table.keypoint_cells, write_keypoints, table.has_keypoints)),
                ("cfg", lambda: writer.write_text(config_yaml)),
            ]
        )
        writer.close()


def write_coco_boxes(path: Path, table: DetectionTable, *, category_ids: Sequence[int], plus_one: bool) -> None:
    """Writes `bbox_results.json`.

    `category_ids[k - 1]` is the dataset's id of the result's class k; with `plus_one` a width is x2 - x1 + 1.
    """
    _write_coco(path, table, category_ids, table.box_cells, lambda start, cell: _box_records(start, cell, plus_one))


def write_coco_masks(path: Path, table: DetectionTable, *, category_ids: Sequence[int]) -> None:
    """Writes `segmentations_results.json`; a mask's score is its box's."""
    _write_coco(path, table, category_ids, table.mask_cells, _mask_records)


def write_coco_keypoints(
    path: Path, table: DetectionTable, *, category_ids: Sequence[int], confidence: KeypointConfidence
) -> None:
    """Writes `keypoints_results.json`: x, y and a constant 1 of each keypoint; `confidence` says what the score is."""
    _write_coco(
        path, table, category_ids, table.keypoint_cells, lambda start, cell: _keypoint_records(start, cell, confidence)
    )


def _write_coco(
    path: Path,
    table: DetectionTable,
    category_ids: Sequence[int],
    cells: Callable[[int], Iterable[Cell]],
    make_records: Callable[[str, Cell], list[str]],
) -> None:
    """Writes a list of records; `make_records` gives the JSON of one cell's, which all begin with the text that it is handed."""
    with durable_file(path) as stream:
        stream.write(b"[")
        separator = b""
        ids = [json.dumps(image_id) for image_id in table.image_ids]
        for class_index in range(1, table.num_classes):
            category = category_ids[class_index - 1]
            for image_id, cell in zip(ids, cells(class_index), strict=True):
                if not len(cell):
                    continue
                start = f'{{"image_id": {image_id}, "category_id": {category}'
                stream.write(separator + ", ".join(make_records(start, cell)).encode())
                separator = b", "
        stream.write(b"]")


def _box_records(start: str, cell: Float32, plus_one: bool) -> list[str]:
    """Returns the JSON of one cell's detections; widths are of double precision, as Detectron computes them.

    The text is what `json.dumps` gives for these records, at a third of its time: a run has millions of them.
    """
    wide = cell.astype("f8")
    wide[:, 2:4] = wide[:, 2:4] - wide[:, :2] + float(plus_one)
    return [
        f'{start}, "bbox": [{x!r}, {y!r}, {w!r}, {h!r}], "score": {score!r}}}' for x, y, w, h, score in wide.tolist()
    ]


def _mask_records(start: str, cell: MaskRows) -> list[str]:
    height, width = cell.size_hw
    return [
        f'{start}, "segmentation": {{"size": [{height}, {width}], "counts": {json.dumps(counts.decode("ascii"))}}}, "score": {score!r}}}'
        for counts, score in zip(cell.counts, cell.scores.tolist(), strict=True)
    ]


def _keypoint_records(start: str, cell: KeypointRows, confidence: KeypointConfidence) -> list[str]:
    scores = score_keypoints(cell.points, cell.scores, confidence).tolist()
    return [
        f'{start}, "keypoints": [{", ".join(f"{x!r}, {y!r}, 1" for x, y in points)}], "score": {score!r}}}'
        for points, score in zip(cell.points[:, :2].transpose(0, 2, 1).tolist(), scores, strict=True)
    ]
