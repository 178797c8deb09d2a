"""`roiline inspect`: what a file is and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from roiline.commands.logged import PATH, LoggedCommand
from roiline.core.errors import EXIT_DONE, EXIT_INPUT


@click.command("inspect", cls=LoggedCommand)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--images", type=PATH, metavar="DIR", help="Picture folder of a COCO json.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def inspect_command(paths: tuple[str, ...], images: Path | None, as_json: bool) -> None:
    """Say what weights, configurations, models, datasets and results are, and everything that is wrong with them.

    Weights and configurations that are named together are compared.
    """
    from roiline.checks.inspection import inspect_paths

    report = inspect_paths(paths, images=images)
    click.echo(json.dumps(report.to_plain(), indent=1, ensure_ascii=False) if as_json else report.to_text())
    click.get_current_context().exit(EXIT_DONE if report.ok else EXIT_INPUT)
