"""The model part of the GPU check: the demo model built and run by the engines that are there, held against ONNX Runtime on the CPU."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx

from roiline.core.boxes import box_ious
from roiline.core.errors import EngineError
from roiline.core.spec import ModelSpec
from roiline.engines.cuda.driver import open_driver
from roiline.engines.cuda.resources import CudaContext
from roiline.engines.model_file import cut_model, read_spec
from roiline.engines.protocol import Device, Engine, Stage, TensorInfo
from roiline.engines.registry import open_engine
from roiline.engines.tensorrt.backend import PlanLayout, ShapeRange, TensorRtBackend
from roiline.engines.tensorrt.builder import add_profile, parse_model
from roiline.engines.tensorrt.profiles import Profile
from roiline.engines.tensorrt.runtime import load_engine, make_logger, read_tensors
from roiline.engines.tensorrt.trimming import OutputTrim
from roiline.export.detectron.exporter import export_detectron
from roiline.infer.engine_build import BuildRequest, build_plan
from roiline.infer.feeds import make_feeds
from roiline.infer.preparation import prepare_picture, stack_batch

DEMO = Path(__file__).resolve().parents[1] / "examples" / "digits"
BATCH = 8
TRUNK_TOLERANCE = 1e-3
LEAST_OVERLAP = 0.9
SCORE_TOLERANCE = 5e-3
"""Detections are paired by class and overlap: of two candidates that score the same to the last bit, another order of summation picks
the other one, whose box lies a little apart."""


def export_demo(folder: Path) -> Path:
    """Exports the demo model into a folder."""
    out = folder / "digits.onnx"
    export_detectron(
        DEMO / "digits.yaml", DEMO / "digits.pkl", out, class_names=(DEMO / "classes.txt").read_text().split()
    )
    return out


def make_batches(spec: ModelSpec, *, count: int) -> list[dict[str, Any]]:
    """Returns batches of one shape of the demo's pictures, over and over until there are `count`."""
    paths = sorted((DEMO / "pictures").iterdir())
    pictures = [picture for path in paths if (picture := cv2.imread(str(path))) is not None]
    prepared = [prepare_picture(picture, spec.image_rules) for picture in pictures]
    shape = max({one.pixels.shape for one in prepared}, key=[one.pixels.shape for one in prepared].count)
    fitting = [one for one in prepared if one.pixels.shape == shape]
    batches = []
    for number in range(count):
        rows = [fitting[(number * BATCH + row) % len(fitting)] for row in range(BATCH)]
        batches.append(make_feeds(stack_batch(rows, list(range(BATCH))), spec, spec.image_rules))
    return batches


def compare_engines(
    model: Path, engine: str, device: Device, *, batches: int, path: Path | None = None
) -> Mapping[str, Any]:
    """Opens an engine and holds its answers against ONNX Runtime's on the CPU; `path` is its own file where it has one."""
    with (
        open_engine(model, engine="onnxruntime") as judge,
        open_engine(path or model, engine=engine, device=device) as opened,
    ):
        feeds = make_batches(judge.spec, count=batches)
        differences = [_difference(_run(opened, one), _run(judge, one)) for one in feeds]
        rates = {
            f"images_per_s_{flight}_in_flight": _rate(opened, feeds, flight) for flight in range(1, opened.depth + 1)
        }
        worst = {name: max(one[name] for one in differences) for name in differences[0]}
        agrees = worst["unpaired"] == 0 and worst["scores"] <= SCORE_TOLERANCE
        return {"agrees": agrees, **worst, **rates, "engine": dict(opened.description)}


