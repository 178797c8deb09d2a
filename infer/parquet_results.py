"""Results as Parquet, one row an image, in row groups that are written as they fill; equal results give equal bytes.

Columns: `image_id` (int64, or text as the dataset has it), `file_name` (folder/name of the picture), `failure` (why
there is no result, else null), `degraded` (what is wrong with a picture that has one all the same, else null), `boxes` (list of x1, y1,
x2, y2, float32), `scores` (list of float32). Detections also have `category_ids` (list of int64), `mask_size` (height, width; null
without masks), `masks` (list of {category_id, score, counts}, COCO's compressed run lengths) and `keypoints` (list of
{category_id, score, points}, the points being all x, all y, all logits, all probabilities). Rows of an image are in the order in which
the model gives them. The schema's metadata has under `roiline` a JSON object: format version, task, EXIF policy, whether a
box's width is x2 - x1 + 1, and the categories.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roiline.core.errors import UsageError
from roiline.core.files import durable_file
from roiline.core.structures import Float32, ImageId, Int64
from roiline.infer.manifest import Manifest
from roiline.infer.merge import MergedResults
from roiline.infer.result_rows import Rows

_FORMAT_VERSION = 1
_GROUP_IMAGES = 4096
_GROUP_VALUES = 1 << 20  # boxes, or bytes of masks, of a row group: some tens of megabytes


def check_parquet_is_there() -> None:
    """Checks that the library is installed, before anything is computed.

    Raises:
        UsageError: it is not.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError("--format parquet: needs pyarrow, which is not installed: pip install 'roiline[parquet]'")


def write_parquet(path: Path, results: MergedResults, manifest: Manifest) -> None:
    """Writes `proposals.parquet` or `detections.parquet`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _make_schema(results.image_ids, manifest)
    order = np.array([0, *(one.category_id for one in manifest.classes)], np.int64)
    categories = order[np.asarray(manifest.class_order, np.int64)]
    with durable_file(path) as stream, pq.ParquetWriter(pa.PythonFile(stream, "w"), schema) as writer:
        for group in _group_images(results):
            columns = _make_columns(group, results, schema, categories)
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def _make_schema(ids: Sequence[ImageId], manifest: Manifest) -> Any:
    import pyarrow as pa

    numbers = all(isinstance(one, int) for one in ids)
    fields = [
        pa.field("image_id", pa.int64() if numbers else pa.string(), nullable=False),
        pa.field("file_name", pa.string(), nullable=False),
        pa.field("failure", pa.string()),
        pa.field("degraded", pa.string()),
        pa.field("boxes", pa.list_(pa.list_(pa.float32(), 4))),
        pa.field("scores", pa.list_(pa.float32())),
    ]
    if manifest.settings.task == "detections":
        owner = [("category_id", pa.int64()), ("score", pa.float32())]
        fields += [
            pa.field("category_ids", pa.list_(pa.int64())),
            pa.field("mask_size", pa.list_(pa.int32(), 2)),
            pa.field("masks", pa.list_(pa.struct([*owner, ("counts", pa.string())]))),
            pa.field("keypoints", pa.list_(pa.struct([*owner, ("points", pa.list_(pa.float32()))]))),
        ]
    described = {
        "format_version": _FORMAT_VERSION,
        "task": manifest.settings.task,
        "exif": manifest.settings.exif,
        "plus_one": manifest.plus_one,
        "categories": [{"id": one.category_id, "name": one.name} for one in manifest.classes],
    }
    return pa.schema(fields, metadata={"roiline": json.dumps(described, ensure_ascii=False)})


def _group_images(results: MergedResults) -> Iterator[list[tuple[int, Rows]]]:
    """Returns the images of each row group: (position, rows)."""
    group: list[tuple[int, Rows]] = []
    values = 0
    for position, rows in enumerate(results):
        group.append((position, rows))
        values += len(rows.scores) + sum(map(len, rows.masks.counts)) + rows.keypoints.points.size
        if len(group) >= _GROUP_IMAGES or values >= _GROUP_VALUES:
            yield group
            group, values = [], 0
    if group:
        yield group


def _make_columns(
    group: Sequence[tuple[int, Rows]], results: MergedResults, schema: Any, categories: Int64
) -> list[Any]:
    """Returns the arrays of one row group, in the order of the schema."""
    import pyarrow as pa

    images = [results.image(position) for position, _ in group]
    every = [rows for _, rows in group]
    values: dict[str, Any] = {
        "image_id": [one.image_id for one in images],
        "file_name": [one.file for one in images],
        "failure": [one.failure for one in images],
        "degraded": [one.degraded for one in images],
        "boxes": _list_array([rows.boxes for rows in every], width=4),
        "scores": _list_array([rows.scores for rows in every]),
        "category_ids": _list_array([categories[rows.classes] for rows in every]),
        "mask_size": [list(rows.masks.size_hw) if rows.masks.counts else None for rows in every],
        "masks": [_list_masks(rows, categories) for rows in every],
        "keypoints": [_list_keypoints(rows, categories) for rows in every],
    }
    return [
        values[field.name] if isinstance(values[field.name], pa.Array) else pa.array(values[field.name], field.type)
        for field in schema
    ]


def _list_array(parts: Sequence[Float32 | Int64], *, width: int = 0) -> Any:
    """Returns an array of lists, one a part; of a part (n, width) each row is a list of its own."""
    import pyarrow as pa

    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int32)
    flat = pa.array(np.concatenate(parts).reshape(-1))
    return pa.ListArray.from_arrays(offsets, pa.FixedSizeListArray.from_arrays(flat, width) if width else flat)


def _list_masks(rows: Rows, categories: Int64) -> list[Mapping[str, Any]]:
    masks = rows.masks
    owners = zip(categories[masks.classes].tolist(), masks.scores.tolist(), masks.counts, strict=True)
    return [{"category_id": label, "score": score, "counts": counts.decode("ascii")} for label, score, counts in owners]


def _list_keypoints(rows: Rows, categories: Int64) -> list[Mapping[str, Any]]:
    owner = rows.keypoints
    each = zip(categories[owner.classes].tolist(), owner.scores.tolist(), owner.points, strict=True)
    return [{"category_id": label, "score": score, "points": points.reshape(-1)} for label, score, points in each]
