"""The passport beside an engine: what it was made of, for which machine, and what was found when it was tried.

An engine file is opaque and fits one GPU, one driver generation and one TensorRT. The passport `MODEL.plan.json` says so in words, carries
the model's specification, so that a run needs nothing else, and lets a wrong, damaged or foreign engine be refused before it is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from roiline.core.errors import ModelError
from roiline.core.files import read_input, sha256_of_file, write_json
from roiline.core.records import plain_from_record, record_from_plain
from roiline.core.spec import ModelSpec, spec_from_json
from roiline.engines.cuda.driver import Driver
from roiline.engines.protocol import TensorInfo
from roiline.engines.tensorrt.profiles import Profile
from roiline.engines.tensorrt.trimming import OutputTrim

FORMAT_VERSION = 1

_LIMIT = 1 << 26
_REBUILD = "build it again on this machine: roiline build --rebuild"


@dataclass(frozen=True, slots=True)
class Machine:
    """Is what an engine depends on: TensorRT's version, the CUDA version that the driver supports (as 13.0), and the GPU."""

    tensorrt: str
    cuda: str
    gpu: str
    compute_capability: str


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Is how layers of one kind came out: the type that the model asks for and the one that was built, and how many layers."""

    kind: str
    asked: str
    built: str
    layers: int


@dataclass(frozen=True, slots=True)
class Passport:
    """Is all that is known of one engine file.

    `identity` maps what changes an engine (graph, weights, settings, profiles, versions, GPU, kernels) to a hash or a value; an engine is
    up to date if all agree. `outputs` are the model's own; an engine may have more, counts that `trims` need. `plugins` maps each plugin to
    the SHA-256 of its kernel's source. `gates` says of each gate `passed`, `skipped`, or what was measured.
    """

    spec: ModelSpec
    engine_sha256: str
    engine_bytes: int
    machine: Machine
    version_compatible: bool
    hardware_compatible: bool
    identity: Mapping[str, str]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    trims: tuple[OutputTrim, ...]
    profiles: tuple[Profile, ...]
    plugins: Mapping[str, str]
    precision: tuple[LayerGroup, ...]
    gates: Mapping[str, str]


def passport_path(plan: Path) -> Path:
    """Returns where the passport of an engine file lies: `MODEL.plan.json`."""
    return plan.with_name(f"{plan.name}.json")


def write_passport(plan: Path, passport: Passport) -> None:
    """Writes the passport beside its engine.

    Raises:
        OutputError: it cannot be written.
    """
    plain = plain_from_record(passport)
    plain["spec"] = json.loads(passport.spec.to_json())
    write_json(passport_path(plan), {"format_version": FORMAT_VERSION, **plain})


def read_passport(plan: Path) -> Passport:
    """Reads the passport of an engine file.

    Raises:
        ModelError: there is none, or it is damaged or of another format version.
    """
    path = passport_path(plan)
    if not path.exists():
        raise ModelError(
            f"{plan}: an engine needs its passport {path.name} beside it, and it is not there; copy both files, or {_REBUILD}"
        )
    try:
        plain = json.loads(read_input(path, error=ModelError, limit=_LIMIT))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: this passport is not JSON ({error}); {_REBUILD}") from error
    version = plain.pop("format_version", None) if isinstance(plain, dict) else None
    if version != FORMAT_VERSION:
        raise ModelError(f"{path}: this passport has format version {version!r}, expected {FORMAT_VERSION}; {_REBUILD}")
    spec_from_json(json.dumps(plain.get("spec")), where=str(path))
    return record_from_plain(Passport, plain, where=str(path), error=ModelError)


def check_engine_file(plan: Path, passport: Passport) -> None:
    """Checks that the engine file is the one that the passport was written for.

    Raises:
        ModelError: it is missing, cut short or altered.
    """
    if not plan.is_file():
        raise ModelError(f"{plan}: there is no such engine file, only its passport")
    size = plan.stat().st_size
    if size != passport.engine_bytes:
        raise ModelError(
            f"{plan}: this engine has {size} bytes, its passport says {passport.engine_bytes}; was it cut off while it was copied? "
            f"Copy it again, or {_REBUILD}"
        )
    found = sha256_of_file(plan)
    if found != passport.engine_sha256:
        raise ModelError(
            f"{plan}: this engine was altered: its SHA-256 is {found[:16]}.., its passport says {passport.engine_sha256[:16]}..; "
            f"copy it again, or {_REBUILD}"
        )


def describe_machine(driver: Driver, index: int, tensorrt_version: str) -> Machine:
    """Returns what this machine is, for the GPU with a number.

    Raises:
        EngineError: the driver does not answer.
    """
    properties = driver.describe(index)
    version = driver.version()
    return Machine(
        tensorrt=tensorrt_version,
        cuda=f"{version // 1000}.{version % 1000 // 10}",
        gpu=properties.name,
        compute_capability=".".join(map(str, properties.compute_capability)),
    )


def check_machine(passport: Passport, machine: Machine, *, where: str) -> None:
    """Checks that an engine fits a machine.

    It wants the TensorRT that it was built with (the same major version or a later minor one where it is version-compatible), the same GPU
    (any of compute capability 8.0 on where it is hardware-compatible), and a driver that supports the CUDA version that it was built on.

    Raises:
        ModelError: it does not fit; the message names every difference.
    """
    built = passport.machine
    faults = []
    if not _version_fits(built.tensorrt, machine.tensorrt, compatible=passport.version_compatible):
        faults.append(("TensorRT", built.tensorrt, machine.tensorrt))
    if not passport.hardware_compatible and built.gpu != machine.gpu:
        faults.append(("GPU", built.gpu, machine.gpu))
    if not _capability_fits(built, machine, compatible=passport.hardware_compatible):
        faults.append(("compute capability", built.compute_capability, machine.compute_capability))
    if _numbers(machine.cuda) < _numbers(built.cuda):
        faults.append(("CUDA of the driver (at least)", built.cuda, machine.cuda))
    if faults:
        listing = "\n  ".join(f"{what}: built for {expected}, here {got}" for what, expected, got in faults)
        raise ModelError(f"{where}: this engine does not fit this machine; {_REBUILD}\n  {listing}")


def _version_fits(built: str, here: str, *, compatible: bool) -> bool:
    if not compatible:
        return built == here
    return _numbers(built)[:1] == _numbers(here)[:1] and _numbers(here) >= _numbers(built)


def _capability_fits(built: Machine, here: Machine, *, compatible: bool) -> bool:
    if compatible:
        return _numbers(here.compute_capability) >= (8, 0)
    return built.compute_capability == here.compute_capability


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers of a version, those that are numbers."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def identity_differences(passport: Passport, identity: Mapping[str, str]) -> list[str]:
    """Returns what makes an engine another one than is wanted now, in words; empty if it is up to date."""
    names = sorted({*passport.identity, *identity})
    return [
        f"{name}: the engine's is {passport.identity.get(name, 'unknown')[:40]}, wanted is {identity.get(name, 'none')[:40]}"
        for name in names
        if passport.identity.get(name) != identity.get(name)
    ]
