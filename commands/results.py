"""`roiline evaluate`, `draw`: what people look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from roiline.commands.logged import LOG, PATH, LoggedCommand
from roiline.commands.options import DATA_OPTIONS, read_class_names
from roiline.core.errors import UsageError


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


def _load_one(
    results: Path, data: tuple[str, ...], images: tuple[Path, ...], splits: tuple[str, ...], classes: str | None
) -> Any:
    """Loads the one dataset, pictures needed, that is to be drawn."""
    datasets = _load_datasets(results, data, images, splits, classes, need_pictures=True)
    if len(datasets) > 1:
        raise UsageError(f"expected one dataset to draw, got {len(datasets)}; draw them one by one")
    return datasets[0]


@click.command("evaluate", cls=LoggedCommand)
@click.argument("results", type=PATH)
@click.argument("data", nargs=-1, required=True)
@DATA_OPTIONS
@click.option("-o", "--output", "out", type=PATH, metavar="OUT", help="Where to write metrics.json (default: RESULTS).")
@click.option("--per-class", is_flag=True, help="Every metric of each class; recall of proposals class by class.")
@click.option("--voc", is_flag=True, help="Pascal VOC's two average precisions too; a VOC root always has them.")
@click.option(
    "--recall-limits",
    default="100,1000",
    show_default=True,
    metavar="N,N,..",
    help="How many proposals a picture count for recall.",
)
@click.option("--log-form", is_flag=True, help="Print what the original program logs instead of tables.")
@click.option("--against", type=PATH, metavar="OTHER", help="Another run over the same pictures, to compare with.")
def evaluate_command(
    results: Path,
    data: tuple[str, ...],
    images: tuple[Path, ...],
    split: tuple[str, ...],
    classes: str | None,
    out: Path | None,
    recall_limits: str,
    **options: Any,
) -> None:
    """Score boxes, masks and keypoints (COCO, Pascal VOC) and proposals (average recall) against a dataset's ground truth."""
    from roiline.report.evaluation import EvaluationOptions, evaluate

    limits = _read_limits(recall_limits)
    datasets = _load_datasets(results, data, images, split, classes, need_pictures=False)
    evaluation = evaluate(results, datasets, out=out, options=EvaluationOptions(recall_limits=limits, **options))
    click.echo(evaluation.table)
    if evaluation.file is not None:
        click.echo(str(evaluation.file))


def _read_limits(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError as error:
        raise UsageError(f"--recall-limits {text}: expected numbers, several with commas") from error


@click.command("draw", cls=LoggedCommand)
@click.argument("results", type=PATH)
@click.argument("data", nargs=-1, required=True)
@DATA_OPTIONS
@click.option("-o", "--output", "out", type=PATH, required=True, metavar="DIR", help="Folder of the pictures.")
@click.option("--thresh", type=float, metavar="S", help="Draw what scores at least S (default: 0.7 for detections).")
@click.option("--top", type=int, default=100, show_default=True, metavar="N", help="Proposals a picture at most.")
@click.option("--heat", is_flag=True, help="Draw proposals as a heat of their scores.")
@click.option("--ground-truth", is_flag=True, help="Show the dataset's own objects beside.")
@click.option("--every", is_flag=True, help="Write pictures with nothing to show too.")
@click.option("--sheet", is_flag=True, help="Make contact sheets too.")
@click.option(
    "--gallery",
    is_flag=True,
    help="Make a page to look through instead: it filters by class and score, and shows what differs.",
)
@click.option("--against", type=PATH, metavar="OTHER", help="Another run over the same pictures, for --gallery.")
def draw_command(
    results: Path,
    data: tuple[str, ...],
    images: tuple[Path, ...],
    split: tuple[str, ...],
    classes: str | None,
    out: Path,
    gallery: bool,
    against: Path | None,
    **options: Any,
) -> None:
    """Draw results into pictures; those of a video into a video."""
    from roiline.report.drawn_results import DrawingRequest, draw_results
    from roiline.report.gallery.making import make_gallery
    from roiline.report.results import class_names_of_run

    if gallery and (options["heat"] or options["sheet"]):
        raise UsageError("--gallery is a page; --heat and --sheet are for drawn pictures")
    if against is not None and not gallery:
        raise UsageError(
            "--against is for --gallery; `roiline evaluate --against` and `roiline compare` compare in numbers"
        )
    dataset = _load_one(results, data, images, split, classes)
    names = class_names_of_run(results, None if classes is None else read_class_names(classes)) or ()
    request = DrawingRequest(class_names=names, **options)
    if gallery:
        made = make_gallery(results, dataset, out, request, against=against)
        for image_id, reason in made.failed:
            LOG.warning("%s: %s", image_id, reason)
        click.echo(str(made.page))
        return
    drawing = draw_results(results, dataset, out, request)
    for image_id, reason in drawing.failed:
        LOG.warning("%s: %s", image_id, reason)
    rest = drawing.looked_at - drawing.pictures - len(drawing.failed)
    blank = f"; {rest} without anything to show (see --thresh, --every)" if rest else ""
    click.echo(f"{drawing.pictures} of {drawing.looked_at} pictures in {out}{blank}")
    for file in (*(drawing.files if dataset.kind == "video" else ()), *drawing.sheets):
        click.echo(str(file))
