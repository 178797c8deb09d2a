"""The same in Python: a model opened for single pictures, and the dataset run behind the commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, overload

import numpy as np

from roiline.core.errors import UsageError
from roiline.core.spec import ModelSpec, Task
from roiline.core.structures import Classification, Detections, Float32, ImageId, Proposals, Result, UInt8
from roiline.engines.model_file import read_spec
from roiline.engines.protocol import Device
from roiline.infer.cluster import choose_cluster_slots
from roiline.infer.devices import choose_slots, device_from_text
from roiline.infer.feeds import batch_from_picture
from roiline.infer.folders import has_wildcards
from roiline.infer.model import open_predictor
from roiline.infer.pictures import MAX_PIXELS, PICTURE_SUFFIXES, TruncatedPolicy, is_picture_file
from roiline.infer.predictor import Predictor
from roiline.infer.request import (
    IMAGE_TIMEOUT_S,
    BatchMode,
    Companions,
    DataSource,
    ExifPolicy,
    RunOverrides,
    RunRequest,
    RunSummary,
)
from roiline.infer.run import run_dataset


class OpenedModel:
    """Answers pictures one by one with an engine that stays open; `spec` is the model's specification."""

    def __init__(self, path: Path, device: Device, engine: str) -> None:
        self.spec: ModelSpec = read_spec(path)
        self._path, self._device, self._engine = path, device, engine
        self._predictors: dict[Task, Predictor] = {}
        self._predictor(self.spec.tasks[-1])

    @overload
    def detect(self, images: UInt8, proposals: Float32 | None = None) -> Detections: ...

    @overload
    def detect(self, images: Sequence[UInt8], proposals: Sequence[Float32] | None = None) -> list[Detections]: ...

    def detect(
        self, images: UInt8 | Sequence[UInt8], proposals: Float32 | Sequence[Float32] | None = None
    ) -> Detections | list[Detections]:
        """Returns the detections of a BGR picture (H, W, 3) uint8, or of each picture of a list.

        `proposals` (R, 4) float32 boxes in original pixels, or such an array for each picture, are for a model that makes none itself.

        Raises:
            UsageError: the model makes no detections, a picture is of another form, or proposals are missing or not wanted.
        """
        answer: Detections | list[Detections] = self._answer("detections", images, proposals)
        return answer

    @overload
    def propose(self, images: UInt8) -> Proposals: ...

    @overload
    def propose(self, images: Sequence[UInt8]) -> list[Proposals]: ...

    def propose(self, images: UInt8 | Sequence[UInt8]) -> Proposals | list[Proposals]:
        """Returns the proposals of a BGR picture (H, W, 3) uint8, or of each picture of a list.

        Raises:
            UsageError: the model makes no proposals, or a picture is of another form.
        """
        answer: Proposals | list[Proposals] = self._answer("proposals", images, None)
        return answer

    @overload
    def classify(self, images: UInt8) -> Classification: ...

    @overload
    def classify(self, images: Sequence[UInt8]) -> list[Classification]: ...

    def classify(self, images: UInt8 | Sequence[UInt8]) -> Classification | list[Classification]:
        """Returns the class scores of a BGR picture (H, W, 3) uint8, or of each picture of a list.

        Raises:
            UsageError: the model classifies no pictures, or a picture is of another form.
        """
        answer: Classification | list[Classification] = self._answer("classification", images, None)
        return answer

    def close(self) -> None:
        """Gives the engine back."""
        while self._predictors:
            self._predictors.popitem()[1].close()

    def __enter__(self) -> OpenedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(
        self, task: Task, images: UInt8 | Sequence[UInt8] | None, proposals: Float32 | Sequence[Float32] | None
    ) -> Any:
        if images is None:
            raise UsageError("got None for a picture: cv2.imread gives that where it finds none that it can read")
        if isinstance(images, np.ndarray):
            given = None if proposals is None else np.asarray(proposals)
            return self._answer_one(task, images, 0, given)
        every = [None] * len(images) if proposals is None else list(proposals)
        if len(every) != len(images):
            raise UsageError(f"expected proposals for each of {len(images)} pictures, got them for {len(every)}")
        return [self._answer_one(task, image, index, every[index]) for index, image in enumerate(images)]

    def _answer_one(self, task: Task, image: UInt8, image_id: ImageId, proposals: Float32 | None) -> Result:
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            got = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
            raise UsageError(f"a picture is a BGR array (H, W, 3) of uint8, as cv2.imread gives it; got {got}")
        if (proposals is not None) != (self.spec.given_proposals is not None):
            raise UsageError(
                "this model makes its own proposals; it takes none from outside"
                if proposals is not None
                else "this model makes no proposals of its own: give them as `proposals`"
            )
        given = [] if proposals is None else [_check_proposals(proposals)]
        return self._predictor(task).run(batch_from_picture(image, self.spec.image_rules, image_id, given))[0]

    def _predictor(self, task: Task) -> Predictor:
        if task not in self._predictors:
            self._predictors[task] = open_predictor(self._path, task, self._device, engine=self._engine)
        return self._predictors[task]


def _check_proposals(proposals: Float32) -> Float32:
    if not isinstance(proposals, np.ndarray) or proposals.ndim != 2 or proposals.shape[1] != 4:
        got = f"{proposals.dtype} {proposals.shape}" if isinstance(proposals, np.ndarray) else type(proposals).__name__
        raise UsageError(f"proposals of a picture are an array (R, 4) of float32 boxes in its pixels; got {got}")
    return proposals.astype(np.float32, copy=False)


