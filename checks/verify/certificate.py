"""The certificate of a verification: certificate.json with every number and the hashes of all that was compared, and its page."""

from __future__ import annotations

import datetime
import hashlib
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from roiline.checks.verify.measures import WEIGHT_TOLERANCE, Measure, StageResult
from roiline.checks.verify.page import make_page
from roiline.checks.verify.verification import ENGINE_STAGE, Picture, Verification
from roiline.core.files import make_folder, sha256_of_file, write_durable, write_json
from roiline.core.records import plain_from_record

FORMAT_VERSION = 1
KIND = "roiline certificate"
CERTIFICATE_FILE, PAGE_FILE = "certificate.json", "certificate.html"

Certificate: TypeAlias = dict[str, Any]

_PACKAGES = ("roiline", "numpy", "onnx", "onnxruntime", "opencv-python-headless")


@dataclass(frozen=True, slots=True)
class Compared:
    """Is the files that were compared by what they are (`model`, `weights`, ..), and the options of the configuration."""

    files: Mapping[str, Path]
    overrides: Sequence[tuple[str, str]]
    pictures: Sequence[Picture]


def make_certificate(found: Verification, compared: Compared, *, now: datetime.datetime | None = None) -> Certificate:
    """Returns the content of certificate.json; numbers that are not finite are None there."""
    failed = found.failed
    return {
        "format_version": FORMAT_VERSION,
        "kind": KIND,
        "created_at": (now or datetime.datetime.now(datetime.UTC)).isoformat(timespec="seconds"),
        "passed": failed is None,
        "first_failed_stage": None if failed is None else failed.name,
        "model": {
            "architecture": found.spec.architecture,
            "source": found.spec.source.kind,
            "precision": found.spec.precision,
            "tasks": list(found.spec.tasks),
            "weights_sha256": found.spec.source.weights_sha256,
        },
        "files": {
            name: {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256_of_file(path)}
            for name, path in compared.files.items()
        },
        "options": [list(pair) for pair in compared.overrides],
        "pictures": [_describe_picture(picture) for picture in compared.pictures],
        "tolerances": {**plain_from_record(found.tolerances), "weights": WEIGHT_TOLERANCE},
        "stages": [_describe_stage(stage) for stage in found.stages],
        "engines": [dict(engine) for engine in found.engines],
        "not_compared": list(found.not_compared),
        "notes": list(found.notes),
        "versions": _read_versions(),
    }


def write_certificate(out: Path, certificate: Certificate) -> tuple[Path, Path]:
    """Writes both files into a folder and returns their paths.

    Raises:
        OutputError: they cannot be written.
    """
    make_folder(out)
    paths = out / PAGE_FILE, out / CERTIFICATE_FILE
    write_json(paths[1], certificate)
    write_durable(paths[0], make_page(certificate).encode())
    return paths


def describe_verdict(certificate: Certificate) -> str:
    """Returns the lines for a terminal: one a stage, and the verdict."""
    width = max(len(stage["name"]) for stage in certificate["stages"])
    lines = []
    for stage in certificate["stages"]:
        worst = stage["worst"]
        error = "not a number" if worst["error"] is None else f"{worst['error']:.1e}"
        line = f"{'pass' if stage['passed'] else 'FAIL'}  {stage['name']:<{width}}  {error:>8} of {worst['tolerance']:.0e}  {worst['name']}"
        lines.append(line if not worst["note"] else f"{line} ({worst['note']})")
    lines += [f"note: {note}" for note in certificate["notes"]]
    if certificate["not_compared"]:
        lines.append(f"not compared, the reference has no such tensors: {', '.join(certificate['not_compared'])}")
    return "\n".join(lines)


def describe_failure(certificate: Certificate) -> str:
    """Returns the one line that names the first stage that failed."""
    stage = next(stage for stage in certificate["stages"] if not stage["passed"])
    worst = stage["worst"]
    error = "not a finite number" if worst["error"] is None else f"{worst['error']:.2g}"
    engine = stage["name"].startswith(f"{ENGINE_STAGE} ")
    what = "an engine does not answer as ONNX Runtime does" if engine else "model and checkpoint do not match"
    why = f" ({worst['note']})" if worst["note"] else ""
    return (
        f"{what}: the first stage that leaves its tolerance is `{stage['name']}`, at {worst['name']}: "
        f"error {error}, tolerance {worst['tolerance']:g}{why}"
    )


def _describe_stage(stage: StageResult) -> dict[str, Any]:
    return {
        "name": stage.name,
        "passed": stage.passed,
        "worst": _describe_measure(stage.worst),
        "measures": [_describe_measure(measure) for measure in stage.measures],
    }


def _describe_measure(measure: Measure) -> dict[str, Any]:
    return {
        "name": measure.name,
        "picture": measure.picture if measure.picture >= 0 else None,
        "shape": list(measure.shape),
        "absolute": _finite(measure.absolute),
        "error": _finite(measure.error),
        "tolerance": measure.tolerance,
        "passed": measure.passed,
        "note": measure.note,
    }


def _describe_picture(picture: Picture) -> dict[str, Any]:
    pixels = np.ascontiguousarray(picture.pixels)
    return {
        "name": picture.path.name if picture.path else picture.name,
        "height": picture.pixels.shape[0],
        "width": picture.pixels.shape[1],
        "sha256": sha256_of_file(picture.path) if picture.path else None,
        "pixels_sha256": hashlib.sha256(pixels.tobytes()).hexdigest(),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _read_versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "machine": platform.platform()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
