"""What users of such systems met with pictures and datasets, kind by kind, and the behaviour that they get here.

A test's name says what was met; its docstring says what should happen. What is tested in more detail elsewhere is tested here once,
from the outside.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from click.testing import CliRunner
from run_support import CLASSES, make_request, write_model, write_pictures

from roiline.cli import main
from roiline.core.errors import EXIT_DONE, EXIT_SOME_FAILED, DataError
from roiline.infer.manifest import read_manifest
from roiline.infer.model import open_predictor
from roiline.infer.pictures import decode_picture, read_size
from roiline.infer.request import DataSource, RunSummary
from roiline.infer.run import run_dataset

PICTURE = np.random.default_rng(2).integers(0, 256, (40, 60, 3), np.uint8)
ABORTING = "aborts.png"


# --- support ---------------------------------------------------------------------------------------------------------


def open_with_aborting_decoder(model: Path, *args: Any, **options: Any) -> Any:
    """A predictor in whose process the decoder aborts on one file, as a fault in a C library does: Python sees no exception."""
    from roiline.infer import reading

    decode = reading.decode_picture

    def decode_or_abort(data: bytes, *, where: Any, **rest: Any) -> Any:
        if Path(where).name == ABORTING:
            os.abort()
        return decode(data, where=where, **rest)

    reading.decode_picture = decode_or_abort  # type: ignore[assignment]
    return open_predictor(model, *args, **options)


def write_dataset(root: Path, images: list[dict[str, Any]], **content: Any) -> Path:
    """Writes `data.json` and the pictures that it names, where they are not there yet."""
    folder = root / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    write_model(root / "model.onnx")
    for row in images:
        path = folder / row["file_name"]
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(cv2.imencode(path.suffix, PICTURE)[1].tobytes())
    categories = [{"id": 10 * place, "name": name} for place, name in enumerate(CLASSES, 1)]
    document = {"images": images, "categories": categories, "annotations": [], **content}
    (folder / "data.json").write_text(json.dumps({key: value for key, value in document.items() if value is not None}))
    return folder / "data.json"


def image(identity: Any, name: str, **changes: Any) -> dict[str, Any]:
    return {"id": identity, "file_name": name, "width": 60, "height": 40, **changes}


def run(root: Path, **changes: Any) -> tuple[RunSummary, dict[Any, str]]:
    """Runs over `data.json`; returns the summary, and why images failed."""
    summary = run_dataset(make_request(root, root / "out", **changes), progress=False)
    failed = json.loads((root / "out" / "failed.json").read_text())["failed"]
    return summary, {one["image_id"]: one["reason"] for one in failed}


def boxes_of(root: Path) -> dict[str, Any]:
    return pickle.loads((root / "out" / "detections.pkl").read_bytes())["all_boxes"]


def peak_mb(code: str) -> tuple[float, str]:
    """Runs code in a process of its own; returns by how many MB its memory grew above its imports, and what it printed."""
    frame = f"""
