"""`roiline benchmark` from the command line, on the demo: the files that it leaves, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from roiline.cli import main
from roiline.infer.trace import read_trace
from roiline.report.benchmark.document import read_report


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def benchmark(digits: Path, digits_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The OUT folder of one round over three pictures of the demo, and what was printed."""
    out = tmp_path_factory.mktemp("benchmark") / "out"
    options = ("--repeat", 1, "--limit", 3, "--cpu-workers", 1, "--batch-size", 2)
    data = (digits / "annotations.json", "--images", digits / "pictures")
    return out, run("benchmark", digits_model, *data, "-o", out, *options)


def test_it_leaves_a_page_a_report_and_a_trace(benchmark: tuple[Path, str]) -> None:
    out, printed = benchmark
    report = read_report(out / "report.json")
    assert f"{report['headline']['images_per_s']:.2f} images/s (3 images in" in printed
    assert printed.splitlines()[-3:] == [str(out / name) for name in ("report.html", "report.json", "trace.json")]
    page = (out / "report.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 3
    trace = read_trace(out / "trace.json")
    assert [lane.name for lane in trace.lanes][:1] == ["main"]
    assert trace.wall_s == pytest.approx(report["headline"]["wall_s"])
    assert (out / "run" / "bbox_results.json").is_file()
    trunk, proposals, heads = report["network"]["parts"]
    assert trunk["gflop"] > proposals["gflop"] > heads["gflop"] > 0
    assert min(part["ms"] for part in report["network"]["parts"]) > 0


def test_a_later_one_is_set_against_it(benchmark: tuple[Path, str], tmp_path: Path) -> None:
    from benchmark_cases import make_benchmark

    from roiline.report.benchmark.document import make_report

    before = read_report(benchmark[0] / "report.json")
    report = make_report(make_benchmark(), baseline=before)
    assert report["baseline"]["speed_up"] == report["headline"]["images_per_s"] / before["headline"]["images_per_s"]


def test_what_cannot_be_meant_is_refused_before_anything_runs(digits: Path, digits_model: Path, tmp_path: Path) -> None:
    common = ("benchmark", digits_model, digits / "pictures", "-o", tmp_path / "out", "--cpu-workers", 1)
    assert "--repeat" in run(*common, "--repeat", 0, code=2)
    assert "no such file" in run(*common, "--baseline", tmp_path / "none.json", code=3)
    (tmp_path / "other.json").write_text(json.dumps({"format_version": 1}))
    assert "roiline benchmark" in run(*common, "--baseline", tmp_path / "other.json", code=3)
    assert "1 worker(s)" in run(*common, "--dry-run")
    assert not (tmp_path / "out" / "report.json").exists()
