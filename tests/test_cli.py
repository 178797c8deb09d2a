"""The commands as people meet them: one clear message and the right exit code for everything that can be wrong."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from shared_data import shared_path

from roiline.cli import main
from roiline.commands.options import read_class_names
from roiline.core.errors import UsageError
from roiline.core.pickles import read_pickle


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


@pytest.fixture
def export(digits, tmp_path):
    """Returns a function that exports the demo model with some options replaced."""

    def call(*extra: object, code: int = 0, cfg=digits / "digits.yaml", weights=digits / "digits.pkl") -> str:
        arguments = ("--cfg", cfg, "--weights", weights, "-o", tmp_path / "model.onnx", *extra)
        return run("export", "detectron", *arguments, code=code)

    return call


def _hostile() -> bytes:
    class Runs:
        def __reduce__(self):
            return os.system, ("touch /never",)

    return pickle.dumps({"blobs": {"conv1_w": Runs()}}, protocol=2)


WEIGHT_FILES = {
    "empty": b"",
    "html": b"<!DOCTYPE html><html>not found</html>",
    "lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    "zip": b"PK\x03\x04" + bytes(64),
    "hostile": _hostile(),
    "no blobs": pickle.dumps({"blobs": {}}, protocol=2),
    "a list": pickle.dumps([1, 2], protocol=2),
    "text": b"conv1_w = 1",
}


@pytest.mark.parametrize("kind", WEIGHT_FILES)
def test_weights_that_are_none(kind, export, tmp_path):
    path = tmp_path / "w.pkl"
    path.write_bytes(WEIGHT_FILES[kind])
    output = export(code=3, weights=path)
    assert str(path) in output
    assert not (tmp_path / "model.onnx").exists()
    if kind == "hostile":
        assert "run" in output
        assert "system" in output


def test_half_a_download(export, digits, tmp_path):
    path = tmp_path / "w.pkl"
    path.write_bytes((digits / "digits.pkl").read_bytes()[:100_000])
    assert str(path) in export(code=3, weights=path)


def test_files_that_are_missing(export, tmp_path):
    assert "gone.yaml" in export(code=3, cfg=tmp_path / "gone.yaml")
    assert "gone.pkl" in export(code=3, weights=tmp_path / "gone.pkl")


@pytest.mark.parametrize(
    "text", ["", "[1, 2]", "MODEL: [", "MODEL: {TYPO: 1}", "!!python/object/apply:os.system ['x']", "\x00"]
)
def test_configurations_that_are_none(text, export, tmp_path):
    path = tmp_path / "cfg.yaml"
    path.write_text(text)
    assert "cfg.yaml" in export(code=3, cfg=path)


def test_a_wrong_class_count_is_one_table(export):
    output = export("--set", "MODEL.NUM_CLASSES", "21", code=3)
    assert "cls_score_w" in output
    assert "bbox_pred_w" in output
    assert "MODEL.NUM_CLASSES" in output


@pytest.mark.parametrize("sets", [("TEST.NOPE", "1"), ("TEST.NMS", "1"), ("TEST.SCALES", "600"), ("NOPE", "1")])
def test_settings_that_are_none(sets, export):
    assert sets[0] in export("--set", *sets, code=3)


def test_class_names_must_fit(export):
    assert "10 classes" in export("--classes", "a,b", code=2)
    assert "twice" in export("--classes", "a,a,b,c,d,e,f,g,h,i", code=2)


def test_class_names_from_a_list_and_a_file(tmp_path):
    assert read_class_names("a, b,c") == ("a", "b", "c")
    path = tmp_path / "names.txt"
    path.write_text("red cell\n\nwhite cell\n")
    assert read_class_names(str(path)) == ("red cell", "white cell")
    assert read_class_names("__background__,a,b") == ("a", "b")
    with pytest.raises(UsageError):
        read_class_names("a,,b")


def test_the_same_export_gives_the_same_bytes(export, tmp_path):
    export()
    first = (tmp_path / "model.onnx").read_bytes()
    export()
    assert (tmp_path / "model.onnx").read_bytes() == first


def test_models_that_are_none(digits, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"PK\x03\x04" + bytes(64))
    data = (digits / "annotations.json", "--images", digits / "pictures", "-o", tmp_path / "out")
    assert "m.onnx" in run("detect", path, *data, code=3)
    assert "gone.onnx" in run("detect", tmp_path / "gone.onnx", *data, code=3)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (["gone.json"], "gone.json"),
        (["annotations.json", "--images", "nowhere"], "nowhere"),
        (
            [
                "empty",
            ],
            "empty",
        ),
        (["broken.json", "--images", "."], "broken.json"),
        (["list.json", "--images", "."], "list.json"),
    ],
)
def test_datasets_that_are_none(data, word, digits, digits_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(digits / "annotations.json", tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.json").write_text('{"images": [')
    (tmp_path / "list.json").write_text("[1, 2]")
    assert word in run("detect", digits_model, *data, "-o", tmp_path / "out", "--cpu-workers", 1, code=3)


def test_a_broken_picture_is_recorded_and_the_run_goes_on(digits, digits_model, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    good = sorted((digits / "pictures").iterdir())[:2]
    for path in good:
        shutil.copy(path, folder)
    (folder / "zero.jpg").write_bytes(b"")
    (folder / "text.png").write_text("no picture")
    run("detect", digits_model, folder, "-o", tmp_path / "out", "--cpu-workers", 1, "--format", "detectron", code=4)
    failed = json.loads((tmp_path / "out" / "failed.json").read_text())["failed"]
    assert sorted(row["image_id"] for row in failed) == ["text.png", "zero.jpg"]
    assert all(row["reason"] for row in failed)
    cells = read_pickle(tmp_path / "out" / "detections.pkl")["all_boxes"]
    assert len(cells[1]) == 4
    ids = sorted(path.name for path in folder.iterdir())
    assert all(not len(cells[k][ids.index("zero.jpg")]) for k in range(1, len(cells)))


def test_odd_pictures(digits_model, tmp_path):
    folder = shared_path("data/odd-images")
    run("proposals", digits_model, folder, "-o", tmp_path / "out", "--cpu-workers", 1, code=4)
    failed = {row["image_id"] for row in json.loads((tmp_path / "out" / "failed.json").read_text())["failed"]}
    assert {"zero-byte.jpg", "corrupt-header.jpg", "decompression_bomb.gif", "truncated_image.png"} <= failed
    found = read_pickle(tmp_path / "out" / "rpn_proposals.pkl")
    assert len(found["boxes"]) == len(list(folder.iterdir())) - sum(
        p.suffix in (".md", ".csv") for p in folder.iterdir()
    )
    assert all(len(boxes) == 0 for boxes, name in zip(found["boxes"], found["ids"], strict=True) if name in failed)


def test_a_gpu_where_there_is_none(digits, digits_model, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no NVIDIA driver" in run(
        "detect", digits_model, digits / "pictures", "-o", tmp_path, "--gpus", "0-3", code=5
    )


def test_wrong_calls(digits, digits_model, tmp_path):
    run("detect", digits_model, code=2)
    run("detect", digits_model, digits / "pictures", "-o", tmp_path, "--engine", "tpu", code=2)
    run("detect", digits_model, digits / "pictures", "-o", tmp_path, "--format", "xml", code=2)
    run("detect", digits_model, digits / "pictures", "-o", tmp_path, "--cpu-workers", "0", code=2)
    run("proposals", digits_model, digits / "pictures", "-o", tmp_path, "--score-thresh", "0.5", code=2)
    run("nonsense", code=2)


def test_help_and_version():
    for command in (
        [],
        ["export"],
        ["export", "detectron"],
        ["proposals"],
        ["detect"],
        ["merge"],
        ["status"],
        ["evaluate"],
        ["draw"],
    ):
        assert "Usage" in run(*command, "--help")
    assert "roiline" in run("--version")


def test_a_finished_run_is_left_as_it_is(digits, digits_model, tmp_path):
    data = (digits / "annotations.json", "--images", digits / "pictures", "--limit", 3)
    out = tmp_path / "out"
    run("detect", digits_model, *data, "-o", out, "--cpu-workers", 1)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    run("detect", digits_model, *data, "-o", out, "--cpu-workers", 2, "--batch-size", 4)
    assert (out / "bbox_results.json").read_bytes() == before["bbox_results.json"]
    assert "3" in run("status", out)
    output = run("detect", digits_model, *data, "-o", out, "--cpu-workers", 1, "--nms", "0.4", code=2)
    assert "nms" in output.lower()
    run("detect", digits_model, *data, "-o", out, "--cpu-workers", 1, "--nms", "0.4", "--fresh")


def test_overrides_change_answers_on_the_host(digits, digits_model, tmp_path):
    data = (digits / "annotations.json", "--images", digits / "pictures", "--limit", 4)
    counts = {}
    for name, extra in {
        "own": (),
        "same": ("--max-dets", 100),
        "few": ("--max-dets", 3),
        "sure": ("--score-thresh", 0.9),
    }.items():
        out = tmp_path / name
        run("detect", digits_model, *data, "-o", out, "--cpu-workers", 1, *extra)
        rows = json.loads((out / "bbox_results.json").read_text())
        counts[name] = len(rows)
        if name == "sure":
            assert all(row["score"] > 0.9 for row in rows)
    assert counts["own"] == counts["same"] > counts["sure"]
    assert counts["few"] <= 12


def test_evaluate_and_draw_what_a_run_left(digits, digits_model, tmp_path):
    data = (digits / "annotations.json", "--images", digits / "pictures")
    run("detect", digits_model, *data, "-o", tmp_path / "out", "--cpu-workers", 2)
    assert "AP50" in run("evaluate", tmp_path / "out", *data)
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["annotations"]["box"]["AP"] > 0.6
    run("draw", tmp_path / "out", *data, "-o", tmp_path / "drawn")
    assert len(list((tmp_path / "drawn").iterdir())) == 24
    run("evaluate", tmp_path / "nothing", *data, code=3)


def test_a_closed_pipe_is_no_fault(digits_model, tmp_path):
    command = f"{sys.executable} -m roiline detect --help | head -1"
    answer = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in answer.stderr


def test_numbers_in_results_are_the_models(digits, digits_model, digits_picture, tmp_path):
    import roiline

    picture = sorted((digits / "pictures").iterdir())[0]
    run("detect", digits_model, picture, "-o", tmp_path / "out", "--cpu-workers", 1, "--format", "detectron")
    cells = read_pickle(tmp_path / "out" / "detections.pkl")["all_boxes"]
    with roiline.open(digits_model) as model:
        found = model.detect(digits_picture)
    for index in range(1, len(cells)):
        np.testing.assert_array_equal(cells[index][0][:, :4], found.boxes[found.classes == index])


def test_an_export_replaces_no_input_and_no_device(export, digits, tmp_path):
    weights = tmp_path / "w.pkl"
    shutil.copy(digits / "digits.pkl", weights)
    (tmp_path / "link.onnx").symlink_to(weights)
    before = weights.read_bytes()
    for out in (weights, tmp_path / "link.onnx"):
        assert "destroy it" in export("-o", out, weights=weights, code=2)
    assert weights.read_bytes() == before
    names = tmp_path / "classes.txt"
    shutil.copy(digits / "classes.txt", names)
    assert "destroy it" in export("--classes", names, "-o", names, code=2)
    assert "this is a device" in export("-o", os.devnull, code=2)
    assert "name another" in export("--log-file", weights, weights=weights, code=2)
    assert weights.read_bytes() == before


def test_an_output_that_cannot_be_written(export, tmp_path):
    (tmp_path / "file").touch()
    assert "file: cannot be made a folder" in export("-o", tmp_path / "file" / "m.onnx", code=2)
    assert "File name too long" in export("-o", tmp_path / ("n" * 300), code=5)


def test_pipes_and_devices_are_no_inputs(export, digits, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    out = tmp_path / "o"
    for output in (
        export(cfg=pipe, code=3),
        export(weights=pipe, code=3),
        run("export", "caffe2", "--net", pipe, "--init", pipe, "-o", out, code=3),
        run("export", "detectron2", "--cfg", pipe, "--weights", pipe, "-o", out, code=3),
        run("export", "torchvision", "--arch", "fasterrcnn_resnet50_fpn", "--weights", pipe, "-o", out, code=3),
        run("detect", pipe, digits / "annotations.json", "-o", out, code=3),
        run("inspect", pipe, code=3),
    ):
        assert "a pipe" in output or "not a regular file" in output
    assert "a device" in export(cfg="/dev/zero", code=3)


def test_errors_are_headed_with_the_whole_command(export, tmp_path):
    assert export(code=3, cfg=tmp_path / "gone.yaml").startswith("roiline export detectron: ")
    assert run("status", tmp_path / "gone", code=3).startswith("roiline status: ")


def test_class_names_of_any_length_and_none_that_are_no_text(tmp_path):
    names = [f"class number {index}" for index in range(80)]
    assert read_class_names(",".join(names)) == tuple(names)
    with pytest.raises(UsageError, match="expected text in UTF-8"):
        read_class_names("a,\udcff,b")
    with pytest.raises(UsageError, match="expected NAME"):
        read_class_names("a,,b")


def test_a_very_long_message_is_cut(tmp_path):
    output = run("inspect", tmp_path / "x", "--log-file", tmp_path / "gone" / ("n" * 40_000), code=2)
    assert len(output) < 17_000
    assert "characters more" in output


def _fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    def fail(*_arguments: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr("roiline.infer.status.read_status", fail)
    result = CliRunner().invoke(main, ["status", "x"])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied", "/a/shard"),
            3,
            "roiline status: /a/shard: Permission denied\n",
        ),
        (OSError(errno.EMFILE, "Too many open files"), 5, "roiline status: could not go on: Too many open files\n"),
        (RuntimeError("x"), 1, "roiline status: a fault in roiline itself: RuntimeError: x\n"),
        (KeyboardInterrupt(), 130, "roiline status: interrupted\n"),
    ],
)
def test_errors_that_nobody_named(error, code, message, monkeypatch):
    assert (code, message) == (_fail_with(error, monkeypatch)[0], _fail_with(error, monkeypatch)[1][: len(message)])


def test_sigterm_is_an_interrupt_and_leaves_no_temporary_files(tmp_path):
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "import roiline.infer.status as status; from roiline.cli import main\n"
        "from roiline.core.files import durable_file\n"
        "def read_status(out):\n"
        "    with durable_file(Path(out) / 'a'): os.kill(os.getpid(), signal.SIGTERM); signal.pause()\n"
        "status.read_status = read_status\n"
        "main(['status', sys.argv[1]])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, tmp_path], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "roiline status: interrupted\n")
    assert not list(tmp_path.iterdir())


def test_a_full_output_ends_with_a_message(digits):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "roiline", "inspect", str(digits / "digits.yaml")]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (5, "roiline inspect: could not go on: No space left on device\n")


def test_class_names_of_a_model_that_has_its_own_are_not_used_and_that_is_said(digits, digits_model, tmp_path):
    names = ",".join("abcdefghij")
    output = run("detect", digits_model, digits / "pictures", "--limit", 1, "--classes", names, "-o", tmp_path / "out")
    assert "--classes is not used" in output


def test_a_full_log_file_is_said_once_and_ends_nothing(digits, digits_model, tmp_path):
    out = tmp_path / "out"
    output = run("detect", digits_model, digits / "pictures", "--limit", 1, "-o", out, "--log-file", "/dev/full")
    assert output.count("--log-file /dev/full: cannot be written") == 1
