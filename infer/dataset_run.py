"""One dataset of a run, made ready: its images, its plan, its settings, and which of its shards are done already."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from roiline.core.errors import DataError, UsageError
from roiline.core.files import remove_temporaries, sha256_of_file
from roiline.core.spec import ImageRules, ModelSpec
from roiline.core.structures import Float32, RoidbEntry
from roiline.engines.model_file import read_spec
from roiline.infer.datasets import describe_source, load_dataset, with_sizes
from roiline.infer.manifest import (
    FAILED_FILE,
    FORMAT_VERSION,
    RUN_FILE,
    SHARDS_FOLDER,
    TIMING_FILE,
    DatasetRecord,
    Manifest,
    ResultClass,
    RunSettings,
    check_same_run,
    describe_environment,
    read_manifest,
)
from roiline.infer.matching import match_classes
from roiline.infer.messages import ImageWork, ShardWork
from roiline.infer.outputs import result_paths
from roiline.infer.plan import Shape, Shard, plan_shards
from roiline.infer.preparation import network_size
from roiline.infer.proposal_formats import check_file_names
from roiline.infer.request import FORMATS, DataSource, RunRequest, spec_with_overrides
from roiline.infer.result_rows import Part
from roiline.infer.roidb import Dataset
from roiline.infer.run_proposals import check_companions, load_given_proposals
from roiline.infer.shards import BAD_SUFFIX, SUFFIX, TAPS_SUFFIX, ShardFile, find_done_shards, name_file, shard_path
from roiline.infer.taps import TAPS_FOLDER, check_tap_names, remove_taps
from roiline.ops.keypoint_decode import KeypointConfidence

LOG = logging.getLogger("roiline.run")


@dataclass(slots=True)
class DatasetRun:
    """Is one dataset of a run: its folder, its dataset with sizes, its manifest, its plan, and the shards that are done.

    `bad` are shard files that cannot be used, and why. `proposals` are what each entry is given where the model makes none.
    `before` is the manifest that the folder had, None for a new run. `worked`: this start has had shards to work on.
    """

    out: Path
    dataset: Dataset
    entries: tuple[RoidbEntry, ...]
    shapes: tuple[Shape, ...]
    manifest: Manifest
    before: Manifest | None
    shards: tuple[Shard, ...]
    done: dict[int, ShardFile]
    bad: dict[int, str]
    proposals: Sequence[Float32 | None] | None = None
    worked: bool = False

    @property
    def shards_left(self) -> list[Shard]:
        """Are the shards that are not on the disk."""
        return [shard for shard in self.shards if shard.index not in self.done]

    @property
    def images_done(self) -> int:
        """Is the number of images of the shards on the disk."""
        return sum(len(self.shards[index].positions) for index in self.done)

    def shard_work(self, shard: Shard, key: int) -> ShardWork:
        """Returns the order for one shard, under the scheduler's number `key`."""
        images = []
        for position in shard.positions:
            entry = self.entries[position]
            size = (entry.height, entry.width) if entry.height > 0 and entry.width > 0 else None
            given = None if self.proposals is None else self.proposals[position]
            images.append(ImageWork(position, entry.image_id, str(entry.path), size, given))
        path = shard_path(self.out / SHARDS_FOLDER, shard.index)
        return ShardWork(key, shard.index, path, self.manifest.identity, tuple(images))


def resolve_exif(request: RunRequest, spec: ModelSpec) -> Literal["apply", "ignore"]:
    """Returns how pictures are read: as asked, else as the model's source reads them."""
    return spec.image_rules.exif if request.exif == "as-source" else request.exif


def load_datasets(request: RunRequest, spec: ModelSpec) -> list[tuple[Path, Dataset]]:
    """Loads every dataset of a request, with the folder that its outputs go to.

    Raises:
        UsageError: two datasets have one name, or OUT or a folder in it holds a run that is none of these.
        DataError: a dataset cannot be used.
    """
    names = request.class_names or (spec.class_names if spec.class_names_known else None)
    datasets = [
        load_dataset(
            data.source,
            images=data.images,
            split=data.split,
            limit=request.limit,
            id_range=request.id_range,
            class_names=names,
            exif=resolve_exif(request, spec),
        )
        for data in request.data
    ]
    if request.class_names is not None and spec.class_names_known and any(one.kind != "voc" for one in datasets):
        LOG.warning(
            "--classes is not used: the model has its own class names (a VOC root takes its classes' order from it)"
        )
    if len(datasets) == 1:
        _check_alone(request.out, [datasets[0].name], [request.out])
        return [(request.out, datasets[0])]
    twice = {one.name for one in datasets if sum(other.name == one.name for other in datasets) > 1}
    if twice:
        raise UsageError(
            f"several datasets are named {sorted(twice)}: their outputs would go to one folder; run them apart"
        )
    folders = [request.out / dataset.name for dataset in datasets]
    _check_alone(request.out, [dataset.name for dataset in datasets], folders)
    return list(zip(folders, datasets, strict=True))