import cv2, numpy as np
from pathlib import Path
def read_mb(field):
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith(field))
{code}
before = read_mb("VmRSS")
work()
print(read_mb("VmHWM") - before)
"""
    found = subprocess.run([sys.executable, "-c", frame], capture_output=True, text=True, check=True)
    *said, grown = found.stdout.splitlines()
    return float(grown), "\n".join(said)


# --- pictures --------------------------------------------------------------------------------------------------------


def test_unreadable_pictures(tmp_path: Path) -> None:
    """Each is recorded as failed with the reason; the run goes on, and its exit code shows it."""
    names = ["good.png", "empty.jpg", "text.jpg", "missing.jpg", "folder.jpg"]
    write_dataset(tmp_path, [image(place, name) for place, name in enumerate(names)])
    pictures = tmp_path / "pictures"
    (pictures / "empty.jpg").write_bytes(b"")
    (pictures / "text.jpg").write_text("this is no picture\n")
    (pictures / "missing.jpg").unlink()
    (pictures / "folder.jpg").unlink()
    (pictures / "folder.jpg").mkdir()
    summary, failed = run(tmp_path)
    assert (summary.exit_code, summary.images, summary.failed) == (EXIT_SOME_FAILED, 5, 4)
    expected = {1: "zero bytes", 2: "plain text", 3: "No such file", 4: "it is a folder"}
    assert failed.keys() == expected.keys()
    assert all(expected[key] in reason for key, reason in failed.items())


def test_a_decoder_that_aborts_its_process(tmp_path: Path) -> None:
    """The death is tied to the picture, which is tried once more and set aside; the others have results."""
    names = ["a.png", ABORTING, "b.png", "c.png"]
    write_dataset(tmp_path, [image(place, name) for place, name in enumerate(names)])
    summary, failed = run(tmp_path, workers=2, predictor="test_pains_pictures:open_with_aborting_decoder")
    assert (summary.exit_code, summary.failed) == (EXIT_SOME_FAILED, 1)
    assert list(failed) == [1]
    assert "SIGABRT" in failed[1]


def test_tolerant_reading_that_gives_black_areas(tmp_path: Path) -> None:
    """The row of a picture that is not whole is marked."""
    write_dataset(tmp_path, [image(1, "a.jpg"), image(2, "b.jpg")])
    path = tmp_path / "pictures" / "b.jpg"
    path.write_bytes(path.read_bytes()[:-900])
    summary, failed = run(tmp_path, truncated="accept")
    assert (summary.exit_code, failed) == (EXIT_DONE, {})
    (degraded,) = json.loads((tmp_path / "out" / "failed.json").read_text())["degraded"]
    assert degraded["image_id"] == 2
    assert "cut short" in degraded["reason"]


@pytest.mark.parametrize("exif", ["apply", "ignore"])
@pytest.mark.parametrize("size", [(60, 40), (40, 60)])
def test_photos_that_are_turned_by_exif(tmp_path: Path, exif: Any, size: tuple[int, int]) -> None:
    """The policy stands in the results, and boxes are in the pixels of the size that the json states, whichever way round."""
    write_dataset(tmp_path, [image(1, "turned.jpg", width=size[0], height=size[1])])
    jpeg = cv2.imencode(".jpg", PICTURE)[1].tobytes()
    payload = b"Exif\0\0II*\0" + struct.pack("<IHHHIHHI", 8, 1, 0x112, 3, 1, 6, 0, 0)
    turned = jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload + jpeg[2:]
    (tmp_path / "pictures" / "turned.jpg").write_bytes(turned)
    summary, failed = run(tmp_path, exif=exif)
    assert (summary.exit_code, failed) == (EXIT_DONE, {})
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert manifest.settings.exif == exif
    cells = [np.array(cell[0]) for cell in boxes_of(tmp_path)[1:]]
    boxes = np.concatenate(cells)
    assert len(boxes)
    assert (boxes[:, [0, 2]] <= size[0] - 1).all()
    assert (boxes[:, [1, 3]] <= size[1] - 1).all()


RULES: dict[str, tuple[Any, str, list[int]]] = {
    "gray": (np.full((2, 2), 7, np.uint8), ".png", [7, 7, 7]),
    "colour": (np.full((2, 2, 3), (1, 2, 3), np.uint8), ".png", [1, 2, 3]),
    "alpha": (np.full((2, 2, 4), (1, 2, 3, 0), np.uint8), ".png", [1, 2, 3]),
    "16-bit gray": (np.full((2, 2), 0x12FF, np.uint16), ".png", [0x12, 0x12, 0x12]),
    "16-bit colour": (np.full((2, 2, 3), (0x0180, 0x02FF, 0x0300), np.uint16), ".png", [1, 2, 3]),
    "16-bit TIFF": (np.full((2, 2, 3), (0x0180, 0x02FF, 0x0300), np.uint16), ".tiff", [1, 3, 3]),
}


@pytest.mark.parametrize("kind", RULES)
def test_pictures_beyond_8_bit_colour(kind: str) -> None:
    """One rule: 16 bits lose their lower byte (colour TIFF rounds), alpha is dropped and not blended, gray is repeated, BGR."""
    picture, suffix, pixel = RULES[kind]
    decoded = decode_picture(cv2.imencode(suffix, picture)[1].tobytes(), where=kind)
    assert (decoded.dtype, decoded.shape) == (np.uint8, (2, 2, 3))
    assert (decoded == pixel).all()


def png(width: int, height: int, colour: int, *chunks: tuple[bytes, bytes]) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*one) for one in ((b"IHDR", header), *chunks, (b"IEND", b"")))


def test_palettes() -> None:
    """An index becomes its colour; transparent entries keep theirs."""
    colours = (b"PLTE", bytes([10, 20, 30, 40, 50, 60]))
    rows = (b"IDAT", zlib.compress(b"\0\0\1"))
    for extra in ((), ((b"tRNS", b"\0"),)):
        decoded = decode_picture(png(2, 1, 3, colours, *extra, rows), where="palette")
        assert decoded.tolist() == [[[30, 20, 10], [60, 50, 40]]]


def test_a_header_that_claims_a_huge_picture(tmp_path: Path) -> None:
    """It is refused by its header with a message and no memory; the limit is an option."""
    bomb = png(30000, 30000, 2, (b"IDAT", zlib.compress(bytes(9))))
    write_dataset(tmp_path, [image(1, "a.png"), image(2, "bomb.png", width=-1, height=-1)])
    (tmp_path / "pictures" / "bomb.png").write_bytes(bomb)
    summary, failed = run(tmp_path)
    assert (summary.exit_code, list(failed)) == (EXIT_SOME_FAILED, [2])
    assert "30000 x 30000, 900000000 pixels; the limit is 268435456" in failed[2]
    grown, said = peak_mb(
        f"""
