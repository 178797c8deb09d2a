"""`roiline evaluate`, `draw`: what people look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from roiline.commands.logged import LOG, PATH, LoggedCommand
from roiline.commands.options import DATA_OPTIONS, read_class_names


def _load_datasets(
    results: Path,
    data: tuple[str, ...],
    images: tuple[Path, ...],
    splits: tuple[str, ...],
    classes: str | None,
    *,
    need_pictures: bool,
) -> list[Any]:
    from roiline.infer.datasets import load_dataset
    from roiline.infer.python_api import pair_sources
    from roiline.report.results import class_names_of_run

    names = class_names_of_run(results, None if classes is None else read_class_names(classes))
    return [
        load_dataset(
            source.source,
            images=source.images,
            split=source.split,
            class_names=names,
            need_pictures=need_pictures,
        )
        for source in pair_sources(data, images, splits)
    ]


@click.command("evaluate", cls=LoggedCommand)
@click.argument("results", type=PATH)
@click.argument("data", nargs=-1, required=True)
@DATA_OPTIONS
@click.option("-o", "--output", "out", type=PATH, metavar="OUT", help="Where to write metrics.json (default: RESULTS).")
def evaluate_command(
    results: Path,
    data: tuple[str, ...],
    images: tuple[Path, ...],
    split: tuple[str, ...],
    classes: str | None,
    out: Path | None,
) -> None:
    """Score boxes, masks and keypoints (COCO) and proposals (average recall) against a dataset's ground truth."""
    from roiline.report.evaluation import evaluate

    datasets = _load_datasets(results, data, images, split, classes, need_pictures=False)
    evaluation = evaluate(results, datasets, out=out)
    click.echo(evaluation.table)
    if evaluation.file is not None:
        click.echo(str(evaluation.file))


@click.command("draw", cls=LoggedCommand)
@click.argument("results", type=PATH)
@click.argument("data")
@DATA_OPTIONS
@click.option("-o", "--output", "out", type=PATH, required=True, metavar="DIR", help="Folder of the pictures.")
@click.option("--thresh", type=float, metavar="S", help="Draw what scores at least S (default: 0.7 for detections).")
@click.option("--top", type=int, default=100, show_default=True, metavar="N", help="Proposals a picture at most.")
@click.option("--ground-truth", is_flag=True, help="Draw the dataset's own boxes too, dashed.")
def draw_command(
    results: Path,
    data: str,
    images: tuple[Path, ...],
    split: tuple[str, ...],
    classes: str | None,
    out: Path,
    thresh: float | None,
    top: int,
    ground_truth: bool,
) -> None:
    """Draw results into pictures."""
    from roiline.report.drawing import draw_results
    from roiline.report.results import class_names_of_run

    (dataset,) = _load_datasets(results, (data,), images, split, classes, need_pictures=True)
    names = class_names_of_run(results, None if classes is None else read_class_names(classes)) or ()
    drawing = draw_results(results, dataset, out, thresh=thresh, top=top, ground_truth=ground_truth, class_names=names)
    for image_id, reason in drawing.failed:
        LOG.warning("%s: %s", image_id, reason)
    rest = len(dataset.entries) - len(drawing.files) - len(drawing.failed)
    blank = f"; {rest} have nothing to show (see --thresh)" if rest else ""
    click.echo(f"{len(drawing.files)} of {len(dataset.entries)} pictures in {out}{blank}")
