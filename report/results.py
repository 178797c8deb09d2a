"""Result files read back: an OUT folder or a bare file becomes detections, masks, keypoints or proposals of a dataset's entries.

What a file is is told by its content, never by its name: a COCO result list (JSON), Detectron's class-major `all_boxes` (pickle), or
a proposal file (pickle). The one name that counts is that of a range file (`.._range_START_END.pkl`): such files say nowhere
else which pictures they cover, positions START to END in ascending id order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from roiline.core.errors import DataError
from roiline.core.pickles import read_pickle
from roiline.core.structures import Proposals, RoidbEntry
from roiline.infer.manifest import RUN_FILE, Manifest, read_manifest
from roiline.infer.proposal_files import is_proposal_content, proposal_file_from_pickle
from roiline.infer.roidb import Dataset
from roiline.report.coco_results import read_coco_results
from roiline.report.pickled_results import read_pickled_results
from roiline.report.result_columns import ProposalResults, Results

_COCO_NAMES = ("bbox_results.json", "segmentations_results.json", "keypoints_results.json")
_DETECTION_NAMES = ("detections.pkl", "detection_range_*.pkl")
_PROPOSAL_NAMES = tuple(
    f"{stem}{end}" for stem in ("rpn_proposals", "box_proposals", "proposals") for end in (".pkl", "_range_*.pkl")
)
_RANGE = re.compile(r"_range_(\d+)_(\d+)\.pkl$")
_NAMED = 5


def dataset_of_run(path: Path, dataset: Dataset) -> Dataset:
    """Returns the part of a dataset that a run was over, as run.json says it; all of it where there is no run.json.

    `path` is an OUT folder or a result file in one.

    Raises:
        DataError: run.json is damaged, or the run was over a dataset of another size.
    """
    found = find_run(path, dataset.name)
    if found is None:
        return dataset
    manifest = found[1]
    start, end = manifest.settings.id_range
    low, high = dataset.id_range
    if manifest.dataset.total != dataset.total:
        raise DataError(
            f"{path}: was made over a dataset of {manifest.dataset.total} pictures ({manifest.dataset.source}), "
            f"`{dataset.name}` has {dataset.total}; give the run's own dataset, with its --split if it has one"
        )
    if not low <= start <= end <= high:
        raise DataError(f"{path}: covers pictures {start} to {end}, but pictures {low} to {high} were loaded")
    return replace(dataset, entries=dataset.entries[start - low : end - low], id_range=(start, end))


def class_names_of_run(path: Path, named: tuple[str, ...] | None = None) -> tuple[str, ...] | None:
    """Returns the class names, in order, of the run that an OUT folder or a result file in one belongs to; `named` where there is no run.

    Raises:
        DataError: run.json is damaged, or the names that were given are not the run's: the message shows both lists.
    """
    folder = path if path.is_dir() else path.parent
    for place in (folder, *sorted(found.parent for found in folder.glob(f"*/{RUN_FILE}"))):
        manifest = read_manifest(place)
        if manifest is None:
            continue
        own = tuple(one.name for one in manifest.classes)
        if named is not None and own and named != own:
            raise DataError(f"{path}: --classes says {', '.join(named)}; the run's own classes are {', '.join(own)}")
        return own or named
    return named


def find_run(path: Path, dataset_name: str) -> tuple[Path, Manifest] | None:
    """Returns the OUT folder of the run over a dataset that `path` (a folder, or a file in one) belongs to, and its run.json.

    Raises:
        DataError: run.json is damaged.
    """
    for folder in (path / dataset_name, path) if path.is_dir() else (path.parent,):
        manifest = read_manifest(folder)
        if manifest is not None:
            return folder, manifest
    return None


def read_results(path: Path, dataset: Dataset) -> tuple[Results, ...]:
    """Reads the results that `path` has for a dataset: of a folder its detections and its proposals, of a file what it holds.

    Raises:
        DataError: there are no results, a file is damaged or of another kind, or it belongs to another dataset.
    """
    return tuple(part for file in find_result_files(path, dataset.name) for part in read_result_file(file, dataset))


def find_result_files(path: Path, dataset_name: str) -> tuple[Path, ...]:
    """Returns the result files of a folder, detections first; of a folder with a sub-folder named after the dataset, those in there.

    Detections written in two formats are the same detections: the COCO lists are taken.

    Raises:
        DataError: the path does not exist, the folder has no results, or several range files that nobody merged.
    """
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder; expected a result file or the OUT folder of a run")
    for folder in (path / dataset_name, path):
        lists = tuple(folder / name for name in _COCO_NAMES if (folder / name).exists())
        found = [*(lists or _list_present(folder, _DETECTION_NAMES)), *_list_present(folder, _PROPOSAL_NAMES)]
        if found:
            return tuple(found)
    names = ", ".join((*_COCO_NAMES, _DETECTION_NAMES[0], _PROPOSAL_NAMES[0]))
    raise DataError(
        f"{path}: no results in this folder, nor in a sub-folder `{dataset_name}`; expected one of {names}. "
        "`roiline status` tells whether the run has finished"
    )


def read_result_file(path: Path, dataset: Dataset) -> tuple[Results, ...]:
    """Reads one result file, recognised by its content: a pickle of detections may hold boxes, masks and keypoints.

    Raises:
        DataError: the file is damaged, not a result file, or belongs to another dataset.
    """
    head = _read_head(path)
    if head[:1] in (b"[", b"{"):
        return (read_coco_results(path, dataset),)
    content = read_pickle(path, error=DataError)
    entries = _covered_entries(path, dataset)
    if is_proposal_content(content):
        return (_proposals_from_pickle(content, path, entries),)
    if isinstance(content, Mapping) and "all_boxes" in content:
        return read_pickled_results(content, path, entries, dataset)
    keys = ", ".join(sorted(map(str, content))[:8]) if isinstance(content, Mapping) else type(content).__name__
    raise DataError(
        f"{path}: expected a pickle with all_boxes (detections) or boxes, scores and ids (proposals), got {keys}"
    )


def _list_present(folder: Path, patterns: Sequence[str]) -> tuple[Path, ...]:
    """Returns the first file of the patterns, alone or none.

    Raises:
        DataError: a pattern has several.
    """
    for pattern in patterns:
        files = sorted(folder.glob(pattern))
        if len(files) > 1:
            names = ", ".join(file.name for file in files[:_NAMED])
            raise DataError(
                f"{folder}: holds {len(files)} range files ({names}); join them with `roiline merge`, or name one"
            )
        if files:
            return (files[0],)
    return ()


def _read_head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            head = file.read(256)
    except OSError as failure:
        raise DataError(f"{path}: cannot be read: {failure.strerror}") from failure
    if not head:
        raise DataError(f"{path}: the file is empty")
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()


def _covered_entries(path: Path, dataset: Dataset) -> tuple[RoidbEntry, ...]:
    """Returns the entries that a file covers: all of the dataset's, or those of the range in the file's name."""
    matched = _RANGE.search(path.name)
    if matched is None:
        return dataset.entries
    start, end = int(matched[1]), int(matched[2])
    low, high = dataset.id_range
    if not low <= start < end <= high:
        raise DataError(
            f"{path}: its name says pictures {start} to {end} in ascending id order, but of dataset `{dataset.name}` "
            f"pictures {low} to {high} were loaded"
        )
    return dataset.entries[start - low : end - low]


def _proposals_from_pickle(content: object, path: Path, entries: tuple[RoidbEntry, ...]) -> ProposalResults:
    file = proposal_file_from_pickle(content, path)
    positions = file.match(entries)
    return ProposalResults(
        path,
        entries,
        tuple(
            Proposals(entry.image_id, file.boxes[at], file.scores[at])
            for entry, at in zip(entries, positions, strict=True)
        ),
    )
