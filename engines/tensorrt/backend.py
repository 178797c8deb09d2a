"""A built TensorRT engine as a backend: the right profile for a batch, two batches in flight, and the answers without padding.

The driver and the device are asked before any object of TensorRT's is made; then the passport beside the engine is held against the file
and this machine. Answers are what ONNX Runtime gives for the same model: rows beyond a count and pictures beyond the batch are cut away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from roiline.core.errors import EngineError, ModelError, UsageError
from roiline.engines.cuda.driver import open_driver
from roiline.engines.cuda.resources import CudaContext
from roiline.engines.protocol import Device, PictureCall, Stage, Tensor, TensorInfo
from roiline.engines.tensorrt.lanes import NOTHING_MADE, Lane, MadeInput, Shape
from roiline.engines.tensorrt.loading import load_tensorrt
from roiline.engines.tensorrt.passport import (
    Passport,
    check_engine_file,
    check_machine,
    describe_machine,
    read_passport,
)
from roiline.engines.tensorrt.pictures import PictureStage
from roiline.engines.tensorrt.profiles import Profile
from roiline.engines.tensorrt.runtime import EngineTensor, load_engine, read_tensors
from roiline.engines.tensorrt.trimming import OutputTrim, trim_outputs
from roiline.ops.kernel_build import compile_ptx, find_device_compiler

DEPTH = 2
"""Batches in flight: one that is computed while another is copied."""


@dataclass(frozen=True, slots=True)
class ShapeRange:
    """Is the shapes that a profile takes for one input, between `least` and `most` on every axis."""

    least: Shape
    most: Shape

    def fits(self, shape: Shape) -> bool:
        """Says whether the shape lies in the range."""
        return len(shape) == len(self.least) and all(
            low <= size <= high for low, size, high in zip(self.least, shape, self.most, strict=True)
        )


@dataclass(frozen=True, slots=True)
class PlanLayout:
    """Is what the backend must know of an engine beside the file itself.

    `inputs` and `outputs` are the model's own. `profiles` give the range of every input, in TensorRT's order. `pictures` are the inputs
    with a row a picture. `trims` take the padding away. `usual_hw` is the size of the network's input that the engine was tuned for.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    profiles: tuple[Mapping[str, ShapeRange], ...]
    pictures: tuple[str, ...]
    trims: tuple[OutputTrim, ...]
    usual_hw: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class _Flight:
    """Is one batch in flight: its lane, its number, and how many pictures it really has."""

    lane: int
    number: int
    images: int


class TensorRtBackend:
    """Runs an engine; it owns the CUDA context that it is given, and keeps TensorRT's runtime, which must outlive the engine."""

    depth = DEPTH

    def __init__(
        self,
        trt: Any,
        runtime: Any,
        engine: Any,
        context: CudaContext,
        layout: PlanLayout,
        tensors: Sequence[EngineTensor],
        description: Mapping[str, str],
        *,
        record: bool = True,
    ) -> None:
        self.inputs = layout.inputs
        self.outputs = layout.outputs
        self.usual_hw = layout.usual_hw
        self._layout = layout
        self._context = context
        self._runtime: Any = runtime
        self._engine: Any = engine
        record = record and context.driver.has_graphs
        largest = [{name: bounds.most for name, bounds in profile.items()} for profile in layout.profiles]
        self._lanes = [Lane(trt, engine, context, tensors, largest, record=record) for _ in range(DEPTH)]
        self._submitted = 0
        self._collected = 0
        self.description: Mapping[str, str] = {
            **description,
            "cuda_binding": context.driver.name,
            "graphs": "for shapes that come again" if record else "none",
            "in_flight": str(DEPTH),
        }

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Runs one batch."""
        return self.collect(self.submit(feeds))

    def submit(self, feeds: Mapping[str, Tensor]) -> object:
        """Starts a batch.

        Raises:
            EngineError: no profile takes its shapes, too many batches are in flight, or the engine cannot be started.
        """
        profile, rows = fit_profile(self._layout, {name: tuple(array.shape) for name, array in feeds.items()})
        images = len(feeds[self._layout.pictures[0]])
        return self._start(images, profile, self._fill(feeds, rows))

    def _start(
        self, images: int, profile: int, feeds: Mapping[str, Tensor], made: Mapping[str, MadeInput] = NOTHING_MADE
    ) -> object:
        number = self._submitted
        lane = self._free_lane()
        self._context.make_current()
        lane.start(profile, feeds, made)
        self._submitted += 1
        return _Flight(number % DEPTH, number, images)

    def _free_lane(self) -> Lane:
        """Returns the lane whose turn it is.

        Raises:
            EngineError: it has a batch in flight.
        """
        lane = self._lanes[self._submitted % DEPTH]
        if lane.busy:
            raise EngineError(f"{DEPTH} batches are in flight already; collect one before another is submitted")
        return lane

    def _fill(self, feeds: Mapping[str, Tensor], rows: int) -> dict[str, Tensor]:
        """Repeats the last picture's rows until there are `rows`."""
        return {
            name: _repeat_last(array, rows) if name in self._layout.pictures else array for name, array in feeds.items()
        }

    def collect(self, pending: object) -> dict[str, Tensor]:
        """Waits for the batch that was submitted first of those in flight.

        Raises:
            UsageError: another one is asked for.
            EngineError: the engine failed, or counts more rows than there are.
        """
        if not isinstance(pending, _Flight) or pending.number != self._collected:
            raise UsageError("batches in flight are collected in the order in which they were submitted")
        self._context.make_current()
        outputs = self._lanes[pending.lane].finish()
        self._collected += 1
        trimmed = trim_outputs(outputs, self._layout.trims, pending.images)
        return {info.name: np.array(trimmed[info.name]) for info in self.outputs}

    def close(self) -> None:
        """Gives the lanes, the engine and the context back, in this order."""
        self._context.make_current()
        for lane in self._lanes:
            lane.close()
        self._lanes.clear()
        self._engine = None
        self._runtime = None
        self._context.close()


