"""Padding taken away: each kind of output, fewer pictures than the batch has, and counts that cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from roiline.core.errors import EngineError
from roiline.engines.tensorrt.trimming import OutputTrim, trim_outputs

COUNT = np.array([2, 0, 3], np.int64)
OUTPUTS = {
    "boxes": np.arange(3 * 5 * 4, dtype=np.float32).reshape(3, 5, 4),
    "masks": np.arange(15 * 2, dtype=np.float32).reshape(15, 2),
    "kept": np.arange(8, dtype=np.float32),
    "features": np.arange(3, dtype=np.float32),
    "given": np.arange(7, dtype=np.float32),
    "count": COUNT,
}
TRIMS = (
    OutputTrim("boxes", "padded", "count"),
    OutputTrim("masks", "rows", "count"),
    OutputTrim("kept", "front", "count"),
    OutputTrim("features", "batch"),
    OutputTrim("given", "given"),
)


def test_every_kind_loses_its_padding():
    got = trim_outputs(OUTPUTS, TRIMS, 3)
    assert list(got) == ["boxes", "masks", "kept", "features", "given"]
    np.testing.assert_array_equal(got["boxes"], OUTPUTS["boxes"][:, :3])
    np.testing.assert_array_equal(got["masks"], OUTPUTS["masks"][[0, 1, 10, 11, 12]])
    np.testing.assert_array_equal(got["kept"], np.arange(5))
    np.testing.assert_array_equal(got["given"], np.arange(7))


def test_pictures_beyond_the_batch_go():
    got = trim_outputs(OUTPUTS, TRIMS, 2)
    np.testing.assert_array_equal(got["boxes"], OUTPUTS["boxes"][:2, :2])
    np.testing.assert_array_equal(got["masks"], OUTPUTS["masks"][:2])
    np.testing.assert_array_equal(got["kept"], np.arange(2))
    assert got["features"].tolist() == [0, 1]


def test_nothing_found_leaves_no_rows():
    got = trim_outputs({**OUTPUTS, "count": np.zeros(3, np.int64)}, TRIMS, 3)
    assert got["boxes"].shape == (3, 0, 4)
    assert got["masks"].shape == (0, 2)


def test_counts_may_be_floats():
    got = trim_outputs({**OUTPUTS, "count": COUNT.astype(np.float32)}, TRIMS, 3)
    assert got["boxes"].shape == (3, 3, 4)


@pytest.mark.parametrize("trim", TRIMS[:3])
def test_a_count_beyond_the_rows_is_no_silent_cut(trim):
    with pytest.raises(EngineError, match=rf"`{trim.output}` has room for . rows, and `count` counts"):
        trim_outputs({**OUTPUTS, "count": np.array([6, 0, 3], np.int64)}, [trim], 3)


def test_a_negative_count_is_refused():
    with pytest.raises(EngineError, match=r"counts \[-1"):
        trim_outputs({**OUTPUTS, "count": np.array([-1, 0, 3], np.int64)}, TRIMS[:1], 3)
