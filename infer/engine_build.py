"""A model file and a dataset into a TensorRT engine with its passport: shapes are planned, the engine is built, tried, and only then kept.

Everything that can be refused is refused before the build, which takes minutes: no driver first of all, then a missing TensorRT or compiler,
a model that has no lowered form, an engine file that is there already and is of something else.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from roiline.core.errors import EngineError, ModelError, UsageError
from roiline.core.files import check_output, make_folder, write_durable
from roiline.core.spec import ModelSpec, Task, TestOptions
from roiline.engines.cuda.driver import DeviceProperties, open_driver
from roiline.engines.host_kernels import describe_ends
from roiline.engines.model_file import PLAN_SUFFIX, cut_model, read_spec
from roiline.engines.protocol import Device, Stage, TensorInfo
from roiline.engines.registry import open_engine
from roiline.engines.tensorrt.audit import asked_precision, built_precision, check_precision, group_layers
from roiline.engines.tensorrt.builder import build_engine, inspect_engine
from roiline.engines.tensorrt.identity import engine_identity, plugin_digests
from roiline.engines.tensorrt.library import load_plugin_module, load_tensorrt
from roiline.engines.tensorrt.lowering import LoweredModel, lower_model
from roiline.engines.tensorrt.passport import (
    Machine,
    Passport,
    check_engine_file,
    describe_machine,
    identity_differences,
    passport_path,
    read_passport,
    write_passport,
)
from roiline.engines.tensorrt.plugins import check_creators, name_plugins, register_plugins
from roiline.engines.tensorrt.profiles import (
    Bucket,
    Profile,
    buckets_from_rules,
    buckets_from_text,
    describe_buckets,
    make_profiles,
    plan_buckets,
)
from roiline.engines.tensorrt.settings import BuildSettings
from roiline.infer.engine_trial import GATES, Trial, read_sample, run_gates
from roiline.infer.model import choose_stage
from roiline.infer.roidb import Dataset
from roiline.ops.kernel_build import compile_ptx, find_device_compiler
from roiline.ops.kernel_source import translation_unit
from roiline.ops.kernels import KernelNode

LOG = logging.getLogger("roiline.build")

LEAST_CAPABILITY = (8, 0)
"""The oldest GPUs that kernels are compiled for."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """Is what is to be built, for which shapes, and how.

    `task` None: the model's last one, all that it can do. Shapes come from `shapes` (text, as `--shapes`), else from the pictures of
    `dataset`, else from the model's rules. `skip_gates` names gates that are not to decide. `rebuild`: an engine that is there already goes.
    """

    model: Path
    out: Path
    task: Task | None = None
    dataset: Dataset | None = None
    shapes: str | None = None
    batch_sizes: tuple[int, ...] = (1,)
    settings: BuildSettings = BuildSettings()
    timing_cache: Path | None = None
    rebuild: bool = False
    skip_gates: tuple[str, ...] = ()
    device: int = 0


@dataclass(frozen=True, slots=True)
class BuildReport:
    """Is what was built: the engine's path, its passport, and whether it was there already and is what was asked for."""

    path: Path
    passport: Passport
    up_to_date: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    """Is a build that nothing stands against any more."""

    spec: ModelSpec
    stage: Stage | None
    lowered: LoweredModel
    model: onnx.ModelProto
    plugins: dict[str, KernelNode]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    profiles: tuple[Profile, ...]
    machine: Machine
    identity: dict[str, str]


def check_build_machine(device: int) -> DeviceProperties:
    """Returns the GPU that an engine is to be built on.

    Raises:
        EngineError: there is no driver, no such GPU, or it is too old; nothing else has been asked or loaded yet.
    """
    driver = open_driver()
    if device >= driver.count_devices():
        raise EngineError(f"there is no GPU {device}; this process sees {driver.count_devices()}")
    properties = driver.describe(device)
    if properties.compute_capability < LEAST_CAPABILITY:
        found, least = (".".join(map(str, pair)) for pair in (properties.compute_capability, LEAST_CAPABILITY))
        raise EngineError(f"the GPU {properties.name} has compute capability {found}; engines are built from {least} on")
    return properties