def open_model(path: str | Path, *, device: str = "cpu", engine: str = "auto") -> OpenedModel:
    """Opens a model file on `cpu` or `cuda:N`.

    Raises:
        UsageError: the device or the engine has no such name.
        ModelError: the file is no model of ours.
        EngineError: the engine or the device is not there.
    """
    return OpenedModel(Path(path), device_from_text(device), engine)


def run(
    model: str | Path,
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    task: Task = "detections",
    images: Sequence[str | Path] = (),
    splits: Sequence[str] = (),
    gpus: str | None = None,
    cpu_workers: int | None = None,
    cluster: str | None = None,
    engine: str = "auto",
    batch_size: int = 1,
    batch_mode: BatchMode = "exact",
    exif: ExifPolicy = "as-source",
    max_pixels: int = MAX_PIXELS,
    truncated: TruncatedPolicy = "skip",
    overrides: RunOverrides | None = None,
    formats: Sequence[str] = (),
    id_range: tuple[int, int] | None = None,
    limit: int | None = None,
    class_names: Sequence[str] | None = None,
    fresh: bool = False,
    image_timeout_s: float = IMAGE_TIMEOUT_S,
    proposals: Sequence[str | Path] = (),
    proposals_from: str | Path | None = None,
    others: Sequence[str | Path] = (),
    progress: bool = False,
) -> RunSummary:
    """Runs a model over datasets, one process a device, as `roiline proposals` and `roiline detect` do.

    `proposals` are proposal files, paired with the datasets by order, and `proposals_from` is a model that makes them, for models that make
    none themselves; `others` are models whose answers are combined with those of the first. `cluster` is `auto`, `local` or the address
    of a Ray cluster that the workers are to run on; the process stays connected with it.

    Raises:
        RoilineError: as the commands; see the errors' own descriptions.
    """
    return run_dataset(
        request_from_options(
            model,
            data,
            out,
            task=task,
            images=images,
            splits=splits,
            gpus=gpus,
            cpu_workers=cpu_workers,
            cluster=cluster,
            engine=engine,
            batch_size=batch_size,
            batch_mode=batch_mode,
            exif=exif,
            max_pixels=max_pixels,
            truncated=truncated,
            overrides=overrides or RunOverrides(),
            formats=tuple(formats),
            id_range=id_range,
            limit=limit,
            class_names=None if class_names is None else tuple(class_names),
            fresh=fresh,
            image_timeout_s=image_timeout_s,
            proposals=proposals,
            proposals_from=proposals_from,
            others=others,
        ),
        progress=progress,
    )


def request_from_options(
    model: str | Path,
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    images: Sequence[str | Path] = (),
    splits: Sequence[str] = (),
    proposals: Sequence[str | Path] = (),
    proposals_from: str | Path | None = None,
    others: Sequence[str | Path] = (),
    gpus: str | None = None,
    cpu_workers: int | None = None,
    cluster: str | None = None,
    **fields: Any,
) -> RunRequest:
    """Returns the request that options as people give them describe.

    Raises:
        UsageError: more picture folders, splits or proposal files than datasets, or devices that cannot be meant.
        EngineError: GPUs are asked and there is no driver.
    """
    return RunRequest(
        model=Path(model),
        data=pair_sources([data] if isinstance(data, (str, Path)) else data, images, splits, proposals),
        out=Path(out),
        slots=choose_slots(gpus, cpu_workers) if cluster is None else choose_cluster_slots(cluster, gpus, cpu_workers),
        cluster=cluster,
        companions=Companions(
            None if proposals_from is None else Path(proposals_from), tuple(Path(other) for other in others)
        ),
        **fields,
    )


def pair_sources(
    data: Sequence[str | Path],
    images: Sequence[str | Path],
    splits: Sequence[str],
    proposals: Sequence[str | Path] = (),
) -> tuple[DataSource, ...]:
    """Returns the datasets with the picture folders, splits and proposal files that belong to them, paired by order.

    Pictures that are named one by one are one dataset, at the place of the first. Where some
    datasets are COCO jsons and others are not, picture folders go to the jsons and splits to the others.

    Raises:
        UsageError: more picture folders, splits or proposal files than datasets that take them.
    """
    sources = _join_pictures(data)
    jsons = [index for index, source in enumerate(sources) if str(source).endswith(".json")]
    others = [index for index in range(len(sources)) if index not in jsons]
    folders = _pair("--images", images, jsons if others and jsons else range(len(sources)))
    names = _pair("--split", splits, others if others and jsons else range(len(sources)))
    files = _pair("--proposals", proposals, range(len(sources)))
    return tuple(
        DataSource(
            source,
            Path(folders[index]) if index in folders else None,
            None if index not in names else str(names[index]),
            Path(files[index]) if index in files else None,
        )
        for index, source in enumerate(sources)
    )


def _join_pictures(data: Sequence[str | Path]) -> list[str | tuple[str, ...]]:
    """Returns the datasets with all single pictures, where they are several, put together."""
    pictures = tuple(str(source) for source in data if _names_picture(Path(source)))
    if len(pictures) < 2:
        return [str(source) for source in data]
    joined: list[str | tuple[str, ...]] = []
    for source in data:
        if not _names_picture(Path(source)):
            joined.append(str(source))
        elif pictures not in joined:
            joined.append(pictures)
    return joined


def _names_picture(path: Path) -> bool:
    """Says whether a path names one picture, there or not."""
    if path.is_file():
        return is_picture_file(path)
    return not path.exists() and path.suffix.lower() in PICTURE_SUFFIXES and not has_wildcards(str(path))


def _pair(option: str, values: Sequence[str | Path], places: Sequence[int]) -> dict[int, str | Path]:
    if len(values) > len(places):
        raise UsageError(f"{option} is given {len(values)} times for {len(places)} datasets that take it")
    return dict(zip(places, values, strict=False))
