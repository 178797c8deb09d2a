"""`roiline export`: one ONNX file of a checkpoint and its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from roiline.commands.logged import CONTEXT, LOG, PATH, LoggedCommand
from roiline.commands.options import options, read_class_names
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
)


@export.command("detectron", cls=LoggedCommand)
@click.option("--cfg", type=PATH, required=True, metavar="CFG.yaml", help="The model's configuration.")
@click.option("--weights", type=PATH, required=True, metavar="W.pkl", help="The trained weights.")
@SET_OPTION
@EXPORT_OPTIONS
def export_detectron_command(cfg: Path, weights: Path, out: Path, classes: str | None, **options: Any) -> None:
    """Export a model of Detectron or of a fork of it, with Detectron's conventions."""
    from roiline.export.detectron.exporter import export_detectron

    options["class_names"] = _name_classes(classes, out)
    _show_export(export_detectron(cfg, weights, out, **options))


@export.command("caffe2", cls=LoggedCommand)
@click.option("--net", type=PATH, required=True, metavar="model.pb", help="The net.")
@click.option("--init", type=PATH, required=True, metavar="model_init.pb", help="The net that fills its weights.")
@click.option("--cfg", type=PATH, metavar="CFG.yaml", help="Means and scale, for runs over datasets.")
@SET_OPTION
@CLASSES_OPTION
@OUTPUT_OPTION
def export_caffe2_command(
    net: Path, init: Path, cfg: Path | None, overrides: Any, classes: str | None, out: Path
) -> None:
    """Export a Caffe2 NetDef pair; inputs and outputs of the model are the net's own, by name."""
    from roiline.export.caffe2.exporter import export_caffe2

    names = _name_classes(classes, out)
    report = export_caffe2(net, init, out, cfg=cfg, overrides=overrides, class_names=names)
    _show_export(report)


@export.command("detectron2", cls=LoggedCommand)
@click.option("--cfg", type=PATH, required=True, metavar="CFG.yaml", help="The model's configuration.")
@click.option("--weights", type=PATH, required=True, metavar="W.pkl|W.pth", help="The trained weights.")
@SET_OPTION
@EXPORT_OPTIONS
def export_detectron2_command(cfg: Path, weights: Path, out: Path, classes: str | None, **options: Any) -> None:
    """Export a detectron2 model, with detectron2's conventions."""
    from roiline.export.detectron2.exporter import export_detectron2

    options["class_names"] = _name_classes(classes, out)
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

    options["class_names"] = _name_classes(classes, out)
    _show_export(export_torchvision(arch, weights, out, **options))


def _show_export(report: Any) -> None:
    for warning in report.warnings:
        LOG.warning("%s", warning)
    for line in report.leftovers:
        LOG.info("%s", line)
    spec = report.spec
    named = "" if spec.class_names_known else " (no names in the checkpoint: give them with --classes)"
    able = " and ".join(spec.tasks) or "the net's own inputs and outputs"
    click.echo(f"{report.path}: {spec.architecture}, {able}, {len(spec.class_names)} classes{named}")


def _name_classes(classes: str | None, out: Path) -> tuple[str, ...] | None:
    if classes is None:
        return None
    check_output(out, [classes])
    return read_class_names(classes)
