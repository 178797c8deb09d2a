"""Damaged JPEG files, which the decoder complains of without a name, are told from their neighbours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from run_support import make_request, result_bytes, write_model, write_pictures

from roiline.core.errors import EXIT_DONE
from roiline.infer.decoder_words import DecoderWords
from roiline.infer.pictures import decode_picture
from roiline.infer.run import run_dataset

SMOOTH = cv2.resize(np.random.default_rng(3).integers(0, 256, (20, 30, 3), np.uint8), (60, 40))


def jpeg(*, damaged: bool) -> bytes:
    data = bytearray(cv2.imencode(".jpg", cv2.resize(SMOOTH, (300, 200)))[1].tobytes())
    if damaged:
        del data[len(data) // 2 : len(data) // 2 + 300]
    return bytes(data)


def test_words_belong_to_the_picture_that_they_are_of(capfd: Any) -> None:
    words = DecoderWords()
    data = [jpeg(damaged=place % 7 == 3) for place in range(40)]
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda one: words.listen(lambda: decode_picture(one, where="x")), data))
    for place, (picture, said) in enumerate(answers):
        assert picture.shape == (200, 300, 3)
        assert (said is not None) == (place % 7 == 3)
        assert said is None or said.startswith("Corrupt JPEG data: ")
    assert capfd.readouterr().err == "", "what is said is in the answers"
    words.close()


def test_other_words_go_where_they_went(capfd: Any) -> None:
    words = DecoderWords()

    def say() -> int:
        os.write(2, b"a library's own warning\nCorrupt JPEG data: 7 extraneous bytes\n")
        return 5

    assert words.listen(say) == (5, "Corrupt JPEG data: 7 extraneous bytes")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "a library's own warning\n" * 2 + "after\n"
    words.close()


def test_errors_pass_and_the_standard_error_comes_back(capfd: Any) -> None:
    words = DecoderWords()
    try:
        words.listen(lambda: 1 // 0)
    except ZeroDivisionError:
        os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"
    words.close()


def test_a_process_without_a_standard_error() -> None:
    code = "from roiline.infer.decoder_words import DecoderWords; w = DecoderWords(); assert w.listen(lambda: 3) == (3, None)"
    command = f'exec 2>&-; exec {sys.executable} -c "{code}"'
    assert subprocess.run(["/bin/sh", "-c", command], check=False).returncode == 0


def test_a_run_marks_the_row_of_a_damaged_picture_and_names_it(tmp_path: Path, capfd: Any) -> None:
    write_model(tmp_path / "model.onnx")
    data = write_pictures(tmp_path / "pictures", 6)
    document = json.loads(data.read_text())
    for row in document["images"]:
        row |= {"file_name": f"{row['id']}.jpg", "width": 300, "height": 200}
        (tmp_path / "pictures" / row["file_name"]).write_bytes(jpeg(damaged=row["id"] in (10, 19)))
    data.write_text(json.dumps(document))
    for out, workers in (("a", 1), ("b", 2)):
        assert (
            run_dataset(make_request(tmp_path, tmp_path / out, workers=workers), progress=False).exit_code == EXIT_DONE
        )
    assert result_bytes(tmp_path / "a") == result_bytes(tmp_path / "b")
    content = json.loads((tmp_path / "a" / "failed.json").read_text())
    assert content["failed"] == []
    assert [one["image_id"] for one in content["degraded"]] == [10, 19]
    assert "damaged inside, the decoder says: Corrupt JPEG data" in content["degraded"][0]["reason"]
    warned = capfd.readouterr().err
    assert f"{tmp_path}/pictures/10.jpg: damaged inside" in warned


def test_what_another_thread_says_last_is_handed_on(capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = DecoderWords()
    redirect = os.dup2

    def say_and_redirect(source: int, target: int) -> None:
        os.write(2, b"late\n")  # by another thread, just before the standard error is changed
        redirect(source, target)

    def say() -> int:
        os.write(2, b"early\n")
        monkeypatch.setattr(os, "dup2", say_and_redirect)
        return 5

    assert words.listen(say) == (5, None)
    monkeypatch.undo()
    assert capfd.readouterr().err == "early\nlate\n"
    words.close()
