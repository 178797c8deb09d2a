"""The same in Python: a model opened for single pictures, and the dataset run behind the commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, overload

import numpy as np

from roiline.core.errors import UsageError
from roiline.core.spec import ModelSpec, Task
from roiline.core.structures import Detections, ImageId, Proposals, UInt8
from roiline.engines.model_file import read_spec
from roiline.engines.protocol import Device
from roiline.infer.devices import choose_slots
from roiline.infer.model import Predictor, open_predictor
from roiline.infer.preparation import prepare_picture, stack_batch
from roiline.infer.request import BatchMode, DataSource, ExifPolicy, RunOverrides, RunRequest, RunSummary
from roiline.infer.run import run_dataset


class OpenedModel:
    """Answers pictures one by one with an engine that stays open; `spec` is the model's specification."""

    def __init__(self, path: Path, device: Device, engine: str) -> None:
        self.spec: ModelSpec = read_spec(path)
        self._path, self._device, self._engine = path, device, engine
        self._predictors: dict[Task, Predictor] = {}
        self._predictor(self.spec.tasks[-1])

    @overload
    def detect(self, images: UInt8) -> Detections: ...

    @overload
    def detect(self, images: Sequence[UInt8]) -> list[Detections]: ...

    def detect(self, images: UInt8 | Sequence[UInt8]) -> Detections | list[Detections]:
        """Returns the detections of a BGR picture (H, W, 3) uint8, or of each picture of a list.

        Raises:
            UsageError: the model makes no detections, or a picture is of another form.
        """
        answer: Detections | list[Detections] = self._answer("detections", images)
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
        answer: Proposals | list[Proposals] = self._answer("proposals", images)
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

    def _answer(self, task: Task, images: UInt8 | Sequence[UInt8]) -> Any:
        if isinstance(images, np.ndarray):
            return self._answer_one(task, images, 0)
        return [self._answer_one(task, image, index) for index, image in enumerate(images)]

    def _answer_one(self, task: Task, image: UInt8, image_id: ImageId) -> Proposals | Detections:
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            got = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
            raise UsageError(f"a picture is a BGR array (H, W, 3) of uint8, as cv2.imread gives it; got {got}")
        batch = stack_batch([prepare_picture(image, self.spec.images)], [image_id])
        return self._predictor(task).run(batch)[0]

    def _predictor(self, task: Task) -> Predictor:
        if task not in self._predictors:
            self._predictors[task] = open_predictor(self._path, task, self._device, engine=self._engine)
        return self._predictors[task]


def open_model(path: str | Path, *, device: str = "cpu", engine: str = "auto") -> OpenedModel:
    """Opens a model file on `cpu` or `cuda:N`.

    Raises:
        UsageError: the device or the engine has no such name.
        ModelError: the file is no model of ours.
        EngineError: the engine or the device is not there.
    """
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise UsageError(f"device {device!r}: expected cpu, cuda or cuda:N")
    return OpenedModel(Path(path), Device(kind, int(index or 0)), engine)


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
    engine: str = "auto",
    batch_size: int = 1,
    batch_mode: BatchMode = "exact",
    exif: ExifPolicy = "as-source",
    overrides: RunOverrides | None = None,
    formats: Sequence[str] = (),
    id_range: tuple[int, int] | None = None,
    limit: int | None = None,
    class_names: Sequence[str] | None = None,
    fresh: bool = False,
    progress: bool = False,
) -> RunSummary:
    """Runs a model over datasets, one process a device, as `roiline proposals` and `roiline detect` do.

    Workers are spawned: a script that calls this guards its main part with `if __name__ == "__main__"`.

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
            engine=engine,
            batch_size=batch_size,
            batch_mode=batch_mode,
            exif=exif,
            overrides=overrides or RunOverrides(),
            formats=tuple(formats),
            id_range=id_range,
            limit=limit,
            class_names=None if class_names is None else tuple(class_names),
            fresh=fresh,
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
    gpus: str | None = None,
    cpu_workers: int | None = None,
    **fields: Any,
) -> RunRequest:
    """Returns the request that options as people give them describe.

    Raises:
        UsageError: more picture folders or splits than datasets, or devices that cannot be meant.
        EngineError: GPUs are asked and there is no driver.
    """
    return RunRequest(
        model=Path(model),
        data=pair_sources([data] if isinstance(data, (str, Path)) else data, images, splits),
        out=Path(out),
        slots=choose_slots(gpus, cpu_workers),
        **fields,
    )


def pair_sources(
    data: Sequence[str | Path], images: Sequence[str | Path], splits: Sequence[str]
) -> tuple[DataSource, ...]:
    """Returns the datasets with the picture folders and splits that belong to them, paired by order.

    Raises:
        UsageError: more picture folders or splits than datasets.
    """
    for option, values in (("--images", images), ("--split", splits)):
        if len(values) > len(data):
            raise UsageError(f"{option} is given {len(values)} times for {len(data)} datasets")
    folders = [Path(folder) for folder in images] + [None] * (len(data) - len(images))
    names = [*splits, *[None] * (len(data) - len(splits))]
    return tuple(
        DataSource(str(source), folder, split) for source, folder, split in zip(data, folders, names, strict=True)
    )
