"""An engine just built is tried on pictures and against ONNX Runtime, and kept with its passport only if it does what it should."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from roiline.core.errors import DataError, EngineError
from roiline.core.files import make_folder, write_durable
from roiline.core.spec import ModelSpec
from roiline.core.structures import Float32, ImageBatch, UInt8
from roiline.engines.gates import (
    BOUNDS,
    Bounds,
    Feeds,
    GateError,
    Runner,
    check_batch_one,
    check_equal_rows,
    check_parity,
    check_scores,
    run_gate,
    take_rows,
)
from roiline.engines.protocol import Device, Engine, Stage, Tensor
from roiline.engines.registry import open_engine
from roiline.engines.tensorrt.audit import asked_precision, built_precision, check_precision, group_layers
from roiline.engines.tensorrt.inspector import describe_engine
from roiline.engines.tensorrt.passport import Passport, passport_path, write_passport
from roiline.infer.feeds import make_feeds
from roiline.infer.pictures import read_picture
from roiline.infer.preparation import prepare_picture, stack_batch
from roiline.infer.roidb import Dataset

LOG = logging.getLogger("roiline.build")

GATES = ("equal-rows", "batch-one", "scores", "parity", "precision")
SAMPLE_PICTURES = 8
SAMPLE_BATCH = 4
"""The largest batch that gates run: enough to have neighbours."""

_MADE_UP_ROIS = 50
_SINGLE = "not applicable: the engine takes one picture at a time"


@dataclass(frozen=True, slots=True)
class Sample:
    """Is what gates run: batches of mixed pictures, one a batch of pictures of one shape, and whether the pictures are made up."""

    batches: tuple[Feeds, ...]
    mixed: Feeds
    made_up: bool


class Taking:
    """Runs an engine on the feeds that it takes; others are left out."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(self, feeds: Feeds) -> dict[str, Tensor]:
        """Runs once."""
        return self._engine.run({info.name: feeds[info.name] for info in self._engine.inputs})


def try_and_keep(
    engine: bytes,
    passport: Passport,
    *,
    out: Path,
    source: Path,
    stage: Stage | None,
    asked: onnx.ModelProto,
    dataset: Dataset | None,
    batch_size: int,
    skip_gates: Sequence[str],
    device: int,
) -> Passport:
    """Tries an engine and writes it to `out` with its passport, which is returned; if a gate is not passed nothing is kept.

    `source` is the model file (or the `stage` of it) that the engine is held against, `asked` the graph that it was built of.

    Raises:
        GateError: a gate is not passed.
        EngineError: the engine cannot be run.
    """
    passport = replace(passport, engine_sha256=hashlib.sha256(engine).hexdigest(), engine_bytes=len(engine))
    with _candidate(out, engine, passport) as plan:
        groups = group_layers(asked_precision(asked), built_precision(describe_engine(plan, device)))
        gates = {"precision": run_gate("precision", skip_gates, lambda: check_precision(groups))}

        def open_reference() -> Engine:
            return open_engine(source, engine="onnxruntime", stage=stage)

        with open_engine(plan, device=Device("cuda", device)) as built:
            sample = read_sample(dataset, passport, batch_size)
            gates |= run_gates(Taking(built), open_reference, sample, passport.spec, skip_gates)
        passport = replace(passport, precision=groups, gates={name: gates[name] for name in GATES})
        write_passport(plan, passport)
        os.replace(passport_path(plan), passport_path(out))
        os.replace(plan, out)
    return passport


@contextlib.contextmanager
def _candidate(out: Path, engine: bytes, passport: Passport) -> Iterator[Path]:
    """Writes an engine beside its place, and takes it away again unless it was moved there."""
    make_folder(out.parent)
    plan = out.with_name(f".{out.stem}.candidate{out.suffix}")
    try:
        write_durable(plan, engine)
        write_passport(plan, passport)
        yield plan
    finally:
        for path in (plan, passport_path(plan)):
            path.unlink(missing_ok=True)


def run_gates(
    engine: Runner, open_reference: Callable[[], Engine], sample: Sample, spec: ModelSpec, skipped: Sequence[str]
) -> dict[str, str]:
    """Runs the gates that need pictures, and returns what each found; the reference is opened only if it is needed.

    Raises:
        GateError: one is not passed.
    """
    bounds = BOUNDS[spec.precision]
    single = len(next(iter(sample.mixed.values()))) == 1
    gates: dict[str, Callable[[], str]] = {
        "scores": lambda: check_scores(engine.run(sample.mixed), spec),
        "parity": lambda: _check_parity(engine, open_reference, sample, spec, bounds),
    }
    if not single:
        gates["equal-rows"] = lambda: check_equal_rows(engine, sample.mixed, spec)
        gates["batch-one"] = lambda: check_batch_one(engine, sample.mixed, spec, bounds)
    found = {}
    for name in GATES:
        if name in gates:
            found[name] = run_gate(name, skipped, gates[name])
            LOG.info("gate %s: %s", name, found[name])
        elif name != "precision":
            found[name] = _SINGLE
    return found