def _check_alone(out: Path, names: Sequence[str], folders: Sequence[Path]) -> None:
    """Checks that no run over the same datasets lies where this one's would be taken for it: in OUT itself, or in a folder of their names.

    Raises:
        UsageError: one does.
    """
    others = [place for place in (out, *(out / name for name in names)) if (place / RUN_FILE).exists()]
    others = [place for place in others if place not in folders]
    if others:
        raise UsageError(
            f"{out}: another run lies there already ({', '.join(map(str, others))}); choose another folder"
        )


@dataclass(frozen=True, slots=True)
class ModelDigests:
    """Is the SHA-256 of every model file of a run."""

    model: str
    proposals_from: str | None
    others: tuple[str, ...]


def digest_models(request: RunRequest) -> ModelDigests:
    """Reads the model files of a request and returns their digests."""
    companions = request.companions
    return ModelDigests(
        sha256_of_file(request.model),
        None if companions.proposals_from is None else sha256_of_file(companions.proposals_from),
        tuple(sha256_of_file(other) for other in companions.others),
    )


def _list_companions(request: RunRequest) -> list[Path]:
    proposer = request.companions.proposals_from
    return [*request.companions.others, *([] if proposer is None else [proposer])]


def prepare_dataset_run(
    request: RunRequest,
    spec: ModelSpec,
    out: Path,
    dataset: Dataset,
    *,
    data: DataSource,
    engine: str,
    digests: ModelDigests,
) -> DatasetRun:
    """Plans one dataset and looks at what is done; writes nothing.

    Raises:
        UsageError: `out` holds a run with other settings (and `request.fresh` is not set).
        DataError: classes and categories do not fit, run.json is damaged, the proposal file does not fit the dataset, taps of an
            image cannot be named after its id, or a format cannot tell two pictures apart.
    """
    exif = resolve_exif(request, spec)
    rules = spec_with_overrides(spec, request.overrides).image_rules
    entries = with_sizes(dataset.entries, exif=exif)
    if any(one.taps for one in (spec, *map(read_spec, _list_companions(request)))):
        check_tap_names(entry.image_id for entry in entries)
    if "mmdet" in request.formats:
        check_file_names(name_file(entry.path) for entry in entries)
    shapes = tuple(_network_shape(entry, rules) for entry in entries)
    shards = plan_shards(shapes)
    settings = RunSettings(
        model_sha256=digests.model,
        engine=engine,
        precision=spec.precision,
        task=request.task,
        dataset=dataset.fingerprint,
        id_range=dataset.id_range,
        exif=exif,
        batch_mode=request.batch_mode,
        batch_size=request.batch_size if request.batch_mode == "padded" else None,
        overrides=request.overrides,
        proposals=None if data.proposals is None else sha256_of_file(data.proposals),
        proposals_from=digests.proposals_from,
        others=digests.others,
        max_pixels=request.max_pixels,
        truncated="accept" if request.truncated == "accept" else "skip",
    )
    classes, order = _result_classes(request, spec, dataset)
    parts, confidence = _result_parts(request, spec)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        identity=settings.identity,
        settings=settings,
        dataset=DatasetRecord(
            dataset.name, dataset.kind, describe_source(data.source), dataset.total, dataset.problems
        ),
        classes=classes,
        class_order=order,
        plus_one=spec.conventions.plus_one,
        config_yaml=spec.source.config_yaml,
        shard_sizes=tuple(len(shard.positions) for shard in shards),
        named_range=None if request.id_range is None else dataset.id_range,
        started_at=time.time(),
        finished=False,
        request=request_fields(request),
        environment=describe_environment(),
        parts=parts,
        keypoint_confidence=confidence,
    )
    before, done, bad = _find_done(request, out, manifest, shards)
    run = DatasetRun(out, dataset, entries, shapes, manifest, before, shards, done, bad)
    rule = check_companions(request, spec)
    if rule is not None and data.proposals is not None and run.shards_left:
        run.proposals = load_given_proposals(data.proposals, entries, rule)
    return run


