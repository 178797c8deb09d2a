"""Proposal files of other frameworks, streamed from merged results.

`detectron2`: the pickle that its evaluator writes and `DATASETS.PROPOSAL_FILES_TEST` names: {ids, boxes, objectness_logits, bbox_mode},
lists over images in ascending id order, boxes as corners (bbox_mode 0). `mmdet`: the pickle of its `DumpProposals` (version 3):
{folder/name of the picture: {bboxes (n, 4), scores (n,)}}. Both hold the run's own coordinates and scores, descending: a model of
Detectron has inclusive corners and probabilities there, as detectron2 takes them from Detectron's own files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from roiline.core.errors import DataError
from roiline.core.files import durable_file
from roiline.infer.merge import MergedResults
from roiline.infer.pickle_stream import PickleStream
from roiline.infer.result_rows import Rows
from roiline.infer.roidb import shorten

_CORNERS = 0  # XYXY_ABS of detectron2's BoxMode


def write_detectron2_proposals(path: Path, results: MergedResults) -> None:
    """Writes `box_proposals.pkl`."""
    with durable_file(path) as stream:
        writer = PickleStream(stream)
        writer.write_dict(
            [
                ("ids", lambda: writer.write_list(results.image_ids, writer.write_id)),
                ("boxes", lambda: writer.write_list(results, lambda rows: writer.write_array(rows.boxes))),
                ("objectness_logits", lambda: writer.write_list(results, lambda rows: writer.write_array(rows.scores))),
                ("bbox_mode", lambda: writer.write_integer(_CORNERS)),
            ]
        )
        writer.close()


def write_mmdet_proposals(path: Path, results: MergedResults) -> None:
    """Writes `proposals.pkl`.

    Raises:
        DataError: two pictures have one folder and name.
    """
    check_file_names(results.files())

    def write_image(rows: Rows) -> None:
        writer.write_dict(
            [("bboxes", lambda: writer.write_array(rows.boxes)), ("scores", lambda: writer.write_array(rows.scores))]
        )

    with durable_file(path) as stream:
        writer = PickleStream(stream)
        writer.write_mapping(_with_files(results), write_image)
        writer.close()


def check_file_names(names: Iterable[str]) -> None:
    """Checks that no two pictures have one folder and name, the only ones that such a file tells them by.

    Raises:
        DataError: some have.
    """
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(
            f"--format mmdet: names pictures by their folder and name alone, and several have one: {shorten(twice)}; "
            "choose another format"
        )


def _with_files(results: MergedResults) -> Iterator[tuple[str, Rows]]:
    return zip(results.files(), results, strict=True)
