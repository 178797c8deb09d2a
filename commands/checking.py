"""`roiline inspect`, `verify`: what a file is and what is wrong with it; whether a model is the network of its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from roiline.commands.exporting import SET_OPTION
from roiline.commands.logged import PATH, LoggedCommand
from roiline.core.errors import EXIT_DONE, EXIT_INPUT, ModelError


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


@click.command("verify", cls=LoggedCommand)
@click.argument("model", type=PATH)
@click.option(
    "--cfg", type=PATH, required=True, metavar="CFG.yaml", help="The configuration that it was exported with."
)
@click.option("--weights", type=PATH, required=True, metavar="W", help="The weights that it was exported from.")
@SET_OPTION
@click.option(
    "--image",
    "pictures",
    type=PATH,
    multiple=True,
    metavar="PICTURE",
    help="A picture to compare on; may be given several times. Without one, pictures are made up.",
)
@click.option("--layers", "by_layer", is_flag=True, help="Compare every layer, not only the ends of stages.")
@click.option("--engine", metavar="NAME", help="Another engine to compare with ONNX Runtime.")
@click.option(
    "--built",
    type=PATH,
    multiple=True,
    metavar="MODEL.plan",
    help="An engine that was built from the model, to compare with ONNX Runtime; may be given several times.",
)
@click.option("--gpu", type=int, default=0, show_default=True, metavar="N", help="The GPU that built engines run on.")
@click.option(
    "-o", "--output", "out", type=PATH, metavar="OUT", help="Folder for certificate.json and certificate.html."
)
@click.option("--json", "as_json", is_flag=True, help="Print the certificate as JSON instead of a table.")
def verify_command(as_json: bool, **options: Any) -> None:
    """Compare an exported model with a network computed in numpy straight from its checkpoint, stage by stage.

    Ends with 3 and names the first stage that leaves its tolerance where the model is not the network of the checkpoint.
    """
    from roiline.checks.verify.certificate import describe_failure, describe_verdict
    from roiline.checks.verify.running import VerifyRequest, run_verification

    outcome = run_verification(VerifyRequest(**options))
    certificate = outcome.certificate
    click.echo(json.dumps(certificate, indent=1, ensure_ascii=False) if as_json else describe_verdict(certificate))
    if not as_json:
        for file in outcome.files:
            click.echo(str(file))
    if not certificate["passed"]:
        raise ModelError(f"{options['model']}: {describe_failure(certificate)}")
