"""`roiline build`: a TensorRT engine of a model file, with its passport."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from roiline.commands.logged import PATH, LoggedCommand
from roiline.core.errors import UsageError


@click.command("build", cls=LoggedCommand)
@click.argument("model", type=PATH, metavar="MODEL.onnx")
@click.option("-o", "--output", "out", type=PATH, required=True, metavar="MODEL.plan", help="The engine to write.")
@click.option(
    "--task", type=click.Choice(["proposals", "detections"]), help="What the engine is to do; by default all."
)
@click.option("--for", "data", metavar="DATA", help="Plan shapes for this dataset, and try the engine on its pictures.")
@click.option("--images", type=PATH, metavar="DIR", help="Picture folder of a COCO json.")
@click.option("--split", metavar="NAME", help="Split of a VOC root.")
@click.option(
    "--shapes", metavar="SHAPES", help="Network input shapes: HEIGHTxWIDTH or SMALLEST-LARGEST, several with commas."
)
@click.option(
    "--batch-sizes",
    default="1",
    show_default=True,
    metavar="N,N,...",
    help="Batch sizes to tune for; smaller ones run too.",
)
@click.option("--workspace", "workspace_mb", type=int, metavar="MB", help="Scratch memory of a layer at most.")
@click.option("--tf32", is_flag=True, help="Allow TF32: faster, and no longer in agreement with other engines.")
@click.option("--timing-cache", type=PATH, metavar="FILE", help="Keep what was measured, for faster builds.")
@click.option("--version-compatible", is_flag=True, help="Make an engine that later TensorRT 11 versions run.")
@click.option("--hardware-compatible", is_flag=True, help="Make an engine that runs on other GPUs too.")
@click.option("--rebuild", is_flag=True, help="Build anew, whatever engine is there.")
@click.option("--skip-gate", "skip_gates", multiple=True, metavar="NAME", help="Do not let this check decide.")
@click.option("--device", type=int, default=0, show_default=True, metavar="N", help="GPU to build on and for.")
def build_command(model: Path, batch_sizes: str, workspace_mb: int | None, **options: Any) -> None:
    """Build a TensorRT engine and write its passport MODEL.plan.json beside it.

    The precision is the model's. An engine runs on the kind of GPU that it was built on. It is tried against ONNX Runtime before it is
    kept.
    """
    from roiline.engines.tensorrt.settings import DEFAULT_WORKSPACE_MB, BuildSettings
    from roiline.infer.engine_build import BuildRequest, build_plan

    settings = BuildSettings(
        workspace_mb=DEFAULT_WORKSPACE_MB if workspace_mb is None else workspace_mb,
        **{name: options.pop(name) for name in ("tf32", "version_compatible", "hardware_compatible")},
    )
    report = build_plan(BuildRequest(model=model, batch_sizes=_read_numbers(batch_sizes), settings=settings, **options))
    passport = report.passport
    state = "is up to date" if report.up_to_date else f"built, {passport.engine_bytes / 1e6:.1f} MB"
    click.echo(f"{report.path}: {state}; {passport.machine.gpu}, TensorRT {passport.machine.tensorrt}")
    for gate, found in passport.gates.items():
        click.echo(f"  gate {gate}: {found}")


def _read_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"--batch-sizes {text}: expected numbers, several with commas") from error