def build_demo(model: Path, folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """Builds the demo's TensorRT engine for its own pictures; returns it and what its passport says."""
    start = time.perf_counter()
    request = BuildRequest(
        model=model,
        out=folder / "digits.plan",
        data=str(DEMO / "annotations.json"),
        images=DEMO / "pictures",
        batch_sizes=(BATCH,),
    )
    report = build_plan(request)
    passport = report.passport
    return report.path, {
        "build_s": round(time.perf_counter() - start, 1),
        "engine_bytes": passport.engine_bytes,
        "profiles": len(passport.profiles),
        "gates": dict(passport.gates),
        "plugins": len(passport.plugins),
    }


def check_trunk(trt: Any, model: Path) -> Mapping[str, Any]:
    """Builds the convolutional part of the demo with TensorRT for RTX, runs it, and holds its features against ONNX Runtime's."""
    start = time.perf_counter()
    plan, batches, stage = build_trunk(trt, model)
    built_s = round(time.perf_counter() - start, 1)
    with open_engine(model, engine="onnxruntime", stage=stage) as judge, ExitStack() as stack:
        runtime, engine = load_engine(trt, plan, where="the trunk")
        context = stack.enter_context(CudaContext(open_driver()))
        shape = batches[0]["data"].shape
        layout = PlanLayout(
            judge.inputs, judge.outputs, ({"data": ShapeRange(shape, shape)},), ("data",), _given_trims(judge.outputs)
        )
        backend = TensorRtBackend(
            trt, runtime, engine, context, layout, read_tensors(trt, engine, where="the trunk"), {}
        )
        stack.callback(backend.close)
        worst = 0.0
        for feeds in batches:
            got, want = backend.run({"data": feeds["data"]}), judge.run({"data": feeds["data"]})
            for name, array in want.items():
                worst = max(worst, float(np.abs(got[name] - array).max() / max(1.0, float(np.abs(array).max()))))
    return {"agrees": worst <= TRUNK_TOLERANCE, "largest_relative_difference": worst, "build_s": built_s}


def build_trunk(trt: Any, model: Path) -> tuple[bytes, list[dict[str, Any]], Stage]:
    """Returns an engine of the part up to the features for one shape, batches of that shape, and the stage."""
    spec = read_spec(model)
    stage = Stage(outputs=spec.seams["features"])
    batches = make_batches(spec, count=2)
    logger = make_logger(trt)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parse_model(trt, network, logger, cut_model(onnx.load(str(model)), stage, where=str(model)))
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    shape = batches[0]["data"].shape
    add_profile(builder, config, Profile({"data": (shape, shape, shape)}))
    serialized = builder.build_serialized_network(network, config)
    if serialized is None:
        raise EngineError(f"TensorRT for RTX could not build the trunk: {'; '.join(logger.errors)}")
    return bytes(serialized), batches, stage


def _given_trims(outputs: Sequence[TensorInfo]) -> tuple[OutputTrim, ...]:
    return tuple(OutputTrim(info.name, "batch") for info in outputs)


def _run(engine: Engine, feeds: Mapping[str, Any]) -> dict[str, Any]:
    return engine.run({info.name: feeds[info.name] for info in engine.inputs})


def _difference(got: Mapping[str, Any], want: Mapping[str, Any]) -> dict[str, float]:
    """Pairs the detections of each picture by class and overlap; returns the largest differences and how many found no partner."""
    worst = {"boxes": 0.0, "scores": 0.0, "unpaired": 0.0, "detections": 0.0}
    for image, count in enumerate(want["count"]):
        left = {name: got[name][image, : got["count"][image]] for name in ("boxes", "scores", "classes")}
        right = {name: want[name][image, :count] for name in ("boxes", "scores", "classes")}
        overlaps = box_ious(right["boxes"], left["boxes"])
        overlaps *= right["classes"][:, None] == left["classes"][None]
        worst["detections"] += float(count)
        for row in range(len(right["boxes"])):
            partner = int(overlaps[row].argmax()) if len(left["boxes"]) else -1
            if partner < 0 or overlaps[row, partner] < LEAST_OVERLAP:
                worst["unpaired"] += 1
                continue
            overlaps[:, partner] = 0
            for name in ("boxes", "scores"):
                apart = float(np.abs(left[name][partner] - right[name][row]).max())
                worst[name] = max(worst[name], apart)
        worst["unpaired"] += max(0, len(left["boxes"]) - len(right["boxes"]))
    return worst


def _rate(engine: Engine, batches: Sequence[Mapping[str, Any]], flight: int) -> float:
    """Returns images a second with so many batches in flight, after one round to warm up."""
    feeds = [{info.name: one[info.name] for info in engine.inputs} for one in batches]
    for one in feeds:
        engine.run(one)
    start = time.perf_counter()
    tickets = []
    for one in feeds:
        tickets.append(engine.submit(one))
        if len(tickets) == flight:
            engine.collect(tickets.pop(0))
    for ticket in tickets:
        engine.collect(ticket)
    return round(BATCH * len(feeds) / (time.perf_counter() - start), 1)
