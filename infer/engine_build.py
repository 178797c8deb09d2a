"""A model file and a dataset into a TensorRT engine with its passport: shapes are planned, the engine is built, tried, and only then kept.

Everything that can be refused is refused before the build, which takes minutes: no driver first of all, then a missing TensorRT or
compiler, a model that has no lowered form, an engine file that is there already and is of something else.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx

from roiline.core.errors import EngineError, ModelError, UsageError
from roiline.core.files import check_output
from roiline.core.spec import ModelSpec, Task, TestOptions
from roiline.engines.cuda.driver import Driver, open_driver
from roiline.engines.cuda.resources import CudaContext
from roiline.engines.model_file import PLAN_SUFFIX, describe_ends, load_model, read_spec
from roiline.engines.protocol import Stage
from roiline.engines.tensorrt.builder import build_engine
from roiline.engines.tensorrt.identity import engine_identity, plugin_digests
from roiline.engines.tensorrt.loading import load_plugin_module, load_tensorrt
from roiline.engines.tensorrt.lowering import lower_model
from roiline.engines.tensorrt.passport import (
    Machine,
    Passport,
    check_engine_file,
    describe_machine,
    identity_differences,
    passport_path,
    read_passport,
)
from roiline.engines.tensorrt.plugins import check_creators, name_plugins, register_plugins
from roiline.engines.tensorrt.profiles import (
    Bucket,
    buckets_from_rules,
    buckets_from_text,
    describe_buckets,
    make_profiles,
    plan_buckets,
)
from roiline.engines.tensorrt.settings import BuildSettings
from roiline.infer.datasets import load_dataset, with_sizes
from roiline.infer.engine_trial import GATES, try_and_keep
from roiline.infer.model import choose_stage
from roiline.infer.preparation import network_size
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

    `task` None: the model's last one, all that it can do. Shapes come from `shapes` (text, as `--shapes`), else from the pictures of the
    dataset `data` (with `images` and `split` as for a run), else from the model's rules. `skip_gates` names gates that are not to decide.
    `rebuild`: an engine that is there already goes.
    """

    model: Path
    out: Path
    task: Task | None = None
    data: str | None = None
    images: Path | None = None
    split: str | None = None
    shapes: str | None = None
    batch_sizes: tuple[int, ...] = (1,)
    settings: BuildSettings = field(default_factory=BuildSettings)
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
    """Is a build that nothing stands against any more: the network as TensorRT reads it, and all of the passport that is known."""

    model: onnx.ModelProto
    plugins: dict[str, KernelNode]
    stage: Stage | None
    dataset: Dataset | None
    passport: Passport


def build_plan(request: BuildRequest) -> BuildReport:
    """Builds an engine, tries it, and writes it with its passport.

    Raises:
        UsageError: options do not fit together, or the model's ordinary run needs the host between its stages.
        ModelError: the model cannot be used, or OUT is an engine of something else.
        EngineError: no driver, no TensorRT 11, no compiler, TensorRT cannot build the model, or the engine does not do what it should.
    """
    _check_request(request)
    driver = open_build_driver(request.device)
    trt, trtp, compiler = load_tensorrt(), load_plugin_module(), find_device_compiler()
    plan = _prepare(request, describe_machine(driver, request.device, str(trt.__version__)))
    if _is_up_to_date(request, plan.passport):
        return BuildReport(request.out, read_passport(request.out), up_to_date=True)

    def compile_kernel(node: KernelNode, dtypes: Sequence[str]) -> str:
        return compile_ptx(translation_unit(node, dtypes), compiler=compiler)

    register_plugins(trt, trtp, plan.plugins, compile_kernel)
    check_creators(trt.get_plugin_registry(), plan.plugins)
    engine = _build(request, plan, trt, driver)
    passport = try_and_keep(
        engine,
        plan.passport,
        out=request.out,
        source=request.model,
        stage=plan.stage,
        asked=plan.model,
        dataset=plan.dataset,
        batch_size=max(request.batch_sizes),
        skip_gates=request.skip_gates,
        device=request.device,
    )
    return BuildReport(request.out, passport, up_to_date=False)


def open_build_driver(device: int) -> Driver:
    """Returns CUDA's driver; asked before anything of TensorRT's.

    Raises:
        EngineError: there is no driver, no such GPU, or it is too old.
    """
    driver = open_driver()
    if device >= driver.count_devices():
        raise EngineError(f"there is no GPU {device}; this process sees {driver.count_devices()}")
    properties = driver.describe(device)
    if properties.compute_capability < LEAST_CAPABILITY:
        found, least = (".".join(map(str, pair)) for pair in (properties.compute_capability, LEAST_CAPABILITY))
        raise EngineError(
            f"the GPU {properties.name} has compute capability {found}; engines are built from {least} on"
        )
    return driver


def _check_request(request: BuildRequest) -> None:
    if request.out.suffix != PLAN_SUFFIX:
        raise UsageError(f"-o {request.out}: the name of an engine ends in {PLAN_SUFFIX}")
    check_output(request.out, [request.model])
    unknown = sorted(set(request.skip_gates) - set(GATES))
    if unknown:
        raise UsageError(f"--skip-gate {', '.join(unknown)}: there is no such gate; there are {', '.join(GATES)}")
    if request.data is None and (request.images is not None or request.split is not None):
        raise UsageError("--images and --split belong to a dataset; give it with --for")
    if request.settings.workspace_mb < 1:
        raise UsageError(f"--workspace: expected megabytes, at least 1, got {request.settings.workspace_mb}")
    if not request.batch_sizes or min(request.batch_sizes) < 1:
        got = ", ".join(map(str, request.batch_sizes)) or "none"
        raise UsageError(f"--batch-sizes: expected positive numbers, got {got}")
    if request.shapes is not None:
        buckets_from_text(request.shapes)