class PictureTensorRtBackend(TensorRtBackend):
    """Makes the network's input of pictures on the GPU; a stage for each lane holds the bytes of its batch."""

    def __init__(self, stages: Sequence[PictureStage], *opened: Any) -> None:
        super().__init__(*opened)
        self._stages = stages
        self.description = {**self.description, "pictures": "prepared on the GPU"}

    def submit_pictures(
        self, pictures: Sequence[PictureCall], size_hw: tuple[int, int], feeds: Mapping[str, Tensor]
    ) -> object:
        """Starts a batch of pictures.

        Raises:
            EngineError: no profile takes its shapes, too many batches are in flight, or the engine cannot be started.
        """
        shapes: dict[str, Shape] = {name: tuple(array.shape) for name, array in feeds.items()}
        shapes["data"] = (len(pictures), 3, *size_hw)
        profile, rows = fit_profile(self._layout, shapes)
        filled = [*pictures, *([pictures[-1]] * (rows - len(pictures)))]
        self._free_lane()  # its stage may only be written to then
        stage = self._stages[self._submitted % DEPTH]
        made = MadeInput(
            (len(filled), *shapes["data"][1:]),
            lambda address, stream: stage.prepare(filled, size_hw, address, stream),
        )
        return self._start(len(pictures), profile, self._fill(feeds, rows), {"data": made})


def fit_profile(layout: PlanLayout, shapes: Mapping[str, Shape]) -> tuple[int, int]:
    """Returns the first profile that takes inputs of these shapes, and how many pictures it wants at least.

    Raises:
        EngineError: no profile does; the shapes that the engine was built for are listed.
    """
    for number, profile in enumerate(layout.profiles):
        least = max(profile[name].least[0] for name in layout.pictures)
        wanted = {
            name: (max(shape[0], least), *shape[1:]) if name in layout.pictures and shape[0] else shape
            for name, shape in shapes.items()
        }
        if all(bounds.fits(wanted[name]) for name, bounds in profile.items()):
            return number, least
    asked = ", ".join(f"{name} {shapes[name]}" for name in layout.pictures[:1])
    built = "; ".join(
        f"{' x '.join(map(str, bounds.least))} to {' x '.join(map(str, bounds.most))}"
        for profile in layout.profiles
        for bounds in [profile[layout.pictures[0]]]
    )
    raise EngineError(
        f"the engine was not built for {asked}; it takes {built}. Build it for the dataset (`roiline build --for DATA`), or use another "
        "--batch-size"
    )


def _repeat_last(tensor: Tensor, rows: int) -> Tensor:
    missing = rows - len(tensor)
    return tensor if missing <= 0 else np.concatenate([tensor, np.repeat(tensor[-1:], missing, axis=0)])


def layout_from_passport(passport: Passport, stage: Stage | None, *, where: str) -> PlanLayout:
    """Returns the layout of an engine, with the outputs of a stage where one is asked for.

    Raises:
        UsageError: the stage is more than some of the engine's outputs: a built engine cannot be cut.
    """
    outputs = {info.name: info for info in passport.outputs}
    wanted = tuple(outputs) if stage is None else stage.outputs
    missing = [name for name in wanted if name not in outputs]
    if missing or (stage is not None and stage.inputs):
        raise UsageError(
            f"{where}: a built engine is whole and gives {', '.join(outputs)}; this run needs the model cut (at "
            f"{', '.join(missing or (stage.inputs if stage else ()))}): thresholds, test options and other tasks need the .onnx file"
        )
    names = [info.name for info in passport.inputs]
    return PlanLayout(
        inputs=passport.inputs,
        outputs=tuple(outputs[name] for name in wanted),
        profiles=tuple(
            {name: ShapeRange(least, most) for name, (least, _, most) in profile.shapes.items()}
            for profile in passport.profiles
        ),
        pictures=tuple(name for name in names if name in passport.spec.seams.get("images", names)),
        trims=passport.trims,
        usual_hw=_usual_hw(passport.profiles),
    )


