"""`roiline export`: one ONNX file of a checkpoint and its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from roiline.commands.logged import CONTEXT, LOG, PATH, LoggedCommand
from roiline.commands.options import options, read_class_names
from roiline.core.errors import UsageError
from roiline.core.files import check_output


@click.group(context_settings=CONTEXT)
def export() -> None:
    """Make one ONNX file of a checkpoint and its configuration."""


CLASSES_OPTION = click.option(
    "--classes",
    metavar="NAMES",
    help="Class names in class order, without background: NAME,NAME,... or a file with a name a line.",
)
SET_OPTION = click.option(
    "--set",
    "overrides",
    nargs=2,
    multiple=True,
    metavar="KEY VALUE",
    help="Set a configuration key; may be given several times.",
)
OUTPUT_OPTION = click.option(
    "-o", "--output", "out", type=PATH, required=True, metavar="MODEL.onnx", help="The file to write."
)
PRECISION_OPTIONS = options(
    click.option(
        "--precision",
        type=click.Choice(["fp32", "fp16", "bf16", "int8"]),
        default="fp32",
        show_default=True,
        help="Type of the layers; what is numeric stays fp32. int8 needs --calibrate.",
    ),
    click.option(
        "--calibrate",
        metavar="DATA",
        help="Dataset on which int8 measures its ranges, and on which int8 and fp16 are compared with fp32.",
    ),
    click.option("--images", type=PATH, metavar="DIR", help="Picture folder of a COCO json given with --calibrate."),
    click.option("--split", metavar="NAME", help="Split of a VOC root given with --calibrate."),
    click.option(
        "--calibrate-proposals",
        type=PATH,
        metavar="FILE.pkl",
        help="Proposals for the pictures of --calibrate, for a model that makes none itself.",
    ),
    click.option(
        "--calibrate-limit",
        type=int,
        default=100,
        show_default=True,
        metavar="N",
        help="Pictures to calibrate on at most, spread evenly over the dataset.",
    ),
)
EXPORT_OPTIONS = options(
    OUTPUT_OPTION,
    click.option(
        "--task",
        type=click.Choice(["proposals", "detections"]),
        help="What the model is to do; by default all that it can.",
    ),
    CLASSES_OPTION,
    click.option(
        "--tap",
        "taps",
        multiple=True,
        metavar="BLOB",
        help="Make a blob an output too, by its Caffe2 name; may be given several times.",
    ),
    PRECISION_OPTIONS,
)


@export.command("detectron", cls=LoggedCommand)
@click.option("--cfg", type=PATH, required=True, metavar="CFG.yaml", help="The model's configuration.")
@click.option("--weights", type=PATH, required=True, metavar="W.pkl", help="The trained weights.")
@SET_OPTION
@EXPORT_OPTIONS
def export_detectron_command(cfg: Path, weights: Path, out: Path, classes: str | None, **options: Any) -> None:
    """Export a model of Detectron or of a fork of it, with Detectron's conventions."""
    from roiline.export.detectron.exporter import export_detectron

    options = _calibrate(options) | {"class_names": _name_classes(classes, out)}
    _show_export(export_detectron(cfg, weights, out, **options))


@export.command("caffe2", cls=LoggedCommand)
@click.option("--net", type=PATH, required=True, metavar="model.pb", help="The net.")
@click.option("--init", type=PATH, required=True, metavar="model_init.pb", help="The net that fills its weights.")
@click.option("--cfg", type=PATH, metavar="CFG.yaml", help="Means and scale, for runs over datasets.")
@SET_OPTION
@CLASSES_OPTION
@OUTPUT_OPTION
@PRECISION_OPTIONS
def export_caffe2_command(net: Path, init: Path, out: Path, classes: str | None, **options: Any) -> None:
    """Export a Caffe2 NetDef pair; inputs and outputs of the model are the net's own, by name."""
    from roiline.export.caffe2.exporter import export_caffe2

    options = _calibrate(options) | {"class_names": _name_classes(classes, out)}
    _show_export(export_caffe2(net, init, out, **options))


@export.command("detectron2", cls=LoggedCommand)
@click.option("--cfg", type=PATH, required=True, metavar="CFG.yaml", help="The model's configuration.")
@click.option("--weights", type=PATH, required=True, metavar="W.pkl|W.pth", help="The trained weights.")
@SET_OPTION
@EXPORT_OPTIONS
def export_detectron2_command(cfg: Path, weights: Path, out: Path, classes: str | None, **options: Any) -> None:
    """Export a detectron2 model, with detectron2's conventions."""
    from roiline.export.detectron2.exporter import export_detectron2

    options = _calibrate(options) | {"class_names": _name_classes(classes, out)}
    _show_export(export_detectron2(cfg, weights, out, **options))


@export.command("torchvision", cls=LoggedCommand)
@click.option("--arch", required=True, metavar="NAME", help="The model's constructor, e.g. fasterrcnn_resnet50_fpn.")
@click.option("--weights", type=PATH, required=True, metavar="W.pth", help="The trained weights, or .safetensors.")
@click.option("--num-classes", type=int, metavar="K", help="Number of classes, background included.")
@click.option("--cfg", type=PATH, metavar="FILE.yaml", help="Arguments of the constructor, by torchvision's own names.")
@EXPORT_OPTIONS
def export_torchvision_command(arch: str, weights: Path, out: Path, classes: str | None, **options: Any) -> None:
    """Export a torchvision detection model, with torchvision's conventions."""
    from roiline.export.torchvision.exporter import export_torchvision

    options = _calibrate(options) | {"class_names": _name_classes(classes, out)}
    _show_export(export_torchvision(arch, weights, out, **options))


def _show_export(report: Any) -> None:
    for warning in report.warnings:
        LOG.warning("%s", warning)
    for line in report.leftovers:
        LOG.info("%s", line)
    for note in report.notes:
        LOG.info("%s: %s", report.spec.precision, note)
    spec = report.spec
    named = (
        ""
        if spec.class_names_known or spec.tasks == ("proposals",)
        else " (no names in the checkpoint: give them with --classes)"
    )
    able = " and ".join(spec.tasks) or "the net's own inputs and outputs"
    precision = "" if spec.precision == "fp32" else f", {spec.precision}"
    click.echo(f"{report.path}: {spec.architecture}, {able}, {len(spec.class_names)} classes{precision}{named}")


def _calibrate(options: dict[str, Any]) -> dict[str, Any]:
    """Returns an export's options with those of the calibration joined to one."""
    rest = dict(options)
    source = rest.pop("calibrate")
    names = {"images": "images", "split": "split", "calibrate_proposals": "proposals"}
    given = {field: rest.pop(option) for option, field in names.items()}
    limit = rest.pop("calibrate_limit")
    if source is None:
        unused = [option for option, field in names.items() if given[field] is not None]
        if unused:
            raise UsageError(f"--{unused[0].replace('_', '-')} belongs to --calibrate DATA, which is not given")
        if click.get_current_context().get_parameter_source("calibrate_limit") is not ParameterSource.DEFAULT:
            raise UsageError("--calibrate-limit belongs to --calibrate DATA, which is not given")
        return rest
    from roiline.checks.calibration import DatasetCalibration

    return rest | {"calibration": DatasetCalibration(source, limit=limit, **given)}


def _name_classes(classes: str | None, out: Path) -> tuple[str, ...] | None:
    if classes is None:
        return None
    check_output(out, [classes])
    return read_class_names(classes)
