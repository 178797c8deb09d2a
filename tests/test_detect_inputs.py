"""`roiline detect` on what people have, and `draw` of what came out: pictures, a glob, a list at standard input, a video."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import pytest
from click.testing import CliRunner

from roiline.cli import main
from roiline.infer import folders


def run(*arguments: object, code: int = 0, given: str | None = None) -> str:
    """Runs the command line in this process; what was read from standard input before is forgotten."""
    folders._read_stdin.cache_clear()
    answer = CliRunner().invoke(main, [str(argument) for argument in arguments], input=given)
    assert answer.exit_code == code, answer.output
    return answer.output


def results(out: Path) -> list[dict]:
    return json.loads((out / "bbox_results.json").read_text())


@pytest.fixture(scope="module")
def pictures(digits: Path) -> list[Path]:
    return sorted((digits / "pictures").iterdir())[:3]


@pytest.fixture(scope="module")
def expected(digits: Path, digits_model: Path, pictures: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list:
    """What a run over a folder with the same pictures finds."""
    folder = tmp_path_factory.mktemp("folder")
    for picture in pictures:
        (folder / picture.name).write_bytes(picture.read_bytes())
    run("detect", digits_model, folder, "-o", folder / "out", "--cpu-workers", 1)
    return results(folder / "out")


def test_pictures_are_one_dataset_and_are_drawn_as_one(
    digits_model: Path, pictures: list[Path], expected: list, tmp_path: Path
) -> None:
    run("detect", digits_model, *pictures, "-o", tmp_path / "out")
    assert results(tmp_path / "out") == expected
    run("draw", tmp_path / "out", *pictures, "-o", tmp_path / "drawn", "--sheet")
    drawn = sorted(path.name for path in (tmp_path / "drawn").iterdir())
    assert drawn == ["contact_sheet.jpg", *(picture.name for picture in pictures)]
    said = run("detect", digits_model, *pictures, tmp_path / "absent.jpg", "-o", tmp_path / "more", code=4)
    assert "1 of 4 pictures failed" in said


def test_a_list_at_standard_input(digits_model: Path, pictures: list[Path], expected: list, tmp_path: Path) -> None:
    lines = "\n".join(map(str, pictures))
    run("detect", digits_model, "-", "-o", tmp_path / "out", given=lines)
    found = [{**one, "image_id": Path(one["image_id"]).name} for one in results(tmp_path / "out")]
    assert found == expected
    run("draw", tmp_path / "out", "-", "-o", tmp_path / "drawn", given=lines)
    assert len(list((tmp_path / "drawn").iterdir())) == 3
    run("detect", digits_model, "-", "-o", tmp_path / "none", given="", code=3)


def test_a_video_in_and_a_drawn_video_out(digits_model: Path, pictures: list[Path], tmp_path: Path) -> None:
    video = tmp_path / "clip.avi"
    frames = [cv2.resize(cv2.imread(str(picture)), (320, 288)) for picture in pictures]
    writer = cv2.VideoWriter(str(video), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*"MJPG"), 2.0, (320, 288))
    for frame in frames:
        writer.write(frame)
    writer.release()
    run("detect", digits_model, video, "-o", tmp_path / "out", "--cpu-workers", 2)
    assert {one["image_id"] for one in results(tmp_path / "out")} == {0, 1, 2}
    run("draw", tmp_path / "out", video, "-o", tmp_path / "drawn")
    run("draw", tmp_path / "out", video, "-o", tmp_path / "gallery", "--gallery")
    assert [path.name for path in (tmp_path / "drawn").iterdir()] == ["clip.avi"]
    capture = cv2.VideoCapture(str(tmp_path / "drawn" / "clip.avi"), cv2.CAP_FFMPEG)
    for frame in frames:
        fits, drawn = capture.read()
        assert fits
        assert drawn.shape == frame.shape
        assert 0.002 < (abs(drawn.astype(int) - frame).max(axis=2) > 60).mean() < 0.3
    assert not capture.read()[0]
    assert {path.name for path in (tmp_path / "gallery" / "pictures").iterdir()} == {f"{n:06d}.jpg" for n in range(3)}
    text = run("inspect", video, "--json")
    assert '"video"' in text
    assert '"320 x 288"' in text


def test_options_that_exclude_each_other_are_refused(digits_model: Path, pictures: list[Path], tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("[]")
    for options in (("--gallery", "--sheet"), ("--gallery", "--heat"), ("--against", tmp_path / "empty.json")):
        run("draw", tmp_path / "empty.json", pictures[0], "-o", tmp_path / "drawn", *options, code=2)
    run("draw", tmp_path / "empty.json", pictures[0], pictures[0].parent, "-o", tmp_path / "drawn", code=2)
    assert not (tmp_path / "drawn").exists()