from roiline.core.errors import DataError
from roiline.infer.pictures import decode_picture, open_cv2
open_cv2()
data = Path({str(tmp_path / "pictures" / "bomb.png")!r}).read_bytes()
def work():
    try:
        decode_picture(data, where="bomb.png")
    except DataError as error:
        print(error)
"""
    )
    assert "--max-pixels" in said
    assert grown < 20


def test_a_real_picture_of_54_megapixels(tmp_path: Path) -> None:
    """It is read as any other, its size without decoding it; with a lower limit it is refused."""
    path = tmp_path / "large.jpg"
    cv2.imwrite(str(path), cv2.resize(PICTURE, (9000, 6000), interpolation=cv2.INTER_NEAREST))
    grown, _ = peak_mb(
        f"""
from roiline.infer.pictures import read_size
def work():
    assert read_size(Path({str(path)!r})) == (6000, 9000)
"""
    )
    assert grown < 20
    with pytest.raises(DataError, match=r"9000 x 6000, 54000000 pixels; the limit is 50000000"):
        decode_picture(path.read_bytes(), where=path, max_pixels=50_000_000)
    assert decode_picture(path.read_bytes(), where=path).shape == (6000, 9000, 3)


@pytest.mark.parametrize(("convention", "extent"), [("detectron", (1200, 900)), ("detectron2", (700, 600))])
def test_300_masks_in_a_picture_of_12_megapixels(convention: str, extent: tuple[int, int]) -> None:
    """They are pasted and encoded one by one: far from the 17 GiB that all of them would take as floats."""
    grown, said = peak_mb(
        f"""
import resource
from roiline.ops.mask_paste import paste_masks
random = np.random.default_rng(0)
masks = np.kron(random.random((300, 4, 4), np.float32), np.ones((7, 7), np.float32))
low = random.uniform(0, 1, (300, 2)) * (1500, 1000)
boxes = np.concatenate([low, low + {extent}], axis=1).astype(np.float32)
paste_masks(masks[:1], boxes[:1] / 100, 3000, 4000, threshold=0.5)
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
def work():
    pasted = paste_masks(masks, boxes, 3000, 4000, threshold=0.5, convention={convention!r})
    print(len(pasted), min(map(len, pasted)) > 20)