def build_plan(request: BuildRequest) -> BuildReport:
    """Builds an engine, tries it, and writes it with its passport.

    Raises:
        UsageError: options do not fit together, or the model's ordinary run needs the host between its stages.
        ModelError: the model cannot be used, or OUT is an engine of something else.
        EngineError: no driver, no TensorRT 11, no compiler, or TensorRT cannot build the model.
        GateError: the engine was built and does not do what it should; nothing is kept.
    """
    _check_request(request)
    check_build_machine(request.device)
    trt, trtp = load_tensorrt(), load_plugin_module()
    compiler = find_device_compiler()
    plan = _prepare(request, str(trt.__version__))
    found = _find_existing(request, plan.identity)
    if found is not None:
        return BuildReport(request.out, found, up_to_date=True)

    def compile_kernel(node: KernelNode, dtypes: Sequence[str]) -> str:
        return compile_ptx(translation_unit(node, dtypes), compiler=compiler)

    register_plugins(trt, trtp, plan.plugins, compile_kernel)
    check_creators(trt.get_plugin_registry(), plan.plugins)
    LOG.info("building: %d kernels, %d profiles; this takes minutes", len(plan.lowered.kernels), len(plan.profiles))
    engine = build_engine(
        trt,
        plan.model,
        plugins=plan.plugins,
        profiles=plan.profiles,
        settings=request.settings,
        timing_cache=request.timing_cache,
    )
    return BuildReport(request.out, _try_and_keep(request, plan, engine, trt), up_to_date=False)


def _check_request(request: BuildRequest) -> None:
    if request.out.suffix != PLAN_SUFFIX:
        raise UsageError(f"-o {request.out}: the name of an engine ends in {PLAN_SUFFIX}")
    check_output(request.out, [request.model])
    unknown = sorted(set(request.skip_gates) - set(GATES))
    if unknown:
        raise UsageError(f"--skip-gate {', '.join(unknown)}: there is no such gate; there are {', '.join(GATES)}")


def _prepare(request: BuildRequest, tensorrt_version: str) -> _Plan:
    """Reads and lowers the model and plans the profiles; nothing is built yet."""
    spec = read_spec(request.model)
    task = request.task or (spec.tasks[-1] if spec.tasks else None)
    if task is None or task not in spec.tasks:
        raise UsageError(f"{request.model}: this model makes {' and '.join(spec.tasks) or 'nothing of pictures'}, not {task}")
    refuse_host_runs(spec, task, request.model)
    stage = choose_stage(spec, task)
    try:
        portable = onnx.load(str(request.model))
    except Exception as error:  # protobuf's DecodeError has no stable home
        raise ModelError(f"{request.model}: this is not a whole ONNX file ({error})") from error
    portable = portable if stage is None else cut_model(portable, stage, where=str(request.model))
    lowered = lower_model(portable, where=str(request.model))
    model, plugins = name_plugins(lowered)
    inputs, outputs = describe_ends(portable, lowered)
    shapes = {info.name: info.shape for info in inputs}
    profiles = make_profiles(_plan_shapes(request, spec), request.batch_sizes, shapes, spec.given_proposals)
    machine = describe_machine(open_driver(), request.device, tensorrt_version)
    identity = engine_identity(
        model,
        request.model,
        plugins=plugins,
        profiles=profiles,
        settings=request.settings,
        machine=machine,
        package_version=importlib.metadata.version("roiline"),
    )
    spec = replace(spec, tasks=(task,))
    return _Plan(spec, stage, lowered, model, plugins, inputs, outputs, profiles, machine, identity)


def refuse_host_runs(spec: ModelSpec, task: Task, model: Path) -> None:
    """Refuses a model whose ordinary run is cut at its seams: a built engine is whole, and would never be used.

    Raises:
        UsageError: it is such a model.
    """
    if task == "detections" and (spec.test != TestOptions() or spec.conventions.ties == "quicksort"):
        why = "its test options need" if spec.test != TestOptions() else "the order of its equal scores is found on"
        raise UsageError(
            f"{model}: {why} the host between the stages of the model, and a built engine is whole; run it on ONNX Runtime, or build its "
            "proposals (--task proposals) where it has any"
        )


def _plan_shapes(request: BuildRequest, spec: ModelSpec) -> tuple[Bucket, ...]:
    """Returns the buckets of shapes, and says what they are."""
    sizes: list[tuple[int, int, int, int]] = []
    if request.shapes is not None:
        buckets = buckets_from_text(request.shapes)
    elif request.dataset is not None:
        sizes = [size for size in _network_sizes(request.dataset, spec)]
        buckets = plan_buckets([(height, width) for _, _, height, width in sizes])
    else:
        buckets = buckets_from_rules(spec.image_rules)
    for line in describe_buckets(buckets, sizes):
        LOG.info("%s", line)
    return buckets
