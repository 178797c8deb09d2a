"""`roiline verify`: an exported model against the network that its checkpoint describes, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roiline.checks.verify.exported import ExportedModel, run_engine
from roiline.checks.verify.measures import (
    TOLERANCES,
    Measure,
    StageResult,
    Tolerances,
    first_failure,
    gather_stages,
    measure_settings,
)
from roiline.checks.verify.pictures import GENERATED_SIZES, generate_picture
from roiline.checks.verify.plan import NetworkPlan, ReferenceSource
from roiline.checks.verify.reference import Reference
from roiline.checks.verify.staging import Answers, PictureCheck, compare_answers, read_answers
from roiline.core.records import plain_from_record
from roiline.core.spec import ModelSpec
from roiline.core.structures import UInt8
from roiline.engines.model_file import read_spec
from roiline.engines.protocol import Device, Engine, Tensor
from roiline.engines.registry import open_engine
from roiline.infer.model import choose_stage
from roiline.infer.pictures import read_picture

ENGINE_STAGE = "engine"
"""What the names of stages begin with that compare another engine with ONNX Runtime."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Is one picture to compare on: what it is called, its pixels (H, W, 3) in BGR order, and its file, where it has one."""

    name: str
    pixels: UInt8
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class OtherEngine:
    """Is an engine to compare with ONNX Runtime: the file that it runs, its name, and the device."""

    path: Path
    engine: str
    device: Device


@dataclass(frozen=True, slots=True)
class Verification:
    """Is what was compared and found; `engines` says which engines were really got, `not_compared` which tensors had no counterpart."""

    spec: ModelSpec
    stages: tuple[StageResult, ...]
    tolerances: Tolerances
    engines: tuple[dict[str, str], ...]
    not_compared: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def failed(self) -> StageResult | None:
        """Is the first stage that leaves its tolerance."""
        return first_failure(self.stages)


def load_pictures(paths: Sequence[Path]) -> tuple[Picture, ...]:
    """Returns the pictures of files, or (no file) a few that are made up.

    Raises:
        DataError: a file is no picture.
    """
    if paths:
        return tuple(Picture(str(path), read_picture(path), path) for path in paths)
    return tuple(
        Picture(f"made up, seed {seed}, {width} x {height}", generate_picture(seed, height, width))
        for seed, (height, width) in enumerate(GENERATED_SIZES)
    )


def verify_model(
    model: Path,
    source: ReferenceSource,
    pictures: Sequence[Picture],
    *,
    by_layer: bool = False,
    others: Sequence[OtherEngine] = (),
) -> Verification:
    """Compares an exported model with its checkpoint, stage by stage on the CPU, and other engines with ONNX Runtime.

    Raises:
        ModelError: the file is no model of ours, or another kind of network than the checkpoint's.
        WeightError: the checkpoint lacks a parameter.
        EngineError: an engine is not there, or could not run.
    """
    place = Device()
    reference = Reference(source)
    with ExportedModel(model, place) as exported:
        spec = exported.spec
        tolerances = TOLERANCES[spec.precision]
        measures = [_check_settings(spec, source.plan)]
        missing: set[str] = set()
        answers = []
        for number, picture in enumerate(pictures):
            check = PictureCheck(
                reference, exported, tolerances, number, by_layer, weights_too=number == 0 and spec.precision == "fp32"
            )
            answers.append((check.run(picture.pixels), check.feeds))
            measures += check.measures
            missing |= check.not_compared
    described = []
    with _open_whole(model, spec, "onnxruntime", place) as whole:
        described.append(dict(whole.description))
        given = [_ask(whole, feeds, spec) for _, feeds in answers]
    for number, (expected, _) in enumerate(answers):
        measures += compare_answers(
            "whole model", number, expected, given[number], tolerances, unmatched=tolerances.whole
        )
    for other in others:
        found, description = _check_engine(other, answers, given, tolerances)
        measures += found
        described.append(description)
    notes = (*source.notes, *_explain_sources(spec, source))
    return Verification(spec, gather_stages(measures), tolerances, tuple(described), tuple(sorted(missing)), notes)


def _check_engine(
    other: OtherEngine,
    answers: Sequence[tuple[Answers, Mapping[str, Tensor]]],
    given: Sequence[Answers],
    tolerances: Tolerances,
) -> tuple[list[Measure], dict[str, str]]:
    """Compares a whole model in another engine with what ONNX Runtime said."""
    spec = read_spec(other.path)
    with _open_whole(other.path, spec, other.engine, other.device) as engine:
        stage = f"{ENGINE_STAGE} {engine.description.get('engine', other.engine)}"
        found = [
            measure
            for number, ((_, feeds), expected) in enumerate(zip(answers, given, strict=True))
            for measure in compare_answers(
                stage, number, expected, _ask(engine, feeds, spec), tolerances, unmatched=tolerances.engine
            )
        ]
        return found, dict(engine.description)


def _ask(engine: Engine, feeds: Mapping[str, Tensor], spec: ModelSpec) -> Answers:
    return read_answers(run_engine(engine, feeds), spec.seams)


def _open_whole(path: Path, spec: ModelSpec, engine: str, device: Device) -> Engine:
    return open_engine(path, engine=engine, device=device, stage=choose_stage(spec, spec.tasks[-1]))


def _check_settings(spec: ModelSpec, plan: NetworkPlan) -> Measure:
    """Compares what the model says of itself, and a run goes by, with what the configuration says."""
    expected: dict[str, object] = {}
    got: dict[str, object] = {}
    pairs = (
        ("images", plan.images, spec.images),
        ("detection", plan.detection, spec.detection),
        ("conventions", plan.conventions, spec.conventions),
    )
    for name, one, other in pairs:
        wanted = plain_from_record(one) if one is not None else {}
        said = plain_from_record(other) if other is not None else {}
        for key in wanted.keys() - {"name", "ties"}:
            expected[f"{name}.{key}"], got[f"{name}.{key}"] = wanted[key], said.get(key)
    return measure_settings("settings", dict(sorted(expected.items())), got)


def _explain_sources(spec: ModelSpec, source: ReferenceSource) -> tuple[str, ...]:
    notes = []
    if spec.source.weights_sha256 != source.weights_sha256:
        notes.append("the model says that it was made from another weights file; what was compared is this one")
    if source.plan.tracked:
        notes.append("the tracking head was not compared: it runs on two pictures")
    options = spec.test
    if any(getattr(options, name) is not None for name in options.__slots__):
        notes.append(
            "soft-NMS, voting or augmentation are done by the host in a run; the network was compared without them"
        )
    return tuple(notes)
