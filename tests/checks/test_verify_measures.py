"""What comparisons count as the same: tensors within a share of their largest value, boxes with partners, numbers that are none."""

from __future__ import annotations

import numpy as np
import pytest

from roiline.checks.verify.measures import (
    BoxRows,
    first_failure,
    gather_stages,
    match_boxes,
    measure_boxes,
    measure_tensor,
)


def rows(boxes: list[list[float]], scores: list[float], classes: list[int]) -> BoxRows:
    return BoxRows(
        np.array(boxes, np.float32).reshape(-1, 4), np.array(scores, np.float32), np.array(classes, np.int64)
    )


def test_a_tensor_is_measured_by_its_largest_value() -> None:
    expected = np.array([[0.0, -4.0], [1.0, 2.0]], np.float32)
    got = expected + np.array([[0, 0], [0.02, 0]], np.float32)
    found = measure_tensor("s", "t", 0, expected, got, 1e-2)
    assert found.error == pytest.approx(0.005, rel=1e-3)
    assert found.passed
    assert not measure_tensor("s", "t", 0, expected, got, 1e-3).passed


def test_axes_of_one_do_not_matter_and_other_shapes_fail() -> None:
    values = np.arange(6, dtype=np.float32)
    assert measure_tensor("s", "t", 0, values.reshape(1, 6, 1), values.reshape(6), 1e-6).passed
    found = measure_tensor("s", "t", 0, values.reshape(2, 3), values.reshape(3, 2), 1e-6)
    assert not found.passed
    assert "shape" in found.note


def test_what_is_no_number_must_be_none_on_both_sides() -> None:
    whole = np.array([1, 2, 3], np.float32)
    broken = np.array([1, np.nan, 3], np.float32)
    assert measure_tensor("s", "t", 0, broken, broken.copy(), 1e-6).passed
    assert not measure_tensor("s", "t", 0, whole, broken, 1e-6).passed
    assert not measure_tensor("s", "t", 0, broken, whole, 1e-6).passed


def test_boxes_have_one_partner_of_their_class_each() -> None:
    expected = rows([[0, 0, 9, 9], [0, 0, 9, 9], [5, 5, 5, 5]], [0.9, 0.9, 0.5], [1, 1, 2])
    got = rows([[5, 5, 5, 5], [0, 0, 9, 9], [0, 0, 9, 9.001]], [0.5, 0.9, 0.9], [2, 1, 1])
    partner = match_boxes(expected, got, 1e-3)
    assert sorted(partner) == [0, 1, 2]
    assert partner[2] == 0
    assert match_boxes(expected, rows([[0, 0, 9, 9]], [0.9], [2]), 1e-3).tolist() == [-1, -1, -1]
    assert match_boxes(expected, rows([], [], []), 1e-3).tolist() == [-1, -1, -1]


def test_missing_and_unexpected_boxes_are_counted() -> None:
    expected = rows([[0, 0, 9, 9], [20, 20, 40, 40]], [0.9, 0.8], [1, 1])
    found = measure_boxes("s", 0, expected, rows([[0, 0, 9, 9]], [0.9], [1]), score=1e-3, unmatched=0.1)
    assert found.error == 0.5
    assert found.note == "1 of 2 expected boxes are missing, 0 of 1 were not expected"
    shifted = BoxRows(expected.boxes + 1, expected.scores, expected.classes)
    assert measure_boxes("s", 0, expected, shifted, score=1e-3, unmatched=0.1).error == 1.0
    assert measure_boxes("s", 0, rows([], [], []), rows([], [], []), score=1e-3, unmatched=0.1).passed


def test_the_first_stage_that_fails_is_named() -> None:
    good = measure_tensor("one", "t", 0, np.ones(2, np.float32), np.ones(2, np.float32), 1e-6)
    bad = measure_tensor("two", "t", 0, np.ones(2, np.float32), np.zeros(2, np.float32), 1e-6)
    failed = first_failure(gather_stages([good, bad, good]))
    assert failed is not None
    assert failed.name == "two"
    assert first_failure(gather_stages([good])) is None
