"""Inspecting built engines: what the passport says, and whether the engine file is the one that it was written for."""

from __future__ import annotations

from pathlib import Path

from roiline.checks.findings import Inspected, Inspection, failed
from roiline.checks.models import describe_spec
from roiline.core.errors import ModelError
from roiline.engines.tensorrt.passport import check_engine_file, read_passport

KIND = "TensorRT engine"


def inspect_engine(path: Path) -> Inspected:
    """Says what an engine is, for which machine and shapes it was built, and what its gates found."""
    try:
        passport = read_passport(path)
        check_engine_file(path, passport)
    except ModelError as error:
        return Inspected(failed(path, KIND, error))
    machine = passport.machine
    facts = {
        **describe_spec(passport.spec),
        "bytes": passport.engine_bytes,
        "TensorRT": machine.tensorrt,
        "CUDA": machine.cuda,
        "GPU": f"{machine.gpu} (compute capability {machine.compute_capability})",
        "profiles": [
            f"{low} to {high}, tuned for {usual}"
            for profile in passport.profiles
            for low, usual, high in [profile.shapes["data"]]
        ],
        "layers": [f"{one.layers} {one.kind}: asked {one.asked}, built {one.built}" for one in passport.precision],
        "plugins": sorted(passport.plugins),
        "gates": [f"{name}: {found}" for name, found in passport.gates.items()],
    }
    skipped = [name for name, found in passport.gates.items() if found == "skipped"]
    notes = [f"gates that were skipped when it was built: {', '.join(skipped)}"] if skipped else []
    return Inspected(Inspection(str(path), KIND, facts, tuple(notes)), passport.spec)
