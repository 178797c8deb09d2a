"""Proposal files: the pickles of boxes, scores and ids that a proposal run writes and Fast R-CNN, recall and drawing read.

Two steps are kept apart. `read_proposal_file` gives what the file holds, checked, in the file's order. `load_proposal_file` gives what
Detectron's loader makes of it for a roidb: one array an entry, clipped, without duplicates and slivers, at most `limit` rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from roiline.core.boxes import clip_boxes
from roiline.core.errors import DataError
from roiline.core.pickles import read_pickle
from roiline.core.quantities import are_numbers, array_from_numbers, is_integer
from roiline.core.structures import Float32, ImageId, RoidbEntry
from roiline.infer.shards import name_file

MIN_PROPOSAL_SIDE = 2
"""Proposals are kept where width and height (x2 - x1 + 1) exceed this number of pixels."""

_NAMED_IDS = 5
_CORNERS, _SIZES = 0, 1  # XYXY_ABS and XYWH_ABS of detectron2's BoxMode
_HASH_WEIGHTS = np.array([1, 1e3, 1e6, 1e9])


@dataclass(frozen=True, slots=True)
class ProposalFile:
    """Is a proposal file's content: for each of `ids`, `boxes` (R, 4) float32 in original pixels and `scores` (R,) float32.

    With `by_file` the ids are the pictures' folders and names, as mmdet has them.
    """

    path: Path
    ids: tuple[ImageId, ...]
    boxes: tuple[Float32, ...]
    scores: tuple[Float32, ...]
    by_file: bool = False

    def match(self, entries: Sequence[RoidbEntry]) -> list[int]:
        """Returns for each entry its position in the file.

        Raises:
            DataError: an entry is not in the file, or there several times.
        """
        keys = [name_file(entry.path) if self.by_file else entry.image_id for entry in entries]
        return match_ids(self.ids, keys, self.path)


def read_proposal_file(path: Path) -> ProposalFile:
    """Reads a proposal pickle as it is: nothing is dropped, sorted or clipped.

    Raises:
        DataError: the file is not a readable pickle, not a proposal file, or its lists do not fit each other.
    """
    return proposal_file_from_pickle(read_pickle(path, error=DataError), path)


def proposal_file_from_pickle(content: object, path: Path) -> ProposalFile:
    """Checks the decoded pickle of a proposal file (`ids`, or `indexes` in old and selective-search files).

    detectron2's files have `objectness_logits` for `scores`, and `bbox_mode` 0 (corners) or 1 (corner, width, height); mmdet's (version 3)
    have {bboxes, scores} by the picture's folder and name.

    Raises:
        DataError: `content` is not a proposal file's; `path` is named.
    """
    if not is_proposal_content(content):
        raise DataError(f"{path}: expected a proposal file (a dict of boxes, scores and ids), got {_describe(content)}")
    by_file = _is_by_file(content)
    if by_file:
        parts = content.values()
        content = {"ids": list(content), **{key: [one[key] for one in parts] for key in ("bboxes", "scores")}}
        content["boxes"] = content.pop("bboxes")
    id_field = "ids" if "ids" in content else "indexes"
    score_field = "scores" if "scores" in content else "objectness_logits"
    lists = {name: content[name] for name in ("boxes", score_field, id_field)}
    wrong = [name for name, item in lists.items() if not _is_list(item)]
    if wrong:
        raise DataError(f"{path}: expected lists, one item a picture, got {_describe(lists[wrong[0]])} in `{wrong[0]}`")
    lengths = {name: len(item) for name, item in lists.items()}
    if len(set(lengths.values())) != 1:
        raise DataError(f"{path}: expected lists of equal length, got {lengths}; the file is incomplete")
    ids = tuple(_plain_id(item, path) for item in lists[id_field])
    boxes = tuple(_box_rows(item, key, path) for key, item in zip(ids, lists["boxes"], strict=True))
    scores = tuple(
        _score_row(item, len(rows), key, path) for key, item, rows in zip(ids, lists[score_field], boxes, strict=True)
    )
    return ProposalFile(path, ids, tuple(_corners_of(rows, content, path) for rows in boxes), scores, by_file)


def _corners_of(boxes: Float32, content: Mapping[str, Any], path: Path) -> Float32:
    """Returns boxes as corners, whatever a file of detectron2 says that they are."""
    given = content.get("bbox_mode", _CORNERS)
    mode = given.item() if isinstance(given, np.integer) else given
    if not is_integer(mode) or mode not in (_CORNERS, _SIZES):
        raise DataError(
            f"{path}: `bbox_mode` is {_show(mode)}; {_CORNERS} (corners) and {_SIZES} (corner, width, height) are read"
        )
    return boxes if mode == _CORNERS else np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)


def is_proposal_content(content: object) -> TypeGuard[Mapping[str, Any]]:
    """Tells whether a decoded pickle has the keys of a proposal file."""
    if not isinstance(content, Mapping):
        return False
    ids, scores = content.keys() & {"ids", "indexes"}, content.keys() & {"scores", "objectness_logits"}
    return ("boxes" in content and bool(ids) and bool(scores)) or _is_by_file(content)


def _is_by_file(content: Mapping[Any, Any]) -> bool:
    """Tells whether a dict is mmdet's: boxes and scores by the picture's folder and name."""
    return bool(content) and all(
        isinstance(key, str) and isinstance(one, Mapping) and "bboxes" in one and "scores" in one
        for key, one in content.items()
    )


def load_proposal_file(path: Path, entries: Sequence[RoidbEntry], *, limit: int) -> list[Float32]:
    """Returns the proposals (R, 4) of each entry, in the order of `entries`, by the rules of Detectron's loader.

    Pictures that are not in the roidb are dropped. Of each other one: boxes are clipped to the picture, duplicates after rounding
    to integers are dropped (the first stays), boxes of at most 2 pixels a side are dropped, and the first `limit` rows are
    taken (`limit` <= 0: all). The file's order is trusted to be score order.

    Raises:
        DataError: the file is not a proposal file, or lacks or repeats a picture of the roidb.
    """
    content = read_proposal_file(path)
    positions = content.match(entries)
    return [select_proposals(content.boxes[i], entry, limit=limit) for i, entry in zip(positions, entries, strict=True)]


def rank_proposal_file(path: Path, entries: Sequence[RoidbEntry]) -> list[Float32]:
    """Returns all proposals (R, 4) of each entry by descending score (ties: the first of the file), as detectron2's loader has them.

    Raises:
        DataError: the file is not a proposal file, or lacks or repeats a picture of the roidb.
    """
    content = read_proposal_file(path)
    positions = content.match(entries)
    return [content.boxes[i][np.argsort(-content.scores[i], kind="stable")] for i in positions]


def match_ids(ids: Sequence[ImageId], wanted_ids: Sequence[ImageId], path: Path) -> list[int]:
    """Returns for each of `wanted_ids` its position in `ids`.

    Raises:
        DataError: one is not there, or several times.
    """
    where: dict[ImageId, int] = {}
    wanted = set(wanted_ids)
    repeated: list[ImageId] = []
    for position, key in enumerate(ids):
        if key in wanted and where.setdefault(key, position) != position:
            repeated.append(key)
    if repeated:
        raise DataError(f"{path}: holds {len(repeated)} pictures more than once: {_name_ids(repeated)}")
    missing = [key for key in wanted_ids if key not in where]
    if missing:
        raise DataError(
            f"{path}: has no proposals for {len(missing)} of the dataset's {len(wanted_ids)} pictures: {_name_ids(missing)}; "
            f"the file's {len(ids)} ids are {_name_ids(ids)}. Give the dataset (and range) that the file was made from"
        )
    return [where[key] for key in wanted_ids]


def select_proposals(boxes: Float32, entry: RoidbEntry, *, limit: int) -> Float32:
    """Returns the rows (R, 4) of one picture's proposals that Detectron's loader keeps, clipped to the picture.

    Duplicates are found as the original finds them, by one number a box (x1 + 1e3 y1 + 1e6 x2 + 1e9 y2 of the rounded corners): in
    pictures over 1000 pixels wide two distinct boxes may share it, and the second is dropped there too.
    """
    if entry.height <= 0 or entry.width <= 0:
        raise DataError(f"picture {entry.image_id!r}: its size must be known before proposals are clipped to it")
    clipped = clip_boxes(boxes, entry.height, entry.width)
    _, first = np.unique(np.round(clipped) @ _HASH_WEIGHTS, return_index=True)
    kept = clipped[np.sort(first)]
    sides = kept[:, 2:] - kept[:, :2] + 1
    kept = kept[(sides > MIN_PROPOSAL_SIDE).all(axis=1)]
    return kept[:limit] if limit > 0 else kept


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _plain_id(key: object, path: Path) -> ImageId:
    plain = key.item() if isinstance(key, np.integer) else key
    if is_integer(plain):
        return plain
    if isinstance(plain, str):
        return str(plain)
    raise DataError(f"{path}: expected picture ids that are integers or text, got {_show(key)}")


def _box_rows(rows: object, key: ImageId, path: Path) -> Float32:
    boxes = _numbers(rows, f"{path}: boxes of picture {key!r}")
    if boxes.size == 0:
        return np.zeros((0, 4), np.float32)
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise DataError(f"{path}: boxes of picture {key!r}: expected shape (R, 4), got {boxes.shape}")
    if not are_numbers(boxes):
        raise DataError(f"{path}: boxes of picture {key!r}: expected finite numbers, got NaN or infinity")
    return boxes


def _score_row(row: object, count: int, key: ImageId, path: Path) -> Float32:
    scores = _numbers(row, f"{path}: scores of picture {key!r}").reshape(-1)
    if len(scores) != count:
        raise DataError(
            f"{path}: picture {key!r}: expected one score a box, got {len(scores)} scores for {count} boxes"
        )
    if not are_numbers(scores):
        raise DataError(f"{path}: scores of picture {key!r}: expected finite numbers, got NaN or infinity")
    return scores


def _numbers(value: object, where: str) -> Float32:
    try:
        return array_from_numbers(value, np.float32)
    except ValueError as failure:
        raise DataError(f"{where}: expected an array of numbers, got {_describe(value)}") from failure


def _name_ids(ids: Sequence[ImageId]) -> str:
    named = ", ".join(repr(key) for key in ids[:_NAMED_IDS])
    return f"{named}, .. ({len(ids)} in all)" if len(ids) > _NAMED_IDS else named


def _describe(value: object) -> str:
    if isinstance(value, Mapping):
        return f"a dict of {', '.join(sorted(map(str, value))[:8]) or 'nothing'}"
    return f"a {type(value).__name__}"


def _show(value: object) -> str:
    """Returns a scalar as it is, and anything that may be long, or too long to be shown, by its kind."""
    return f"{value!r:.40}" if isinstance(value, (str, float)) or is_integer(value) else _describe(value)
