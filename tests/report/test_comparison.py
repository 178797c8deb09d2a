"""`roiline compare`: verdicts by the spread of rounds, boxes matched one to one, and every kind of path."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmark_cases import WHEN, make_benchmark
from click.testing import CliRunner
from run_support import make_request, write_model, write_pictures

from roiline.cli import main
from roiline.core.errors import DataError, UsageError
from roiline.core.files import write_json
from roiline.infer.run import run_dataset
from roiline.report.benchmark.document import make_report
from roiline.report.comparison.boxes import LooseBoxes, compare_boxes, match_boxes
from roiline.report.comparison.comparing import compare_paths, describe_comparison, find_kind
from roiline.report.comparison.loose_results import read_loose_results
from roiline.report.comparison.measures import Spread, compare_reports, compare_spreads


def loose(*rows: tuple[float, float, float, float, float, int]) -> LooseBoxes:
    """Rows of x1, y1, x2, y2, score, class."""
    table = np.array(rows, np.float64).reshape(-1, 6)
    return LooseBoxes(table[:, :4].astype(np.float32), table[:, 4].astype(np.float32), table[:, 5].astype(np.int64))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Two runs over the same pictures and one over fewer."""
    root = tmp_path_factory.mktemp("root")
    write_model(root / "model.onnx")
    write_pictures(root / "pictures", 7)
    outs = (root / "a", root / "b", root / "c")
    for out, limit in zip(outs, (None, None, 5), strict=True):
        assert run_dataset(make_request(root, out, limit=limit), progress=False).exit_code == 0
    return outs


# --- measures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (Spread(10, 9, 11, 3), Spread(12, 11.5, 13, 3), "beyond"),
        (Spread(12, 11.5, 13, 3), Spread(10, 9, 11, 3), "beyond"),
        (Spread(10, 9, 11, 3), Spread(11, 10.5, 12, 3), "within"),
        (Spread(10, 9, 11, 3), Spread(11, 11, 12, 3), "within"),
        (Spread(10, 10, 10, 1), Spread(20, 19, 21, 3), "unknown"),
    ],
)
def test_ranges_without_a_common_value_are_beyond_the_spread(a: Spread, b: Spread, verdict: str) -> None:
    found = compare_spreads("rate", "images/s", a, b)
    assert found.verdict == verdict
    assert found.ratio == b.median / a.median


def test_a_measure_of_nothing_has_no_ratio() -> None:
    assert compare_spreads("x", "ms", Spread(0, 0, 0, 2), Spread(1, 1, 1, 2)).ratio is None


def test_reports_say_what_was_not_the_same() -> None:
    fast, slow = make_report(make_benchmark(), now=WHEN), make_report(make_benchmark(infer_s=0.09), now=WHEN)
    slow["subject"]["batch_size"] = 2
    slow["subject"]["engine"]["threads"] = "2"
    subjects, measures = compare_reports(slow, fast)
    assert [(one.name, one.a, one.b) for one in subjects] == [
        ("engine.threads", "2", "4"),
        ("batch_size", 2, 1),
    ]
    by_name = {one.name: one for one in measures}
    assert by_name["end to end"].verdict == "beyond"
    assert by_name["end to end"].ratio > 1.3
    assert by_name["engine alone"].verdict == "within"
    assert by_name["main: infer"].ratio == pytest.approx(0.05 / 0.09)
    assert {"readers: decode", "writer: write"} <= set(by_name)


# --- boxes ------------------------------------------------------------------------------------------------------------


def test_boxes_are_matched_one_to_one_by_overlap_within_their_class() -> None:
    a = loose((0, 0, 9, 9, 0.9, 1), (0, 0, 9, 8, 0.8, 1), (50, 50, 59, 59, 0.7, 2))
    b = loose((0, 0, 9, 8, 0.5, 1), (50, 50, 59, 59, 0.7, 1), (0, 0, 9, 9, 0.9, 1))
    found = match_boxes(a, b)
    assert sorted(zip(found.a.tolist(), found.b.tolist(), strict=True)) == [(0, 2), (1, 0)]
    assert found.ious.tolist() == [1.0, 1.0]


