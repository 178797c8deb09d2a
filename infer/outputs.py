"""The files that a finished run leaves beside its shards, and the joining of several runs over ranges of one dataset."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from roiline.core.errors import EXIT_DONE, EXIT_SOME_FAILED, DataError, UsageError
from roiline.core.files import FolderLock, write_json
from roiline.infer.detection_table import DetectionTable
from roiline.infer.formats import (
    result_names,
    write_classifications,
    write_coco_boxes,
    write_coco_keypoints,
    write_coco_masks,
    write_detection_pickle,
    write_proposal_pickle,
)
from roiline.infer.manifest import (
    FAILED_FILE,
    FORMAT_VERSION,
    RUN_FILE,
    SHARDS_FOLDER,
    Manifest,
    differing_settings,
    digest_files,
    read_manifest,
    write_manifest,
)
from roiline.infer.merge import FailedImage, MergedResults
from roiline.infer.parquet_results import check_parquet_is_there, write_parquet
from roiline.infer.proposal_formats import write_detectron2_proposals, write_mmdet_proposals
from roiline.infer.request import DEFAULT_FORMATS, FORMATS, RunSummary
from roiline.infer.shards import ShardFile, shard_path
from roiline.infer.taps import link_taps

LOG = logging.getLogger("roiline.run")


def choose_formats(task: str, asked: Sequence[str]) -> tuple[str, ...]:
    """Returns the formats to write, each once: those asked for, else the task's default.

    Raises:
        UsageError: a format is not one of the task's, or the library that writes it is not installed.
    """
    known = FORMATS[task]  # type: ignore[index]
    unknown = [form for form in asked if form not in known]
    if unknown:
        raise UsageError(f"--format {unknown[0]}: {task} can be written as {', '.join(known)}")
    if "parquet" in asked:
        check_parquet_is_there()
    return tuple(dict.fromkeys(asked)) or DEFAULT_FORMATS[task]  # type: ignore[index]


def result_paths(out: Path, manifest: Manifest, formats: Sequence[str]) -> tuple[Path, ...]:
    """Returns the places of the result files of some formats."""
    task, named_range, parts = manifest.settings.task, manifest.named_range, manifest.parts
    return tuple(out / name for form in formats for name in result_names(task, form, named_range, parts))


def write_results(out: Path, manifest: Manifest, results: MergedResults, formats: Sequence[str]) -> tuple[Path, ...]:
    """Writes the result files of a run, and returns their paths."""
    config = manifest.config_yaml
    if manifest.settings.task == "proposals":
        return _write_proposals(out, manifest, results, formats)
    if manifest.settings.task == "classification":
        (path,) = result_paths(out, manifest, ("json",))
        write_classifications(path, results, class_names=[category.name for category in manifest.classes])
        return (path,)
    if "parquet" in formats:
        (path,) = result_paths(out, manifest, ("parquet",))
        write_parquet(path, results, manifest)
    if set(formats) == {"parquet"}:
        return result_paths(out, manifest, formats)
    with DetectionTable(
        results, num_classes=len(manifest.classes) + 1, order=manifest.class_order, folder=out
    ) as table:
        if "detectron" in formats:
            (path,) = result_paths(out, manifest, ("detectron",))
            write_detection_pickle(path, table, config_yaml=config)
        if "coco" in formats:
            _write_coco(result_paths(out, manifest, ("coco",)), manifest, table)
    return result_paths(out, manifest, formats)


def _write_proposals(out: Path, manifest: Manifest, results: MergedResults, formats: Sequence[str]) -> tuple[Path, ...]:
    paths = result_paths(out, manifest, formats)
    for form, path in zip(formats, paths, strict=True):
        if form == "detectron":
            write_proposal_pickle(path, results, config_yaml=manifest.config_yaml)
        elif form == "detectron2":
            write_detectron2_proposals(path, results)
        elif form == "mmdet":
            write_mmdet_proposals(path, results)
        else:
            write_parquet(path, results, manifest)
    return paths


def _write_coco(paths: Sequence[Path], manifest: Manifest, table: DetectionTable) -> None:
    """Writes the lists of boxes and of each part that the run has."""
    ids = [category.category_id for category in manifest.classes]
    boxes, *others = paths
    write_coco_boxes(boxes, table, category_ids=ids, plus_one=manifest.plus_one)
    for part, path in zip(manifest.parts, others, strict=True):
        if part == "masks":
            write_coco_masks(path, table, category_ids=ids)
        else:
            confidence = manifest.keypoint_confidence or "bbox"
            write_coco_keypoints(path, table, category_ids=ids, confidence=confidence)


def write_outputs(out: Path, manifest: Manifest, results: MergedResults, formats: Sequence[str]) -> tuple[Path, ...]:
    """Writes result files, failed.json and, last, a run.json that says that the run is finished and what these files hold.

    Returns the paths of the result files.
    """
    paths = write_results(out, manifest, results, formats)
    write_failures(out, results.failed, results.degraded)
    written = digest_files([*paths, out / FAILED_FILE])
    write_manifest(out, replace(manifest, finished=True, files={**manifest.files, **written}))
    return paths


def outputs_stand(out: Path, manifest: Manifest, paths: Sequence[Path]) -> bool:
    """Says whether `paths` and failed.json lie in `out` as the finished run of `manifest` left them."""
    wanted = [*paths, out / FAILED_FILE]
    found = digest_files(wanted)
    return manifest.finished and all(
        path.name in found and found[path.name] == manifest.files.get(path.name) for path in wanted
    )


def remove_stale_results(out: Path, before: Manifest, *, but: Sequence[Path]) -> None:
    """Removes the result files that `before` left and that the shards do not bear out any more, but for those about to be written."""
    written = {path.name for path in but} | {FAILED_FILE}
    for path in result_paths(out, before, FORMATS[before.settings.task]):
        if path.name in before.files and path.name not in written and path.exists():
            LOG.warning("%s: removed, shards have been computed anew since; ask for it again with --format", path)
            path.unlink()


def write_failures(out: Path, failed: Sequence[FailedImage], degraded: Sequence[FailedImage] = ()) -> None:
    """Writes failed.json: each image without a result and why, and each with the result of a picture that is not whole, by ascending id."""
    lists = {
        name: [{"image_id": image.image_id, "reason": image.reason} for image in images]
        for name, images in (("failed", failed), ("degraded", degraded))
    }
    write_json(out / FAILED_FILE, {"format_version": FORMAT_VERSION, **lists})


def merge_outputs(outs: Sequence[Path], out: Path, *, formats: Sequence[str] = ()) -> RunSummary:
    """Joins runs over ranges of one dataset into the files that one run over the whole would have left.

    Raises:
        UsageError: the runs are not of the same model, dataset and settings, or their ranges overlap or leave gaps.
        DataError: a run is not finished or damaged.
    """
    if not outs:
        raise UsageError("nothing to join: name the OUT folders of the runs")
    parts = sorted(((_read_finished(part), part) for part in outs), key=lambda pair: pair[0].settings.id_range)
    first = parts[0][0]
    for manifest, part in parts[1:]:
        others = [row for row in differing_settings(first.settings, manifest.settings) if row[0] != "id_range"]
        if others:
            listed = "\n".join(f"  {name}: {old} in {parts[0][1]}, {new} in {part}" for name, old, new in others)
            raise UsageError(f"runs with different settings cannot be joined:\n{listed}")
    _check_ranges(parts)
    formats = choose_formats(first.settings.task, formats)
    shards = [(manifest.settings.id_range[0], open_shards(part, manifest)) for manifest, part in parts]
    for shard in (one for _, opened in shards for one in opened):
        shard.check_taps()
    results = MergedResults(shards, images=first.dataset.total)
    settings = replace(first.settings, id_range=(0, first.dataset.total))
    joined = replace(
        first,
        identity=settings.identity,
        settings=settings,
        shard_sizes=(),
        named_range=None,
        files={},
        notes=tuple(f"joined from {part}" for _, part in parts),
    )
    out.mkdir(parents=True, exist_ok=True)
    with FolderLock(out):
        _check_free(out)
        link_taps(out, results.taps())
        paths = write_outputs(out, joined, results, formats)
    code = EXIT_SOME_FAILED if results.failed else EXIT_DONE
    return RunSummary(code, len(results), len(results.failed), paths, len(results.degraded))


def _check_free(out: Path) -> None:
    """Checks that joined results may be written to `out`: it has no run of its own."""
    before = read_manifest(out)
    if before is not None and not before.joined:
        raise UsageError(f"{out}: holds a run of its own; choose another folder for the joined results")


def _read_finished(out: Path) -> Manifest:
    manifest = read_manifest(out)
    if manifest is None:
        raise DataError(f"{out}: not an OUT folder of a run (it has no {RUN_FILE})")
    if manifest.joined:
        raise UsageError(
            f"{out}: this is already joined and has no shards to join again; name its parts instead "
            f"({'; '.join(manifest.notes) or 'not recorded'})"
        )
    if not manifest.finished:
        raise DataError(
            f"{out}: this run is not finished; start it again to finish it, `roiline status` says what is left"
        )
    return manifest


def open_shards(out: Path, manifest: Manifest) -> list[ShardFile]:
    """Opens all shards of a finished run and checks them.

    Raises:
        DataError: one is missing, damaged or foreign.
    """
    shards = []
    for index in range(len(manifest.shard_sizes)):
        shard = ShardFile(shard_path(out / SHARDS_FOLDER, index))
        shard.check()
        if shard.header.identity != manifest.identity:
            raise DataError(f"{shard.path}: belongs to another run")
        shards.append(shard)
    return shards


def _check_ranges(parts: Sequence[tuple[Manifest, Path]]) -> None:
    """Checks that ranges in ascending order cover the dataset without overlaps."""
    problems = []
    reached = 0
    total = parts[0][0].dataset.total
    for manifest, part in parts:
        start, end = manifest.settings.id_range
        if start > reached:
            problems.append(f"images [{reached}, {start}) are in none of the runs")
        if start < reached:
            problems.append(f"images [{start}, {min(end, reached)}) of {part} are in an earlier run too")
        reached = max(reached, end)
    if reached < total:
        problems.append(f"images [{reached}, {total}) are in none of the runs")
    if problems:
        raise UsageError("the ranges do not make up the dataset:\n" + "\n".join(f"  {problem}" for problem in problems))
