"""`roiline benchmark`, `compare`: how fast, and what differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from roiline.commands.logged import PATH, LoggedCommand
from roiline.commands.options import PARTNER_OPTIONS, RUN_OPTIONS, THRESHOLD_OPTIONS


@click.command("benchmark", cls=LoggedCommand)
@RUN_OPTIONS
@THRESHOLD_OPTIONS
@PARTNER_OPTIONS
@click.option(
    "--task",
    type=click.Choice(["proposals", "detections"]),
    help="What the model is to do; by default detections where it makes any.",
)
@click.option("--repeat", "rounds", type=int, default=3, show_default=True, metavar="N", help="Rounds to measure.")
@click.option("--sweep", is_flag=True, help="Try other numbers of workers and other batch sizes too, one round each.")
@click.option(
    "--baseline", type=PATH, metavar="REPORT", help="An earlier report.json, or its folder, to compare the rate with."
)
def benchmark_command(rounds: int, sweep: bool, baseline: Path | None, task: Any, **options: Any) -> None:
    """Measure throughput over datasets and write report.html, report.json and trace.json into OUT."""
    from roiline.commands.runs import request_of_command
    from roiline.engines.model_file import read_spec
    from roiline.infer.benchmark import BenchmarkRequest
    from roiline.report.benchmark.running import describe_outcome, run_benchmark

    if task is None:
        task = "proposals" if read_spec(options["model"]).tasks == ("proposals",) else "detections"
    request = request_of_command(task, options)
    if options["dry_run"]:
        from roiline.infer.dry_run import describe_run

        click.echo(describe_run(request))
        return
    outcome = run_benchmark(BenchmarkRequest(request, rounds, sweep), baseline=baseline)
    click.echo(describe_outcome(outcome.report))
    for file in outcome.files:
        click.echo(str(file))


@click.command("compare", cls=LoggedCommand)
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def compare_command(a: Path, b: Path, as_json: bool) -> None:
    """Say what differs between two benchmark reports, two runs (OUT folders) or two result files."""
    from roiline.report.comparison.comparing import compare_paths, describe_comparison

    found = compare_paths(a, b)
    click.echo(json.dumps(found.to_plain(), indent=1) if as_json else describe_comparison(found))