def _prepare(request: BuildRequest, machine: Machine) -> _Plan:
    """Reads and lowers the model and plans the profiles; nothing is built yet."""
    spec = read_spec(request.model)
    task = choose_task(spec, request.task, request.model)
    stage = choose_stage(spec, task)
    portable = load_model(request.model, stage=stage)
    lowered = lower_model(portable, where=str(request.model))
    model, plugins = name_plugins(lowered)
    inputs, outputs = describe_ends(portable, [info.name for info in lowered.model.graph.input])
    dataset = _load_dataset(request, spec)
    buckets = _plan_shapes(request, spec, dataset)
    profiles = make_profiles(
        buckets, request.batch_sizes, {info.name: info.shape for info in inputs}, spec.given_proposals
    )
    identity = engine_identity(
        model,
        request.model,
        plugins=plugins,
        profiles=profiles,
        settings=request.settings,
        machine=machine,
        package_version=importlib.metadata.version("roiline"),
    )
    passport = Passport(
        spec=replace(spec, tasks=(task,)),
        engine_sha256="",
        engine_bytes=0,
        machine=machine,
        version_compatible=request.settings.version_compatible,
        hardware_compatible=request.settings.hardware_compatible,
        identity=identity,
        inputs=inputs,
        outputs=outputs,
        trims=lowered.trims,
        profiles=profiles,
        plugins=plugin_digests(plugins),
        precision=(),
        gates={},
    )
    return _Plan(model, plugins, stage, dataset, passport)


def choose_task(spec: ModelSpec, asked: Task | None, model: Path) -> Task:
    """Returns the task that an engine is built for.

    Raises:
        UsageError: the model cannot do it, or its ordinary run is cut at the model's seams: a built engine is whole, and of no use.
    """
    task = asked or next(reversed(spec.tasks), None)
    if task is None or task not in spec.tasks:
        able = " and ".join(spec.tasks) or "nothing of pictures (it was exported without --cfg)"
        raise UsageError(f"{model}: this model makes {able}, not {task}")
    if task == "detections" and (spec.test != TestOptions() or spec.conventions.ties == "quicksort"):
        why = "its test options need" if spec.test != TestOptions() else "the order of its equal scores is found on"
        raise UsageError(
            f"{model}: {why} the host between the stages of the model, and a built engine is whole; run it on ONNX Runtime, or build its "
            "proposals (--task proposals) where it has any"
        )
    return task


def _load_dataset(request: BuildRequest, spec: ModelSpec) -> Dataset | None:
    if request.data is None:
        return None
    exif = spec.image_rules.exif
    dataset = load_dataset(
        request.data, images=request.images, split=request.split, class_names=spec.class_names, exif=exif
    )
    return replace(dataset, entries=with_sizes(dataset.entries, exif=exif))


def _plan_shapes(request: BuildRequest, spec: ModelSpec, dataset: Dataset | None) -> tuple[Bucket, ...]:
    """Returns the buckets of shapes, and says what they are."""
    sizes: list[tuple[int, int, int, int]] = []
    if dataset is not None:
        known = [entry for entry in dataset.entries if entry.height > 0 and entry.width > 0]
        sizes = [network_size(entry.height, entry.width, spec.image_rules)[:4] for entry in known]
    if request.shapes is not None:
        buckets = buckets_from_text(request.shapes)
        _check_reachable(buckets, max(1, spec.image_rules.pad_multiple))
    elif dataset is not None:
        buckets = plan_buckets([(height, width) for _, _, height, width in sizes])
    else:
        buckets = buckets_from_rules(spec.image_rules)
    for line in describe_buckets(buckets, sizes):
        LOG.info("%s", line)
    return buckets


def _check_reachable(buckets: Sequence[Bucket], multiple: int) -> None:
    """Raises UsageError for a range that holds no shape that pictures are padded to."""
    for bucket in buckets:
        if any(high // multiple * multiple < low for low, high in zip(bucket.smallest, bucket.largest, strict=True)):
            (low_h, low_w), (high_h, high_w) = bucket.smallest, bucket.largest
            raise UsageError(
                f"--shapes {low_h}x{low_w}-{high_h}x{high_w}: no picture has such a shape; this model pads them to multiples of {multiple}"
            )


def _is_up_to_date(request: BuildRequest, wanted: Passport) -> bool:
    """Says whether OUT is the engine that is asked for.

    Raises:
        ModelError: OUT is an engine of something else, or damaged, and is not to be built anew.
    """
    if request.rebuild or not (request.out.exists() or passport_path(request.out).exists()):
        return False
    found = read_passport(request.out)
    check_engine_file(request.out, found)
    differences = identity_differences(found, wanted.identity)
    if differences:
        listing = "\n  ".join(differences)
        raise ModelError(
            f"{request.out}: there is another engine already; build anew with --rebuild, or name another file\n  {listing}"
        )
    return True


def _build(request: BuildRequest, plan: _Plan, trt: Any, driver: Driver) -> bytes:
    """Builds on the GPU that was asked for: its context is the current one meanwhile."""
    kernels = sum(node.op_type in plan.plugins for node in plan.model.graph.node)
    LOG.info("building with %d kernels and %d profiles; this takes minutes", kernels, len(plan.passport.profiles))
    context = CudaContext(driver, request.device)
    try:
        return build_engine(
            trt,
            plan.model,
            plugins=plan.plugins,
            profiles=plan.passport.profiles,
            settings=request.settings,
            timing_cache=request.timing_cache,
        )
    finally:
        context.close()