"""
    )
    assert said == "300 True"
    assert grown < 400


# --- datasets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [{"width": -1, "height": -1}, {"width": 0}, {"height": None}])
def test_sizes_that_an_annotation_tool_left_out(tmp_path: Path, size: dict[str, Any]) -> None:
    """The true size comes from the file's header, and how many were put right is reported."""
    rows = [image(1, "a.png", **size), image(2, "b.png"), image(3, "c.png", **size)]
    write_dataset(tmp_path, rows)
    summary, failed = run(tmp_path)
    assert (summary.exit_code, failed) == (EXIT_DONE, {})
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert manifest.dataset.problems == (
        "image without a valid width and height (taken from the picture file): 2 (1, 3)",
    )


def test_category_ids_with_gaps(tmp_path: Path) -> None:
    """Results carry the json's ids, run.json has them beside the classes."""
    categories = [{"id": identity, "name": name} for identity, name in zip((3, 44, 90), CLASSES, strict=True)]
    write_dataset(tmp_path, [image(k, f"{k}.png") for k in range(4)], categories=categories)
    run(tmp_path)
    records = json.loads((tmp_path / "out" / "bbox_results.json").read_text())
    assert {one["category_id"] for one in records} <= {3, 44, 90}
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert [(one.category_id, one.name) for one in manifest.classes] == [(3, "cat"), (44, "dog"), (90, "fox")]
    for label, cells in enumerate(boxes_of(tmp_path)[1:]):
        assert sum(map(len, cells)) == sum(one["category_id"] == (3, 44, 90)[label] for one in records)


def test_two_files_that_list_the_same_categories_in_another_order(tmp_path: Path) -> None:
    """Classes are matched by name, so both give the same; other names stop the run with both lists."""
    images = [image(k, f"{k}.png") for k in range(4)]
    found = []
    for folder, order in (("a", (0, 1, 2)), ("b", (2, 0, 1))):
        categories = [{"id": 10 * (k + 1), "name": CLASSES[k]} for k in order]
        write_dataset(tmp_path / folder, images, categories=categories)
        run(tmp_path / folder)
        records = json.loads((tmp_path / folder / "out" / "bbox_results.json").read_text())
        found.append(sorted(records, key=lambda one: (one["image_id"], one["category_id"], -one["score"])))
    assert found[0] == found[1] != []
    write_dataset(tmp_path / "c", images, categories=[{"id": k, "name": f"thing {k}"} for k in range(3)])
    with pytest.raises(DataError, match=r"(?s)cat .*thing 0 .*not in the dataset: cat, dog, fox"):
        run(tmp_path / "c")


def test_pictures_without_boxes(tmp_path: Path) -> None:
    """Ten pictures in, three of them annotated, give ten rows."""
    annotations = [
        {"id": k, "image_id": k, "category_id": 10, "bbox": [1, 1, 9, 9], "area": 81, "iscrowd": 0} for k in (2, 5, 7)
    ]
    write_dataset(tmp_path, [image(k, f"{k}.png") for k in range(10)], annotations=annotations)
    summary, _ = run(tmp_path)
    assert summary.images == 10
    assert [len(cells) for cells in boxes_of(tmp_path)] == [10] * 4


def test_a_file_without_annotations(tmp_path: Path) -> None:
    """A run needs pictures and categories alone."""
    write_dataset(tmp_path, [image(k, f"{k}.png") for k in range(3)], annotations=None)
    summary, failed = run(tmp_path)
    assert (summary.exit_code, summary.images, failed) == (EXIT_DONE, 3, {})