def request_fields(request: RunRequest) -> dict[str, str | int | bool | None]:
    """Returns what stands under `request` in run.json: how the run was started, beyond what its settings say."""
    return {
        "model": str(request.model),
        "proposals_from": None if request.companions.proposals_from is None else str(request.companions.proposals_from),
        "with": ", ".join(map(str, request.companions.others)),
        "engine": request.engine,
        "batch_size": request.batch_size,
        "formats": ", ".join(request.formats),
        "devices": ", ".join(slot.label for slot in request.slots),
        "limit": request.limit,
        "fresh": request.fresh,
    }


def _network_shape(entry: RoidbEntry, rules: ImageRules) -> Shape:
    """Returns the padded shape of an image; (0, 0) where its size is not known, because its file cannot be read."""
    if entry.height <= 0 or entry.width <= 0:
        return (0, 0)
    size = network_size(entry.height, entry.width, rules)
    return (size.padded_height, size.padded_width)


def _result_classes(
    request: RunRequest, spec: ModelSpec, dataset: Dataset
) -> tuple[tuple[ResultClass, ...], tuple[int, ...]]:
    """Returns the results' classes, in the order of the dataset's categories, and the result's class of each class of the model.

    A classifier's are the model's own: its scores are of all classes, whatever categories a dataset has.
    """
    if request.task == "proposals":
        return (), (0,)
    if request.task == "classification":
        names = spec.class_names
        if request.class_names is not None and not spec.class_names_known:
            names = request.class_names
        if len(names) != len(spec.class_names):
            raise UsageError(
                f"--classes: the model has {len(spec.class_names)} classes beside the background, {len(names)} were named"
            )
        classes = tuple(ResultClass(number, name) for number, name in enumerate(names, 1))
        return classes, tuple(range(len(classes) + 1))
    if request.class_names is not None and not spec.class_names_known:
        spec = replace(spec, class_names=request.class_names, class_names_known=True)
    paired = match_classes(spec, dataset)
    if not dataset.categories:
        classes = tuple(ResultClass(i, name) for i, name in zip(paired.category_ids, paired.names, strict=True))
        return classes, tuple(range(len(classes) + 1))
    place = {category.id: number for number, category in enumerate(dataset.categories, 1)}
    classes = tuple(ResultClass(category.id, category.name) for category in dataset.categories)
    return classes, (0, *(place.get(category_id, 0) for category_id in paired.category_ids))


def _result_parts(request: RunRequest, spec: ModelSpec) -> tuple[tuple[Part, ...], KeypointConfidence | None]:
    """Returns what the models' detections have beside boxes, and how keypoints are scored: as the last model that makes any has it."""
    if request.task != "detections":
        return (), None
    specs = [spec, *map(read_spec, request.companions.others)]
    keypoints = [one.keypoints for one in specs if one.keypoints is not None]
    parts: list[Part] = ["masks"] if any(one.masks is not None for one in specs) else []
    return (*parts, "keypoints") if keypoints else tuple(parts), keypoints[-1].confidence if keypoints else None


def _find_done(
    request: RunRequest, out: Path, manifest: Manifest, shards: Sequence[Shard]
) -> tuple[Manifest | None, dict[int, ShardFile], dict[int, str]]:
    folder = out / SHARDS_FOLDER
    if request.fresh:
        return None, {}, {}
    before = read_manifest(out)
    if before is None:
        if any(folder.glob(f"*{SUFFIX}")):
            raise DataError(f"{out}: has shards but no {RUN_FILE} that says whose they are; start over with --fresh")
        return None, {}, {}
    check_same_run(out, before.settings, manifest.settings)
    done, bad = find_done_shards(folder, [shard.positions for shard in shards], identity=manifest.identity)
    return before, done, bad


def clear_outputs(out: Path, manifest: Manifest) -> None:
    """Removes what an earlier run left in `out`: shards, result files and records; files that are not ours stay."""
    folder = out / SHARDS_FOLDER
    for path in [*folder.glob(f"*{SUFFIX}"), *folder.glob(f"*{SUFFIX}{BAD_SUFFIX}")]:
        path.unlink()
    remove_taps([out / TAPS_FOLDER, *folder.glob(f"*{TAPS_SUFFIX}")])
    manifests = [manifest]
    try:
        before = read_manifest(out)
    except DataError:
        before = None  # a damaged record is what starting over is for
    if before is not None:
        manifests.append(before)
    for known in manifests:
        for path in result_paths(out, known, FORMATS[known.settings.task]):
            path.unlink(missing_ok=True)
    for name in (RUN_FILE, FAILED_FILE, TIMING_FILE):
        (out / name).unlink(missing_ok=True)
    if folder.is_dir():
        remove_temporaries(folder)
