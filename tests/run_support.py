"""What tests of dataset runs share: small picture sets, model files without a network, requests, and predictors that misbehave.

Workers import this module too, by the name that `RunRequest.predictor` gives.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
from onnx import TensorProto, helper

from roiline.core.errors import EngineError, ModelError
from roiline.core.spec import METADATA_KEY, Conventions, DetectionRules, ImageRules, ModelSpec, Source
from roiline.engines.protocol import Device
from roiline.infer.model import open_predictor
from roiline.infer.predictor import Predictor
from roiline.infer.preparation import leave_unprepared, prepare_picture, stack_batch
from roiline.infer.request import DataSource, RunRequest, Slot

SHAPES = ((40, 60), (60, 40), (48, 48))
CLASSES = ("cat", "dog", "fox")


def make_spec(**changes: Any) -> ModelSpec:
    """A small specification: shorter side 32, padded to multiples of 16."""
    spec = ModelSpec(
        architecture="test",
        tasks=("proposals", "detections"),
        class_names=CLASSES,
        class_names_known=True,
        conventions=Conventions("detectron", True, True, False, 4.135),
        images=ImageRules("BGR", (102.9801, 115.9465, 122.7717), (1.0, 1.0, 1.0), 32, 64, "detectron", 16, "apply"),
        detection=DetectionRules(0.05, 0.5, 100, False, (10.0, 10.0, 5.0, 5.0)),
        seams={
            "images": ("data", "im_info", "im_size"),
            "proposals": ("rpn_boxes", "rpn_scores", "rpn_count"),
            "detections": ("boxes", "scores", "classes", "count"),
        },
        source=Source("test", "0" * 64, "MODEL:\n  NUM_CLASSES: 4\n"),
    )
    return replace(spec, **changes)


def write_model(path: Path, spec: ModelSpec | None = None) -> Path:
    """Writes an ONNX file that carries a specification and no network."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [value], [replace_name(value, "y")])
    model = helper.make_model(graph)
    helper.set_model_props(model, {METADATA_KEY: (spec or make_spec()).to_json()})
    onnx.save(model, path)
    return path


