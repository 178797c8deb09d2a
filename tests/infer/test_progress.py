from __future__ import annotations

import contextlib
import io
import re
import sys

import pytest
from shared_data import shared_path

from roiline.infer.progress import DatasetProgress, RunProgress, format_duration

MASKED = re.compile(r"\d+\.\d+s|\d+:\d\d:\d\d")


@pytest.mark.parametrize(("run", "task"), [("rpn", "proposals"), ("mask", "detections"), ("fast", "detections")])
def test_lines_are_the_original_ones_but_for_the_times(run: str, task: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "roiline.run")
    log = shared_path(f"golden/dataset/{run}/log_excerpt.txt").read_text()
    expected = re.findall(r"(?:rpn_generate|im_detect): range .*", log)
    progress = DatasetProgress("proposals" if task == "proposals" else "detections", 0, 12, 12)
    for _ in range(12):
        progress.finish_image(0.2, 0.01, images_per_s=0.0)
    got = [record.getMessage() for record in caplog.records]
    assert [MASKED.sub("*", line) for line in got] == [MASKED.sub("*", line) for line in expected]


def test_a_range_counts_as_the_original_does() -> None:
    progress = DatasetProgress("proposals", 4, 8, 12)
    assert progress.familiar_line(0, images_per_s=1.5) == "rpn_generate: range [5, 8] of 12: 5/8 0.000s (eta: 0:00:02)"


def test_times_are_averages_over_timed_images_only() -> None:
    progress = DatasetProgress("detections", 0, 100, 100, done=50)
    progress.finish_image(0.0, 0.0, images_per_s=0.0)  # a failed image
    progress.finish_image(0.1, 0.02, images_per_s=0.0)
    progress.finish_image(0.3, 0.04, images_per_s=0.0)
    assert progress.familiar_line(52, images_per_s=0.0) == (
        "im_detect: range [1, 100] of 100: 53/100 0.200s + 0.030s (eta: 0:00:10)"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.9, "0:00:00"), (61, "0:01:01"), (3600 * 25, "1 day, 1:00:00"), (86400 * 2, "2 days, 0:00:00")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_and_a_file_gets_lines() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        progress = RunProgress(4, 1, stream=stream)
        progress.count(failed=False)
        progress.count(failed=True)
        progress.show(last=True)
    assert terminal.getvalue().startswith("\r[######################--------] 3/4 images, ")
    assert file.getvalue().startswith("3/4 images, ")
    assert file.getvalue().endswith(", 1 failed\n")


def test_nothing_is_shown_when_it_is_not_wanted() -> None:
    stream = io.StringIO()
    progress = RunProgress(4, 0, stream=stream, shown=False)
    progress.show(last=True)
    assert stream.getvalue() == ""
    assert progress.describe() == "0/4 images, 0.00 images/s, ETA unknown"


def test_a_closed_stderr_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    progress = RunProgress(4, 0)
    progress.count(failed=False)
    progress.show(last=True)
    assert progress.describe().startswith("1/4 images")


def test_a_stream_that_cannot_be_written_ends_the_showing_not_the_run() -> None:
    with open("/dev/full", "w") as stream:
        progress = RunProgress(4, 0, stream=stream)
        progress.show(last=True)
        assert not progress._shown
        progress.show(last=True)
        with contextlib.suppress(OSError):  # what is left in its buffer
            stream.close()