def _usual_hw(profiles: Sequence[Profile]) -> tuple[int, int] | None:
    """Returns the height and width of the pictures that the first profile is tuned for; None for a model without `data`."""
    if "data" not in profiles[0].shapes:
        return None
    _, usual, _ = profiles[0].shapes["data"]
    return usual[-2], usual[-1]


def open_backend(path: Path, stage: Stage | None, device: Device) -> TensorRtBackend:
    """Opens a built engine on a GPU.

    Raises:
        UsageError: the device is not there, or a cut of the model is asked for.
        EngineError: the device is the CPU, there is no driver, no TensorRT 11, or the engine was built for another machine.
        ModelError: the engine or its passport is damaged or missing.
    """
    if device.kind != "cuda":
        raise EngineError(f"{path}: a TensorRT engine runs on an NVIDIA GPU, not on the CPU; choose one with --gpus")
    context = CudaContext(open_driver(), device.index)
    try:
        return TensorRtBackend(*_open_on(path, stage, context))
    except BaseException:
        context.close()
        raise


def open_picture_backend(path: Path, stage: Stage | None, device: Device) -> PictureTensorRtBackend:
    """Opens a built engine that prepares pictures on its GPU.

    Raises:
        UsageError: as for `open_backend`, or the model's pictures are prepared in a way that has no kernel.
        EngineError: as for `open_backend`, or there is no compiler for the kernel.
        ModelError: as for `open_backend`.
    """
    if device.kind != "cuda":
        raise EngineError(f"{path}: a TensorRT engine runs on an NVIDIA GPU, not on the CPU; choose one with --gpus")
    context = CudaContext(open_driver(), device.index)
    try:
        opened = _open_on(path, stage, context)
        compiler = find_device_compiler()
        stages = [PictureStage(context, lambda source: compile_ptx(source, compiler=compiler)) for _ in range(DEPTH)]
        return PictureTensorRtBackend(stages, *opened)
    except BaseException:
        context.close()
        raise


_Opened: TypeAlias = tuple[Any, Any, Any, CudaContext, PlanLayout, Sequence[EngineTensor], Mapping[str, str]]


def _open_on(path: Path, stage: Stage | None, context: CudaContext) -> _Opened:
    """Returns what a backend is made of."""
    trt = load_tensorrt()
    passport = read_passport(path)
    check_engine_file(path, passport)
    machine = describe_machine(context.driver, context.properties.index, str(trt.__version__))
    check_machine(passport, machine, where=str(path))
    layout = layout_from_passport(passport, stage, where=str(path))
    runtime, engine = load_engine(trt, path.read_bytes(), where=str(path), host_code=passport.version_compatible)
    tensors = read_tensors(trt, engine, where=str(path))
    _check_tensors(layout, tensors, where=str(path))
    description = {
        "engine": "tensorrt",
        "version": str(trt.__version__),
        "device": context.properties.name,
        "precision": passport.spec.precision,
        "profiles": str(len(layout.profiles)),
    }
    return trt, runtime, engine, context, layout, tensors, description


def _check_tensors(layout: PlanLayout, tensors: Sequence[EngineTensor], *, where: str) -> None:
    """Checks that the engine has the inputs and outputs that its passport says, of the types that it says.

    Raises:
        ModelError: it has not.
    """
    known = {tensor.name: tensor for tensor in tensors}
    for info, is_input in [*((info, True) for info in layout.inputs), *((info, False) for info in layout.outputs)]:
        tensor = known.get(info.name)
        if tensor is None or tensor.is_input != is_input or tensor.dtype != np.dtype(info.dtype):
            got = (
                "is not there" if tensor is None else f"is {tensor.dtype} ({'input' if tensor.is_input else 'output'})"
            )
            kind = "input" if is_input else "output"
            raise ModelError(f"{where}: its passport says {kind} `{info.name}` of {info.dtype}; in the engine it {got}")
    extra = {tensor.name for tensor in tensors if tensor.is_input} - {info.name for info in layout.inputs}
    if extra:
        raise ModelError(f"{where}: the engine has inputs that its passport does not name: {', '.join(sorted(extra))}")