def _check_parity(
    engine: Runner, open_reference: Callable[[], Engine], sample: Sample, spec: ModelSpec, bounds: Bounds
) -> str:
    try:
        opened = open_reference()
    except EngineError as error:  # as for bf16, which ONNX Runtime does not run on every CPU
        raise GateError(f"there is nothing to compare with: {error}") from error
    with opened as reference:
        said = check_parity(engine, Taking(reference), sample.batches, spec, bounds)
    return f"{said} (on made-up pictures)" if sample.made_up else said


def read_sample(dataset: Dataset | None, passport: Passport, batch_size: int) -> Sample:
    """Returns what gates run: pictures of the dataset, evenly chosen, or made-up network input of the first profile's usual shape.

    The mixed batch is one picture and turns of it, so that all have one shape.

    Raises:
        DataError: none of the pictures that were tried can be read.
    """
    spec = passport.spec
    images = 1 if spec.given_proposals is not None else min(batch_size, SAMPLE_BATCH)
    if dataset is None:
        mixed = _make_up(passport, images)
        return Sample(tuple(take_rows(mixed, [row]) for row in range(images)), mixed, made_up=True)
    pictures = _read_pictures(dataset, spec)
    batches = tuple(_feed([picture], spec) for picture in pictures)
    return Sample(batches, _feed([_turn(pictures[0], turn) for turn in range(images)], spec), made_up=False)


def _read_pictures(dataset: Dataset, spec: ModelSpec) -> list[UInt8]:
    """Returns pictures that can be read, evenly chosen, as they are."""
    step = max(1, len(dataset.entries) // SAMPLE_PICTURES)
    pictures: list[UInt8] = []
    faults: list[str] = []
    for entry in dataset.entries[::step]:
        try:
            pictures.append(read_picture(entry.path, exif=spec.image_rules.exif))
        except DataError as error:
            faults.append(str(error))
        if len(pictures) == SAMPLE_PICTURES:
            break
    if not pictures:
        raise DataError(f"{dataset.name}: no picture to try the engine on: {'; '.join(faults[:3])}")
    return pictures


def _turn(picture: UInt8, turn: int) -> UInt8:
    """Returns a picture of the same size and other content: as it is, mirrored, upside down, both, and darker from then on."""
    turned = picture[:: -1 if turn & 2 else 1, :: -1 if turn & 1 else 1]
    return np.ascontiguousarray(turned >> (turn // 4))


def _feed(pictures: Sequence[UInt8], spec: ModelSpec) -> Feeds:
    rules = spec.image_rules
    batch = stack_batch([prepare_picture(picture, rules) for picture in pictures], range(len(pictures)))
    if spec.given_proposals is not None:
        batch = replace(batch, proposals=tuple(_make_up_boxes(*size) for size in batch.sizes))
    return make_feeds(batch, spec, rules)


def _make_up(passport: Passport, images: int) -> Feeds:
    """Returns seeded noise as network input."""
    _, _, height, width = passport.profiles[0].shapes["data"][1]
    random = np.random.default_rng(0)
    rules = passport.spec.image_rules
    batch = ImageBatch(
        random.normal(0, 50 / rules.divisor, (images, 3, height, width)).astype(np.float32),
        np.tile(np.array([[height, width, 1.0]], np.float32), (images, 1)),
        np.tile(np.array([[height, width]], np.float32), (images, 1)),
        tuple(range(images)),
    )
    if passport.spec.given_proposals is not None:
        batch = replace(batch, proposals=tuple(_make_up_boxes(*size) for size in batch.sizes))
    return make_feeds(batch, passport.spec, rules)


def _make_up_boxes(height: float, width: float) -> Float32:
    """Returns seeded boxes (n, 4) inside a picture."""
    random = np.random.default_rng(1)
    corners = np.sort(random.random((_MADE_UP_ROIS, 2, 2)), axis=1) * (width - 1, height - 1)
    boxes: Float32 = corners.reshape(_MADE_UP_ROIS, 4).astype(np.float32)
    return boxes
