from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roiline.core.timing import StageClock, StageLedger, stage_stats, summarize


@given(st.lists(st.floats(0, 100), min_size=1, max_size=300))
def test_statistics_are_those_of_the_samples(seconds: list[float]) -> None:
    stats = stage_stats(array("d", seconds))
    millis = sorted(1000 * value for value in seconds)
    assert stats.count == len(seconds)
    assert stats.total_ms == pytest.approx(sum(millis))
    assert stats.mean_ms == pytest.approx(sum(millis) / len(millis))
    assert stats.max_ms == millis[-1]
    for got, share in ((stats.p50_ms, 50), (stats.p90_ms, 90), (stats.p99_ms, 99)):
        assert got == np.percentile(millis, share, method="inverted_cdf")


def test_a_clock_measures_blocks_also_those_that_raise() -> None:
    clock = StageClock()
    with clock.measure("read"):
        pass
    with pytest.raises(RuntimeError), clock.measure("read"):
        raise RuntimeError
    clock.add("infer", 0.5)
    taken = clock.take()
    assert {stage: len(samples) for stage, samples in taken.items()} == {"read": 2, "infer": 1}
    assert min(taken["read"]) >= 0
    assert clock.take() == {}


def test_a_report_keeps_workers_lanes_and_warm_up_apart() -> None:
    ledger = StageLedger()
    ledger.add(0, "main", {"infer": array("d", [0.1, 0.3])})
    ledger.add(0, "main", {"infer": array("d", [0.2])})
    ledger.add(0, "reader-0", {"read": array("d", [0.01])})
    ledger.add(1, "main", {"infer": array("d", [0.4])})
    ledger.add_warm_up(0, {"infer": array("d", [2.0])})
    report = ledger.report(wall_s=2.0, images=4, devices={0: "cpu 0", 1: "cpu 1"})
    assert report["format_version"] == 1
    assert (report["wall_s"], report["images"], report["images_per_s"]) == (2.0, 4, 2.0)
    stages = report["stages"]
    assert isinstance(stages, dict)
    assert list(stages) == ["infer", "read"]
    assert stages["infer"]["count"] == 4
    assert stages["infer"]["total_ms"] == pytest.approx(1000)
    assert stages["infer"]["max_ms"] == pytest.approx(400)
    workers = report["workers"]
    assert isinstance(workers, list)
    assert [worker["device"] for worker in workers] == ["cpu 0", "cpu 1"]
    assert workers[0]["lanes"]["main"]["infer"]["count"] == 3
    assert workers[0]["lanes"]["reader-0"]["read"]["count"] == 1
    assert workers[0]["warm_up"]["infer"]["count"] == 1
    assert workers[1]["warm_up"] == {}
    assert summarize([]) == {}
