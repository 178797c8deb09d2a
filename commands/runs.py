"""`roiline proposals`, `detect`, `track`, `merge`, `status`: runs over datasets."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from roiline.commands.logged import LOG, PATH, LoggedCommand
from roiline.commands.options import PARTNER_OPTIONS, RUN_OPTIONS, THRESHOLD_OPTIONS, read_class_names


@click.command("proposals", cls=LoggedCommand)
@RUN_OPTIONS
def proposals_command(**options: Any) -> None:
    """Make proposals over datasets: a COCO json, a VOC root, a folder, a glob, a text list (- reads one from standard input), pictures,
    a video, whose frames are the pictures.
    """
    _run("proposals", options)


@click.command("detect", cls=LoggedCommand)
@RUN_OPTIONS
@THRESHOLD_OPTIONS
@PARTNER_OPTIONS
def detect_command(**options: Any) -> None:
    """Make detections over datasets: a COCO json, a VOC root, a folder, a glob, a text list (- reads one from standard input), pictures,
    a video, whose frames are the pictures.
    """
    _run("detections", options)


def request_of_command(task: Any, options: dict[str, Any]) -> Any:
    """Returns the run that a command's options ask for."""
    from roiline.infer.python_api import request_from_options
    from roiline.infer.request import RunOverrides

    changed = ("score_thresh", "nms_thresh", "max_dets", "scale", "max_size")
    kept = (
        "engine",
        "batch_size",
        "batch_mode",
        "exif",
        "max_pixels",
        "truncated",
        "formats",
        "id_range",
        "limit",
        "fresh",
        "image_timeout_s",
        "gpus",
        "cpu_workers",
        "cluster",
    )
    classes = options["classes"]
    return request_from_options(
        options["model"],
        options["data"],
        options["out"],
        task=task,
        images=options["images"],
        splits=options["split"],
        overrides=RunOverrides(**{name: options.get(name) for name in changed}),
        class_names=None if classes is None else read_class_names(classes),
        **{name: options[name] for name in kept},
        **{name: options[name] for name in ("proposals", "proposals_from", "others") if name in options},
    )


def _run(task: Any, options: dict[str, Any]) -> None:
    from roiline.infer.run import run_dataset

    request = request_of_command(task, options)
    if options["dry_run"]:
        from roiline.infer.dry_run import describe_run

        click.echo(describe_run(request))
        return
    summary = run_dataset(request, progress=LOG.isEnabledFor(logging.INFO))
    for file in summary.files:
        click.echo(str(file))
    if summary.failed:
        LOG.warning("%d of %d pictures failed; failed.json names them and why", summary.failed, summary.images)
    if summary.degraded:
        LOG.warning(
            "%d pictures are not whole and were used as far as they go; failed.json names them", summary.degraded
        )
    click.get_current_context().exit(summary.exit_code)


@click.command("track", cls=LoggedCommand)
@click.argument("model", type=PATH)
@click.argument("pairs", type=PATH)
@click.option("-o", "--output", "out", type=PATH, required=True, metavar="OUT", help="Folder of the results.")
@click.option("--device", default="cpu", show_default=True, metavar="NAME", help="cpu, cuda or cuda:N.")
@click.option("--engine", default="auto", show_default=True, metavar="NAME", help="What runs the model.")
@THRESHOLD_OPTIONS
def track_command(model: Path, pairs: Path, out: Path, device: str, engine: str, **changed: Any) -> None:
    """Find detections again in the next picture: PAIRS is a text file with two picture paths a line."""
    from roiline.infer.devices import device_from_text
    from roiline.infer.request import RunOverrides
    from roiline.infer.tracking import track_pairs

    overrides = RunOverrides(**changed)
    summary = track_pairs(model, pairs, out, device=device_from_text(device), engine=engine, overrides=overrides)
    for file in summary.files:
        click.echo(str(file))
    if summary.failed:
        LOG.warning("%d of %d pairs failed; the file names them and why", summary.failed, summary.images)
    click.get_current_context().exit(summary.exit_code)


@click.command("merge", cls=LoggedCommand)
@click.argument("outs", nargs=-1, required=True, type=PATH)
@click.option("-o", "--output", "out", type=PATH, required=True, metavar="OUT", help="Folder of the joined results.")
@click.option("--format", "formats", multiple=True, metavar="NAME", help="Result format; may be given several times.")
def merge_command(outs: tuple[Path, ...], out: Path, formats: tuple[str, ...]) -> None:
    """Join runs over ranges of one dataset into the results of one run."""
    from roiline.infer.outputs import merge_outputs

    summary = merge_outputs(outs, out, formats=formats)
    for file in summary.files:
        click.echo(str(file))
    click.get_current_context().exit(summary.exit_code)


@click.command("status", cls=LoggedCommand)
@click.argument("out", type=PATH)
def status_command(out: Path) -> None:
    """Say what a run has done, what is left, and when it will end; also while it goes on."""
    from roiline.infer.status import describe_status, read_status

    click.echo(describe_status(read_status(out)))
