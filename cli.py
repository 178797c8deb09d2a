"""The command line: every command of `roiline`, put together."""

from __future__ import annotations

import click

from roiline import __version__
from roiline.commands.benchmarking import benchmark_command, compare_command
from roiline.commands.building import build_command
from roiline.commands.checking import inspect_command, verify_command
from roiline.commands.exporting import export
from roiline.commands.logged import CONTEXT
from roiline.commands.results import draw_command, evaluate_command
from roiline.commands.runs import detect_command, merge_command, proposals_command, status_command, track_command

COMMANDS = (
    export,
    build_command,
    proposals_command,
    detect_command,
    track_command,
    merge_command,
    status_command,
    evaluate_command,
    draw_command,
    benchmark_command,
    compare_command,
    inspect_command,
    verify_command,
)


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="roiline")
def main() -> None:
    """Trained R-CNNs over whole datasets: a checkpoint to proposals and detections, on every device of the machine."""


for command in COMMANDS:
    main.add_command(command)


if __name__ == "__main__":
    main()