def replace_name(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    copy.name = name
    return copy


def write_pictures(folder: Path, count: int, *, ids: Sequence[int] | None = None) -> Path:
    """Writes `count` noisy PNGs of three shapes and a COCO json beside them, images shuffled; returns the json's path."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(5)
    images = []
    for number, image_id in enumerate(ids or [3 * i + 7 for i in range(count)]):
        height, width = SHAPES[number % len(SHAPES)]
        name = f"{image_id:06d}.png"
        cv2.imwrite(str(folder / name), random.integers(0, 256, (height, width, 3), np.uint8))
        images.append({"id": image_id, "file_name": name, "height": height, "width": width})
    categories = [{"id": 10 * (i + 1), "name": name} for i, name in enumerate(CLASSES)]
    random.shuffle(images)
    path = folder / "data.json"
    path.write_text(json.dumps({"images": images, "categories": categories, "annotations": []}))
    return path


def make_request(root: Path, out: Path, *, workers: int = 1, **changes: Any) -> RunRequest:
    """A request over `root/pictures/data.json` with `root/model.onnx` and the fake engine."""
    request = RunRequest(
        model=root / "model.onnx",
        task="detections",
        data=(DataSource(str(root / "pictures" / "data.json"), images=root / "pictures"),),
        out=out,
        slots=tuple(Slot(Device("cpu", 0, 1), {}, f"cpu {i}") for i in range(workers)),
        engine="fake",
        formats=("detectron", "coco"),
    )
    return replace(request, **changes)


def result_bytes(out: Path) -> dict[str, bytes]:
    """The result files and failed.json of an OUT folder, by name."""
    names = [p for p in out.iterdir() if p.suffix in (".pkl", ".json") and p.name not in ("run.json", "timing.json")]
    return {path.name: path.read_bytes() for path in names}


class _Wrapped(Predictor):
    """Passes everything on to a real predictor; subclasses do harm before."""

    def __init__(self, inner: Any, model: Path) -> None:
        self._inner = inner
        self._model = model
        self.spec = inner.spec
        self.needs_pictures = inner.needs_pictures
        self.needs_proposals = inner.needs_proposals
        self._warm = False

    @property
    def description(self) -> Mapping[str, str]:
        return self._inner.description

    def infer(self, batch: Any) -> Any:
        if self._warm:
            self.harm(batch.ids)
        self._warm = True
        return self._inner.infer(batch)

    def harm(self, ids: tuple[int, ...]) -> None:
        raise NotImplementedError

    def finish(self, outputs: Any, batch: Any) -> Any:
        return self._inner.finish(outputs, batch)

    def close(self) -> None:
        self._inner.close()


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


GATE = "gate-is-open"


class _KilledOnce(_Wrapped):
    def harm(self, ids: tuple[int, ...]) -> None:
        marker = self._model.with_name("killed-once")
        if 22 in ids and not marker.exists():
            marker.touch()
            _kill_self()


class _KilledByImage(_Wrapped):
    def harm(self, ids: tuple[int, ...]) -> None:
        if 22 in ids:
            _kill_self()


class _ActorKilledOnce(_Wrapped):
    """Kills the process that started this one, which on a cluster is its actor."""

    def harm(self, ids: tuple[int, ...]) -> None:
        marker = self._model.with_name("actor-killed-once")
        if 22 in ids and not marker.exists():
            marker.touch()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)


class _FailsOnImage(_Wrapped):
    def harm(self, ids: tuple[int, ...]) -> None:
        if 22 in ids:
            raise EngineError("out of memory on the test device")


class _DiesAlways(_Wrapped):
    def harm(self, ids: tuple[int, ...]) -> None:
        _kill_self()


class _Steady(_Wrapped):
    """Takes its time, as a network does: what a loaded machine takes between two stages is small beside it."""

    def harm(self, ids: tuple[int, ...]) -> None:
        time.sleep(0.04)


class _Gated(_Wrapped):
    """Waits once the first shard is written, until the gate is opened: what a test does meanwhile does not depend on speed."""

    def harm(self, ids: tuple[int, ...]) -> None:
        named = os.environ.get("ROILINE_TEST_GATE")  # a worker on a cluster has not the environment of the test
        out = Path(named or self._model.with_name("gated-out").read_text())
        limit = time.monotonic() + 60
        while any(out.glob("shards/*.shard")) and not (out / GATE).exists() and time.monotonic() < limit:
            time.sleep(0.01)
        time.sleep(0.08)


def open_steady(model: Path, *args: Any, **options: Any) -> Any:
    return _Steady(open_predictor(model, *args, **options), model)


def open_killed_once(model: Path, *args: Any, **options: Any) -> Any:
    return _KilledOnce(open_predictor(model, *args, **options), model)


def open_actor_killed_once(model: Path, *args: Any, **options: Any) -> Any:
    return _ActorKilledOnce(open_predictor(model, *args, **options), model)


def open_killed_by_image(model: Path, *args: Any, **options: Any) -> Any:
    return _KilledByImage(open_predictor(model, *args, **options), model)


def open_fails_on_image(model: Path, *args: Any, **options: Any) -> Any:
    return _FailsOnImage(open_predictor(model, *args, **options), model)


def open_dies_always(model: Path, *args: Any, **options: Any) -> Any:
    return _DiesAlways(open_predictor(model, *args, **options), model)


def open_gated(model: Path, *args: Any, **options: Any) -> Any:
    return _Gated(open_predictor(model, *args, **options), model)


class _HangsOnImage(_Wrapped):
    """Sits in a C function that holds the interpreter's lock, as a decoder with a bug does: no thread of the worker runs any more."""

    def harm(self, ids: tuple[int, ...]) -> None:
        if 22 in ids:
            self._model.with_name("harmed").touch()
            ctypes.PyDLL(None).sleep(3600)


class _StopsOnImage(_Wrapped):
    def harm(self, ids: tuple[int, ...]) -> None:
        if 22 in ids:
            self._model.with_name("harmed").touch()
            os.kill(os.getpid(), signal.SIGSTOP)


def open_hangs_on_image(model: Path, *args: Any, **options: Any) -> Any:
    return _HangsOnImage(open_predictor(model, *args, **options), model)


def open_stops_on_image(model: Path, *args: Any, **options: Any) -> Any:
    return _StopsOnImage(open_predictor(model, *args, **options), model)


class _Pipelined(_Wrapped):
    """Takes a second batch before the first is waited for, and answers only then; notes how many were in flight at most."""

    def __init__(self, inner: Any, model: Path) -> None:
        super().__init__(inner, model)
        self._begun: list[Any] = []

    @property
    def depth(self) -> int:
        return 2

    def begin(self, batch: Any) -> Any:
        self._begun.append(batch)
        assert len(self._begun) <= self.depth
        if len(self._begun) == self.depth:
            self._model.with_name("two-in-flight").touch()
        return batch

    def wait(self, pending: Any) -> Any:
        assert self._begun.pop(0) is pending
        return self.infer(pending)

    def harm(self, ids: tuple[int, ...]) -> None:
        if 22 in ids and self._model.with_name("kill").exists():
            _kill_self()


def open_pipelined(model: Path, *args: Any, **options: Any) -> Any:
    return _Pipelined(open_predictor(model, *args, **options), model)


class _FailsNowAndThen(_Wrapped):
    """Fails at every twentieth call of all workers together, whatever the picture."""

    def harm(self, ids: tuple[int, ...]) -> None:
        with self._model.with_name("calls").open("a") as calls:
            calls.write(".")
            number = calls.tell()
        if number % 20 == 0:
            raise EngineError("the device does not answer")


class _Counted(_Wrapped):
    """Notes every picture that it answers; a process kills itself at the tenth, noting the shards on the disk; later ones do not."""

    def harm(self, ids: tuple[int, ...]) -> None:
        log, killed = self._model.with_name("answered"), self._model.with_name("killed")
        if log.exists() and len(log.read_text().split()) >= 9:
            shards = (self._model.parent / "out" / "shards").glob("*.shard")
            with contextlib.suppress(FileExistsError), killed.open("x") as finished:
                finished.write("\n".join(path.name for path in shards))
                finished.flush()
                _kill_self()
        with log.open("a") as answered:
            answered.write("".join(f"{image_id}\n" for image_id in ids))


def open_fails_now_and_then(model: Path, *args: Any, **options: Any) -> Any:
    return _FailsNowAndThen(open_predictor(model, *args, **options), model)


def open_counted(model: Path, *args: Any, **options: Any) -> Any:
    return _Counted(open_predictor(model, *args, **options), model)


def open_telling_its_start(model: Path, *args: Any, **options: Any) -> Any:
    """Notes the environment and the command that this process was started with, before anything of it could change them."""
    start = Path("/proc/self/environ").read_bytes().split(b"\0"), Path("/proc/self/cmdline").read_bytes().split(b"\0")
    plain = [[word.decode(errors="replace") for word in words] for words in start]
    model.with_name(f"start-{os.getpid()}").write_text(json.dumps(plain))
    return open_predictor(model, *args, **options)


def open_refuses(model: Path, *args: Any, **options: Any) -> Any:
    raise ModelError(f"{model}: refused for a test")


def open_dies_at_start(model: Path, *args: Any, **options: Any) -> Any:
    with model.with_name("starts").open("a") as stream:
        stream.write("x")
    _kill_self()


def open_takes_long(model: Path, *args: Any, **options: Any) -> Any:
    model.with_name(f"opening-{os.getpid()}").touch()
    time.sleep(60)
    return open_predictor(model, *args, **options)


def open_without_room(model: Path, *args: Any, **options: Any) -> Any:
    """Makes every file that the worker writes too large beyond a few bytes, as a full disk would."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return open_predictor(model, *args, **options)


class _OnGpu(_Wrapped):
    """Says what the worker that opened it found: its GPU, its cores, and which libraries of GPUs were loaded before."""

    @property
    def description(self) -> Mapping[str, str]:
        return {**self._inner.description, **self.found}

    def harm(self, ids: tuple[int, ...]) -> None:
        pass


def open_on_gpu(model: Path, task: Any, device: Device, **options: Any) -> Any:
    found = {
        "mask": os.environ["CUDA_VISIBLE_DEVICES"],
        "order": os.environ["CUDA_DEVICE_ORDER"],
        "cores": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "loaded": ",".join(
            name for name in ("cuda", "pycuda", "tensorrt", "torch", "onnxruntime") if name in sys.modules
        ),
    }
    predictor = _OnGpu(open_predictor(model, task, Device("cpu", threads=1), **options), model)
    predictor.found = found
    return predictor


class _FromPictures(_Wrapped):
    """Leaves preparing to the main lane, as an engine that takes pictures does."""

    def __init__(self, inner: Any, model: Path) -> None:
        super().__init__(inner, model)
        self.needs_pictures = True

    def prepare(self, picture: Any, rules: Any) -> Any:
        return leave_unprepared(picture, rules)

    def infer(self, batch: Any) -> Any:
        assert not any(batch.pixels.strides) or batch.ids == (0,)  # the warm-up is prepared
        prepared = [prepare_picture(picture, self.spec.image_rules) for picture in batch.pictures]
        again = stack_batch(prepared, batch.ids, padded=True)
        assert again.pixels.shape == batch.pixels.shape
        return self._inner.infer(again)


def open_from_pictures(model: Path, *args: Any, **options: Any) -> Any:
    return _FromPictures(open_predictor(model, *args, **options), model)


class _TwoInFlight(_Wrapped):
    """Computes only when it is waited for, with two batches in flight at most; its description counts on nothing but that."""

    depth = 2  # type: ignore[assignment]

    def __init__(self, inner: Any, model: Path) -> None:
        super().__init__(inner, model)
        self._flying: list[Any] = []
        self._most = 0

    def begin(self, batch: Any) -> Any:
        self._flying.append(batch)
        self._most = max(self._most, len(self._flying))
        assert len(self._flying) <= 2
        return batch

    def wait(self, pending: Any) -> Any:
        assert self._flying.pop(0) is pending
        return self.infer(pending)

    def close(self) -> None:
        self._model.with_name(f"most-{self._most}").touch()
        self._inner.close()

    def harm(self, ids: tuple[int, ...]) -> None:
        if 22 in ids and self._model.with_name("kill").exists():
            _kill_self()


def open_two_in_flight(model: Path, *args: Any, **options: Any) -> Any:
    return _TwoInFlight(open_predictor(model, *args, **options), model)