def test_repeated_boxes_find_the_one_of_their_score() -> None:
    a = loose((0, 0, 9, 9, 0.9, 1), (0, 0, 9, 9, 0.2, 1))
    b = loose((0, 0, 9, 9, 0.2, 1), (0, 0, 9, 9, 0.9, 1))
    found = match_boxes(a, b)
    assert sorted(zip(found.a.tolist(), found.b.tolist(), strict=True)) == [(0, 1), (1, 0)]


def test_boxes_that_overlap_too_little_have_no_partner() -> None:
    assert len(match_boxes(loose((0, 0, 9, 9, 1, 1)), loose((0, 0, 9, 3, 1, 1))).a) == 0
    assert len(match_boxes(loose(), loose((0, 0, 9, 9, 1, 1))).a) == 0


def test_differences_are_counted_and_the_worst_pictures_come_first() -> None:
    same = loose((0, 0, 9, 9, 0.5, 1))
    a = {1: same, 2: loose((0, 0, 19, 19, 0.9, 1)), 3: loose((0, 0, 9, 9, 0.8, 1), (30, 30, 39, 39, 0.4, 1)), "x": same}
    b = {1: same, 2: loose((0, 0, 19, 20, 0.7, 1)), 3: loose((0, 0, 9, 9, 0.8, 1)), 4: loose()}
    found = compare_boxes(a, b)
    assert (found.images, found.images_only_a, found.images_only_b, found.images_equal) == (5, 1, 1, 2)
    assert (found.boxes_a, found.boxes_b, found.matched) == (5, 3, 3)
    assert found.scores.most == pytest.approx(0.2)
    assert found.scores.mean == pytest.approx(0.2 / 3)
    assert found.corners_px.most == 1.0
    assert found.least_iou == pytest.approx(400 / 420)
    assert [one.image_id for one in found.most_different] == [3, "x", 2]
    assert not found.equal


def test_nothing_against_nothing_is_equal() -> None:
    found = compare_boxes({}, {})
    assert found.equal
    assert found.least_iou == 1.0


# --- paths ------------------------------------------------------------------------------------------------------------


def test_two_equal_runs_have_no_difference_but_their_times(runs: tuple[Path, Path, Path]) -> None:
    a, b, _ = runs
    found = compare_paths(a, b)
    assert (found.kind, found.subjects) == ("runs", ())
    assert found.boxes.equal
    assert found.boxes.images == 7
    assert {one.verdict for one in found.measures} == {"unknown"}
    assert {"end to end", "decode", "infer"} <= {one.name for one in found.measures}
    assert "no difference" in describe_comparison(found)


def test_a_run_over_fewer_pictures_is_named(runs: tuple[Path, Path, Path]) -> None:
    a, _, c = runs
    found = compare_paths(a, c)
    assert found.boxes.images_only_a == 2
    assert "id_range" in {one.name for one in found.subjects}
    text = describe_comparison(found)
    assert "2 only in A" in text
    assert "images that differ most" in text


def test_every_form_of_a_runs_results_is_the_same_results(runs: tuple[Path, Path, Path]) -> None:
    out, *_ = runs
    coco = compare_paths(out, out / "bbox_results.json")
    assert coco.kind == "results"
    assert coco.boxes.matched == coco.boxes.boxes_a == coco.boxes.boxes_b
    assert coco.boxes.corners_px.most < 1e-3
    boxes = read_loose_results(out / "detections.pkl")
    assert sum(len(one.boxes) for one in boxes.values()) == coco.boxes.boxes_a
    (places, shards) = ([*boxes], [*read_loose_results(out)])
    assert places == list(range(7))
    for place, image in zip(places, sorted(shards), strict=True):
        assert len(boxes[place].boxes) == len(read_loose_results(out)[image].boxes)


