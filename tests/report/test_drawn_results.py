"""What lies on the disk beside single pictures: contact sheets, a drawn video, pictures beside their ground truth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from roiline.core.errors import DataError
from roiline.infer.datasets import load_dataset
from roiline.infer.roidb import Dataset
from roiline.infer.video import frame_path, read_frame, read_rate
from roiline.report.contact_sheet import lay_out_sheet
from roiline.report.drawn_results import DrawingRequest, draw_results


def record(image_id: int, score: float = 0.9) -> dict[str, object]:
    return {"image_id": image_id, "category_id": 1, "bbox": [10, 30, 40, 40], "score": score}


def write(folder: Path, records: list[dict[str, object]]) -> Path:
    file = folder / "bbox_results.json"
    file.write_text(json.dumps(records))
    return file


@pytest.mark.parametrize(
    ("name", "codec", "size"), [("clip.avi", "MJPG", (240, 320)), ("clip.mp4", "mp4v", (240, 320))]
)
def test_a_video_is_drawn_into_a_video_with_every_frame(
    tmp_path: Path, name: str, codec: str, size: tuple[int, int]
) -> None:
    height, width = size
    writer = cv2.VideoWriter(
        str(tmp_path / name), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*codec), 12.5, (width, height)
    )
    for _ in range(6):
        writer.write(np.full((height, width, 3), 120, np.uint8))
    writer.release()
    dataset = load_dataset(tmp_path / name)
    drawing = draw_results(write(tmp_path, [record(2)]), dataset, tmp_path / "drawn", DrawingRequest(sheet=True))
    assert drawing.files == (tmp_path / "drawn" / name,)
    assert (drawing.pictures, drawing.failed) == (6, ())
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == [name, "contact_sheet.jpg"]
    again = load_dataset(drawing.files[0])
    assert again.total == 6
    assert read_rate(drawing.files[0]) == pytest.approx(12.5)
    spread = [float(np.ptp(read_frame(frame_path(drawing.files[0], number)))) for number in range(6)]
    assert spread[2] > 60
    assert max(spread[0], spread[1]) < 20


def test_a_range_of_a_video_gives_that_part(tmp_path: Path) -> None:
    writer = cv2.VideoWriter(str(tmp_path / "c.avi"), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*"MJPG"), 10, (333, 241))
    for _ in range(6):
        writer.write(np.full((241, 333, 3), 120, np.uint8))
    writer.release()
    dataset = load_dataset(tmp_path / "c.avi", id_range=(2, 5))
    drawing = draw_results(write(tmp_path, []), dataset, tmp_path / "drawn", DrawingRequest())
    assert load_dataset(drawing.files[0]).total == 3


def test_contact_sheets_hold_every_picture(tmp_path: Path, dataset: Dataset) -> None:
    entry = dataset.entries[0]
    many = replace(dataset, entries=tuple(replace(entry, image_id=number) for number in range(50)), total=50)
    file = write(tmp_path, [{**record(number), "category_id": 30} for number in range(50)])
    drawing = draw_results(file, many, tmp_path / "drawn", DrawingRequest(sheet=True))
    assert [path.name for path in drawing.sheets] == ["contact_sheet.jpg", "contact_sheet_2.jpg"]
    assert len(drawing.files) == 50
    first, second = (cv2.imread(str(path)).shape for path in drawing.sheets)
    assert first[0] > second[0]


def test_a_sheet_keeps_its_cells_apart() -> None:
    cells = [
        (f"picture {shade}", np.full((60 + shade % 7, 100, 3), (shade, 0, 0), np.uint8)) for shade in (60, 130, 200)
    ]
    sheet = lay_out_sheet("three", cells)
    for shade in (60, 130, 200):
        rows, columns = np.nonzero((sheet == (shade, 0, 0)).all(axis=2))
        inner = sheet[rows.min() + 5 : rows.min() + 55, columns.min() + 5 : columns.min() + 95]
        assert (inner == (shade, 0, 0)).all()


def test_a_picture_called_like_a_sheet_gets_another_name(tmp_path: Path, dataset: Dataset) -> None:
    path = dataset.entries[0].path.rename(dataset.root / "contact_sheet.png")
    entries = tuple(replace(dataset.entries[0], path=path, image_id=4 + number) for number in range(49))
    named = replace(dataset, entries=entries, total=49)
    file = write(tmp_path, [{**record(4), "category_id": 30}])
    drawing = draw_results(file, named, tmp_path / "drawn", DrawingRequest(sheet=True))
    assert [path.name for path in (*drawing.files, *drawing.sheets)] == ["contact_sheet_3.jpg", "contact_sheet.jpg"]


def test_masks_and_keypoints_of_the_ground_truth_are_shown(tmp_path: Path, dataset: Dataset) -> None:
    assert dataset.annotation_file is not None
    content = json.loads(dataset.annotation_file.read_text())
    plain = draw_results(write(tmp_path, []), dataset, tmp_path / "plain", DrawingRequest(ground_truth=True))
    assert [path.name for path in plain.files] == ["p4.jpg", "p9.jpg"]
    content["annotations"][0] |= {"segmentation": [[10, 10, 30, 10, 30, 30, 10, 30]]}
    content["annotations"][1] |= {"keypoints": [45, 25, 2, 60, 40, 0], "num_keypoints": 1}
    content["annotations"][2] |= {"segmentation": {"size": [100, 120], "counts": [6000, 60, 5940]}}
    (tmp_path / "more.json").write_text(json.dumps(content))
    more = load_dataset(tmp_path / "more.json", images=dataset.root)
    drawn = draw_results(write(tmp_path, []), more, tmp_path / "more", DrawingRequest(ground_truth=True))
    for before, after in zip(plain.files, drawn.files, strict=True):
        assert before.read_bytes() != after.read_bytes()


def test_nothing_that_can_be_drawn_is_an_error(tmp_path: Path, dataset: Dataset) -> None:
    for entry in dataset.entries:
        entry.path.write_bytes(b"no picture")
    with pytest.raises(DataError, match="none of the 1 pictures"):
        draw_results(write(tmp_path, [{**record(4), "category_id": 30}]), dataset, tmp_path / "drawn", DrawingRequest())


def test_pictures_without_anything_are_written_on_demand(tmp_path: Path, dataset: Dataset) -> None:
    file = write(tmp_path, [{**record(4), "category_id": 30}])
    drawing = draw_results(file, dataset, tmp_path / "drawn", DrawingRequest(every=True))
    assert [path.name for path in drawing.files] == ["p4.jpg", "p9.jpg", "p12.jpg"]
