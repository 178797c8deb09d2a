"""`roiline benchmark`: measure, then write report.json, report.html and trace.json into OUT."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from roiline.core.files import make_folder, write_durable, write_json
from roiline.infer.benchmark import RUN_FOLDER, BenchmarkRequest, measure_benchmark
from roiline.infer.dataset_run import load_datasets, resolve_exif
from roiline.infer.request import RunRequest
from roiline.infer.run import complete_request, read_fitting_spec
from roiline.infer.trace import TRACE_FILE
from roiline.report.benchmark.document import REPORT_FILE, Report, make_report, read_report
from roiline.report.benchmark.page import Thumbnail, make_page
from roiline.report.benchmark.thumbnails import draw_thumbnails, thumbnail_rules
from roiline.report.results import class_names_of_run

PAGE_FILE = "report.html"


@dataclass(frozen=True, slots=True)
class BenchmarkOutcome:
    """Is a finished benchmark: its report, and the files that were written."""

    report: Report
    files: tuple[Path, ...]


def run_benchmark(asked: BenchmarkRequest, *, baseline: Path | None = None) -> BenchmarkOutcome:
    """Measures and writes the report.

    Raises:
        RoilineError: as `measure_benchmark`; the baseline is no report of a benchmark.
    """
    before = None if baseline is None else read_report(find_report(baseline))
    out = asked.run.out
    make_folder(out)
    measured, trace_file = measure_benchmark(asked)
    report = make_report(measured, baseline=before)
    files = (out / PAGE_FILE, out / REPORT_FILE, out / TRACE_FILE)
    shutil.move(trace_file, files[2])
    page = make_page(report, _draw_pictures(asked.run))
    write_json(files[1], report)
    write_durable(files[0], page.encode())
    return BenchmarkOutcome(report, files)


def find_report(path: Path) -> Path:
    """Returns the report.json that a path means: the file itself, or that of the OUT folder of a benchmark."""
    return path / REPORT_FILE if path.is_dir() else path


def _draw_pictures(request: RunRequest) -> list[Thumbnail]:
    """Returns a few pictures of the first dataset with the results of the last round; none of a model that only classifies."""
    request = replace(complete_request(request), out=request.out / RUN_FOLDER)
    if request.task == "classification":
        return []
    spec = read_fitting_spec(request)
    folder, dataset = load_datasets(request, spec)[0]
    names = tuple(category.name for category in dataset.categories) or class_names_of_run(folder) or ()
    return draw_thumbnails(folder, dataset, thumbnail_rules(names, task=request.task, exif=resolve_exif(request, spec)))


def describe_outcome(report: Report) -> str:
    """Returns the few lines that stand for a report on a terminal."""
    head = report["headline"]
    lines = [
        f"end to end    {head['images_per_s']:.2f} images/s ({head['images']} images in {head['wall_s']:.2f} s)",
        f"engine alone  {head['engine_images_per_s']:.2f} images/s; the run reaches {100 * head['share_of_engine']:.0f} % of it",
    ]
    if report["baseline"] is not None:
        lines.append(
            f"baseline      {report['baseline']['images_per_s']:.2f} images/s: {report['baseline']['speed_up']:.2f} times as fast"
        )
    if head["failed"]:
        lines.append(f"{head['failed']} pictures failed; run/failed.json names them and why")
    return "\n".join(lines)