def test_proposal_files_are_compared(tmp_path: Path) -> None:
    content = {"boxes": [np.array([[0, 0, 9, 9]], np.float32)], "scores": [np.array([0.5], np.float32)], "ids": [3]}
    for name, score in (("a.pkl", 0.5), ("b.pkl", 0.25)):
        content["scores"] = [np.array([score], np.float32)]
        (tmp_path / name).write_bytes(pickle.dumps(content, protocol=2))
    found = compare_paths(tmp_path / "a.pkl", tmp_path / "b.pkl")
    assert found.boxes.scores.most == 0.25
    assert found.boxes.matched == 1


def test_reports_and_their_folders(tmp_path: Path) -> None:
    for name, infer_s in (("a", 0.05), ("b", 0.09)):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "report.json", make_report(make_benchmark(infer_s=infer_s), now=WHEN))
    found = compare_paths(tmp_path / "a", tmp_path / "b" / "report.json")
    assert (found.kind, found.boxes) == ("reports", None)
    line = next(line for line in describe_comparison(found).splitlines() if line.startswith("end to end"))
    assert line.split()[-1] == "yes"


def test_unlike_things_are_not_compared(runs: tuple[Path, Path, Path], tmp_path: Path) -> None:
    write_json(tmp_path / "report.json", make_report(make_benchmark(), now=WHEN))
    assert find_kind(tmp_path) == "reports"
    with pytest.raises(UsageError, match="not of one kind"):
        compare_paths(tmp_path, runs[0])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[{}]",
        b"{",
        b'[{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3], "score": 0.5}]',
        b'[{"image_id": [1], "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}]',
        b'[{"image_id": 1, "category_id": null, "bbox": [1, 2, 3, 4], "score": 0.5}]',
        pickle.dumps({"all_boxes": 3}, protocol=2),
        pickle.dumps({"all_boxes": [[], [[[1, 2]]]]}, protocol=2),
        pickle.dumps({"all_boxes": [[], [["text"]]]}, protocol=2),
        pickle.dumps([1], protocol=2),
    ],
)
def test_damaged_results_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "results.bin"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"results\.bin"):
        read_loose_results(path)


@pytest.mark.parametrize(
    "path", ["headline.images_per_s", "subject.model", "machine", "spread.images_per_s.rounds", "spread.stages_ms"]
)
@pytest.mark.parametrize("value", [None, "text", -1, [3], float("nan")])
def test_damaged_reports_are_refused_by_name(tmp_path: Path, path: str, value: object) -> None:
    report = json.loads(json.dumps(make_report(make_benchmark(), now=WHEN)))
    *parents, last = path.split(".")
    place = report
    for name in parents:
        place = place[name]
    place[last] = value
    (tmp_path / "report.json").write_text(json.dumps(report))
    if (last, value) in (("model", "text"), ("rounds", [3])):
        return
    with pytest.raises(DataError, match=r"report\.json"):
        compare_paths(tmp_path, tmp_path)


def test_absent_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        compare_paths(tmp_path / "a", tmp_path / "b")


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_tables_or_json(runs: tuple[Path, Path, Path]) -> None:
    a, b, _ = map(str, runs)
    table = CliRunner().invoke(main, ["compare", a, b])
    assert table.exit_code == 0, table.output
    assert "beyond the spread" in table.output
    plain = CliRunner().invoke(main, ["compare", a, b, "--json"])
    content = json.loads(plain.stdout)
    assert (content["format_version"], content["kind"]) == (1, "runs")
    assert content["boxes"]["matched"] == content["boxes"]["boxes_a"]
    assert CliRunner().invoke(main, ["compare", a, f"{a}-none"]).exit_code == 3


def test_boxes_of_other_categories_are_other_boxes() -> None:
    a = loose((0, 0, 9, 9, 0.5, 1))
    b = replace(a, classes=np.array([2]))
    assert compare_boxes({1: a}, {1: b}).matched == 0


def test_nothing_matched_says_nothing_of_matched_boxes(tmp_path: Path) -> None:
    for name, left in (("a.json", 0.0), ("b.json", 500.0)):
        box = {"image_id": 1, "category_id": 1, "bbox": [left, 0.0, 10.0, 10.0], "score": 0.5}
        (tmp_path / name).write_text(json.dumps([box]))
    found = CliRunner().invoke(main, ["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert "0 matched" in found.output
    assert "on average" not in found.output
