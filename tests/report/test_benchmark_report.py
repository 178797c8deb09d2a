"""report.json and report.html of a benchmark that is made up: what follows from what, and that the page says the same."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from benchmark_cases import IMAGES, WHEN, make_benchmark, make_case_report

from roiline.core.errors import DataError
from roiline.core.files import write_json
from roiline.infer.benchmark_probe import NetworkCost, PartCost
from roiline.report.benchmark.document import find, make_report, read_report
from roiline.report.benchmark.figures import Axis, Figure, log_ticks, plain_number, round_ticks
from roiline.report.benchmark.headline import find_doubts, judge
from roiline.report.benchmark.page import Thumbnail, make_page
from roiline.report.benchmark.running import describe_outcome, find_report
from roiline.report.benchmark.writing import Numbers, round_number

_NUMBER = re.compile(r'<span data-value="([^"]+)"(?: data-factor="([^"]+)")?>([^<]+)</span>')


@pytest.fixture(scope="module")
def report() -> dict:
    return make_case_report()


def test_the_headline_follows_from_the_typical_round(report: dict) -> None:
    head, typical = report["headline"], report["rounds"][report["typical"]]
    assert head["images_per_s"] == head["images"] / head["wall_s"] == typical["images"] / typical["wall_s"]
    assert head["engine_images_per_s"] == head["engine_images"] / head["engine_seconds"]
    assert head["share_of_engine"] == pytest.approx(head["images_per_s"] / head["engine_images_per_s"])
    rates = report["spread"]["images_per_s"]
    assert rates["least"] < rates["median"] == head["images_per_s"] < rates["most"]


def test_a_baseline_gives_a_speed_up(report: dict) -> None:
    baseline = report["baseline"]
    assert baseline["speed_up"] == pytest.approx(report["headline"]["images_per_s"] / baseline["images_per_s"])
    assert baseline["speed_up"] > 1.3
    assert baseline["not_alike"] == []
    assert make_case_report(baseline=False)["baseline"] is None


def test_every_bar_adds_up_to_the_wall_time_of_its_lanes(report: dict) -> None:
    rows = {row["lanes"]: row for row in report["time_of_image"]}
    assert list(rows) == ["main", "readers", "writer"]
    for row in rows.values():
        assert sum(segment["ms"] for segment in row["segments"]) == pytest.approx(row["total_ms"])
        assert row["total_ms"] == pytest.approx(1000 * report["headline"]["wall_s"] * row["count"] / IMAGES)


def test_the_engines_time_is_divided_as_its_profile_was(report: dict) -> None:
    (main, *_) = report["time_of_image"]
    parts = {segment["stage"]: segment["ms"] for segment in main["segments"]}
    infer = report["spread"]["stages_ms"]["main"]["infer"]["median"]
    assert parts["trunk"] + parts["proposals"] + parts["heads"] == pytest.approx(infer)
    assert parts["trunk"] / parts["heads"] == pytest.approx(30 / 12)
    without = make_report(replace(make_benchmark(), network=None))
    (main, *_) = without["time_of_image"]
    assert {segment["stage"]: segment["ms"] for segment in main["segments"]}["network"] == pytest.approx(infer)


def test_the_roofline_is_the_lower_of_both_ceilings(report: dict) -> None:
    trunk, proposals, heads = report["network"]["parts"]
    assert trunk["gflops"] == pytest.approx(1.9 / 0.030)
    assert trunk["flop_per_byte"] == pytest.approx(1.9e9 / 1.1e8)
    assert trunk["ceiling_gflops"] == 95.0  # 17 operations a byte times 18.5 GB/s is far above
    assert heads["ceiling_gflops"] == 95.0
    assert proposals["share_of_ceiling"] == pytest.approx(3.1e8 / 0.008 / 1e9 / 95.0)
    assert heads["flop_per_byte"] * 18.5 > 95
    bound = replace(make_benchmark(), ceilings=replace(make_benchmark().ceilings, copy_gb_per_s=2.0))
    assert make_report(bound)["network"]["parts"][2]["ceiling_gflops"] == pytest.approx(2.0 * 5.5e8 / 6.4e7)


def test_every_number_on_the_page_is_the_reports(report: dict) -> None:
    found = _NUMBER.findall(make_page(report))
    assert len(found) > 120
    for path, factor, text in found:
        value = float(find(report, html.unescape(path))) * float(factor or 1)
        decimals = len(text.partition(".")[2])
        assert text == f"{value:,.{decimals}f}", path


def test_the_page_needs_nothing_else_and_is_the_same_twice(report: dict) -> None:
    page = make_page(report, [Thumbnail(b"\xff\xd8", 4, 3, "a <b>.jpg")])
    assert page == make_page(report, [Thumbnail(b"\xff\xd8", 4, 3, "a <b>.jpg")])
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert "url(" not in page
    assert "http" not in page
    assert "a &lt;b&gt;.jpg" in page
    assert "pets &amp; &lt;friends&gt;" in page


def test_what_was_not_measured_is_said(report: dict) -> None:
    bare = replace(make_benchmark(rounds=1, sweep=False), network=None, ceilings=None, latencies=None)
    page = make_page(make_report(bare))
    for text in ("--sweep", "no such profile", "No picture has a result", "how much rounds differ is not known"):
        assert text in page
    assert "Over the baseline" not in page


def test_failed_pictures_are_in_sight() -> None:
    measured = make_benchmark()
    failed = tuple(replace(one, failed=3) for one in measured.rounds)
    report = make_report(replace(measured, rounds=failed))
    assert "3</span> pictures failed" in make_page(report)
    assert "3 pictures failed" in describe_outcome(report)


@pytest.mark.parametrize(
    ("engine", "pictures", "end", "words"),
    [
        (0.95, 0.02, 0.01, "the engine is the limit"),
        (0.6, 0.35, 0.0, "mostly for pictures"),
        (0.8, 0.01, 0.15, "too few pictures"),
        (0.8, 0.01, 0.04, "around the engine"),
    ],
)
def test_the_verdict_follows_the_model_lanes(engine: float, pictures: float, end: float, words: str) -> None:
    shares = {"engine_share": engine, "wait_share": pictures + end, "picture_share": pictures, "end_share": end}
    assert words in judge({"model_lanes": [shares, shares]})


def test_a_report_is_read_back_and_others_are_refused(report: dict, tmp_path: Path) -> None:
    write_json(tmp_path / "report.json", report)
    assert read_report(find_report(tmp_path)) == json.loads((tmp_path / "report.json").read_text())
    write_json(tmp_path / "other.json", {"format_version": 1, "kind": "something"})
    with pytest.raises(DataError, match="roiline benchmark"):
        read_report(tmp_path / "other.json")
    with pytest.raises(DataError, match="no such file"):
        read_report(tmp_path / "absent.json")


def test_numbers_for_people() -> None:
    assert [round_number(value) for value in (1234.5, 12.34, 1.234, 0.01234, 3.0, 0.0)] == [
        "1,234",
        "12.3",
        "1.23",
        "0.0123",
        "3",
        "0",
    ]
    assert Numbers({"a": [{"b": 0.256}]}).percent("a.0.b") == '<span data-value="a.0.b" data-factor="100">26</span> %'


def test_ticks_are_round() -> None:
    assert round_ticks(0, 100, 5) == [0, 25, 50, 75, 100]
    assert round_ticks(3.2, 9.1, 6) == [4, 6, 8]
    assert round_ticks(5, 5) == [5]
    assert log_ticks(0.9, 120) == [1, 2, 5, 10, 20, 50, 100]
    assert log_ticks(0.5, 5e4) == [1, 10, 100, 1000, 10000]
    assert [plain_number(value) for value in (0.5, 2500, 1e7, 2e-5)] == ["0.5", "2,500", "10,000,000", "0.00002"]


def test_a_figure_places_values_between_its_edges() -> None:
    figure = Figure("t", Axis(0, 10, "x"), Axis(1, 100, "y", logarithmic=True), width=200, height=100)
    assert figure.at(0, 1) == (56, 56)
    assert figure.at(10, 100) == (184, 28)
    assert figure.at(5, 10) == (120, 42)
    figure.bar(0, 5, 10, "fill-accent", "a < b")
    assert "a &lt; b" in figure.finish("wide")


def test_what_the_driver_says_of_gpus_is_shown() -> None:
    gpu = {
        "device": "gpu 0",
        "uuid": "GPU-1",
        "name": "Imaginary",
        "use_percent": {"count": 9, "mean": 83.0, "p50": 90.0, "max": 99.0},
        "memory_mib": {"count": 0, "total": 81559},
    }
    measured = make_benchmark()
    page = make_page(make_report(replace(measured, rounds=tuple(replace(one, gpus=(gpu,)) for one in measured.rounds))))
    assert "gpu 0 (Imaginary)" in page
    assert ">83</span>" in page
    assert ">81,559</span>" in page
    assert "By the driver" not in make_page(make_report(measured))


def test_a_busy_machine_and_restless_rounds_are_said() -> None:
    report = make_case_report()
    assert find_doubts(report) == []
    report["machine"]["load_at_start"] = [5.0, 1.0, 1.0]
    report["spread"]["images_per_s"]["most"] = 1.5 * report["spread"]["images_per_s"]["least"]
    report["headline"]["share_of_engine"] = 1.2
    busy, faster, restless = find_doubts(report)
    assert "which cannot be" in faster
    assert "load 5.0 on 8 usable cores" in busy
    assert "50 % faster" in restless
    assert restless in make_page(report)


def test_a_part_without_matrix_layers_has_no_place_under_the_roof() -> None:
    nothing = PartCost(0.0, 0.0, 0.0)
    parts = dict.fromkeys(("trunk", "proposals", "heads"), nothing)
    page = make_page(make_report(replace(make_benchmark(), network=NetworkCost(parts, 1))))
    assert "matrix product 95 GFLOP/s" in page
    assert 'class="dot fill-trunk"' not in page


def test_a_baseline_of_something_else_is_said() -> None:
    before = make_case_report(baseline=False, workers=1)
    report = make_report(make_benchmark(workers=2), baseline=before)
    assert report["baseline"]["not_alike"] == ["devices"]
    assert "measured with something else (devices)" in make_page(report)


def test_the_page_says_what_workers_without_readers_do() -> None:
    benchmark = make_benchmark()
    alone = replace(benchmark, subject=replace(benchmark.subject, readers=0))
    pages = [html.unescape(make_page(make_report(one, now=WHEN), thumbnails=())) for one in (benchmark, alone)]
    for text in (
        "work side by side",
        "A pipeline that reads ahead",
        "pictures a worker are on their way",
        "1 reader each",
    ):
        assert [text in page for page in pages] == [True, False], text
    for text in (
        "reads each picture itself",
        "Nothing is read ahead here",
        "No picture is prepared before",
        "no readers each",
    ):
        assert [text in page for page in pages] == [False, True], text