def test_ids_of_two_types_ids_used_twice_and_their_list(tmp_path: Path) -> None:
    """One check tells all of them; what can be read without loss is read."""
    rows = [image(1, "a.png"), image(1, "b.png"), image("7", "c.png"), image(2, "d.png"), image(2, "e.png")]
    data = write_dataset(tmp_path, rows)
    with pytest.raises(DataError) as told:
        run(tmp_path)
    assert "image id that is used twice: 2 (1, 2)" in str(told.value)
    assert "image ids are integers and text in one file: 1 (1 and '7')" in str(told.value)
    annotation = {"id": 1, "image_id": "3", "category_id": 10, "bbox": [1, 1, 9, 9], "area": 81, "iscrowd": 0}
    write_dataset(tmp_path, [image(3, "a.png")], annotations=[annotation])
    assert run(tmp_path)[0].exit_code == EXIT_DONE
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert manifest.dataset.problems[0].startswith("annotation whose image_id is written in another type")
    assert data.exists()


def test_names_of_any_letters_and_ids_that_are_text(tmp_path: Path) -> None:
    """Sub-folders, spaces and letters of any script are names as others; text ids come out as they went in."""
    names = ["plain.png", "sub folder/größe 1.png", "кот/鳥.png", "a'b\"c.png"]
    write_dataset(tmp_path, [image(f"id {name}", name) for name in names])
    summary, failed = run(tmp_path, formats=("detectron", "coco"))
    assert (summary.exit_code, failed) == (EXIT_DONE, {})
    records = json.loads((tmp_path / "out" / "bbox_results.json").read_text())
    assert {one["image_id"] for one in records} <= {f"id {name}" for name in names}
    assert len({one["image_id"] for one in records}) > 1
    folder = replace(make_request(tmp_path, tmp_path / "list"), data=(DataSource(str(tmp_path / "list.txt")),))
    (tmp_path / "list.txt").write_text("\n".join(f"pictures/{name}" for name in names))
    assert run_dataset(folder, progress=False).images == len(names)
    assert all(read_size(tmp_path / "pictures" / name) == (40, 60) for name in names)


def test_the_order_of_runs_and_files_does_not_change_results(tmp_path: Path) -> None:
    """Rows are in ascending order of ids, whatever the order of the json and the number of workers."""
    write_model(tmp_path / "model.onnx")
    write_pictures(tmp_path / "pictures", 9)
    run(tmp_path, formats=("detectron",))
    expected = (tmp_path / "out" / "detections.pkl").read_bytes()
    data = tmp_path / "pictures" / "data.json"
    document = json.loads(data.read_text())
    data.write_text(json.dumps({**document, "images": document["images"][::-1]}))
    request = make_request(tmp_path, tmp_path / "again", formats=("detectron",), workers=2)
    run_dataset(request, progress=False)
    assert (tmp_path / "again" / "detections.pkl").read_bytes() == expected


def test_the_rules_are_options_of_the_commands(tmp_path: Path) -> None:
    """A picture beyond the limit fails, one that is cut short is used, and the exit code and failed.json say so."""
    data = write_dataset(tmp_path, [image(1, "a.png"), image(2, "b.jpg"), image(3, "c.png", width=-1)])
    cut = tmp_path / "pictures" / "b.jpg"
    cut.write_bytes(cut.read_bytes()[:-900])
    cv2.imwrite(str(tmp_path / "pictures" / "c.png"), np.zeros((50, 60, 3), np.uint8))
    options = ["--engine", "fake", "--max-pixels", "2400", "--truncated", "accept", "--format", "detectron2"]
    arguments = ["proposals", tmp_path / "model.onnx", data, "-o", tmp_path / "out", *options]
    found = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert found.exit_code == EXIT_SOME_FAILED, found.output
    assert "1 pictures are not whole and were used as far as they go" in found.output
    content = json.loads((tmp_path / "out" / "failed.json").read_text())
    assert [[one["image_id"] for one in content[key]] for key in ("failed", "degraded")] == [[3], [2]]
    assert pickle.loads((tmp_path / "out" / "box_proposals.pkl").read_bytes())["ids"] == [1, 2, 3]
