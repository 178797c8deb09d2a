from __future__ import annotations

import numpy as np
import pytest
from golden_cases import golden_cases
from operator_forms import FORMS

from roiline.ops.detection_lists import LIST_KERNELS, CandidateLists, write_list_suppression, write_visit
from roiline.ops.nodes import LAST, FunctionWriter
from roiline.ops.operator import Operator, below
from roiline.ops.suppression import (
    LOWEST,
    pad_rows,
    suppress_boxes,
    write_far_corners,
    write_nms,
    write_single_empty_box,
)


def _reference(boxes, scores, *, threshold, inclusive, plus_one, limit, one_empty_box):
    kept = suppress_boxes(
        boxes,
        scores,
        threshold=threshold,
        inclusive=bool(inclusive),
        plus_one=plus_one,
        limit=limit,
        one_empty_box=bool(one_empty_box),
    )
    return (kept,)


def _function(_inputs, attributes):
    w = FunctionWriter()
    far_corners = write_far_corners(w, w.unsqueeze("boxes", 0), attributes["plus_one"])
    scores = w.unsqueeze("scores", 0)
    if attributes["one_empty_box"]:
        scores = write_single_empty_box(w, far_corners, scores)
    _, kept = write_nms(
        w,
        far_corners,
        scores,
        threshold=attributes["threshold"],
        inclusive=bool(attributes["inclusive"]),
        limit=w.ints(attributes["limit"] if attributes["limit"] > 0 else LAST),
        score_floor=LOWEST,
    )
    w.rename(kept, "kept")
    return w.finish("Nms", ("boxes", "scores"), ("kept",))


def _lower(w, inputs, attributes):
    """Returns the kept indices, -1 after the last one."""
    boxes, scores = w.unsqueeze(inputs[0], 0, 1), w.unsqueeze(inputs[1], 0, 1)
    labels = w.cast(w.op("Greater", scores, w.scalar(LOWEST)), np.int32)
    visited = write_visit(w, CandidateLists(boxes, scores, labels))
    rule = {name: attributes[name] for name in ("threshold", "inclusive", "plus_one", "limit", "one_empty_box")}
    kept = write_list_suppression(w, visited, **rule)
    source = w.op("GatherElements", visited.order, w.op("Max", kept.rows, w.constant(np.int32(0))), axis=2)
    none = w.op("Less", kept.rows, w.constant(np.int32(0)))
    return (w.reshape(w.cast(w.op("Where", none, kept.rows, source), np.int64), -1),)


NMS = Operator(
    name="Nms",
    inputs=("boxes", "scores"),
    outputs={"kept": ("int64", 1)},
    attributes={"threshold": None, "inclusive": 1, "plus_one": 1.0, "limit": 0, "one_empty_box": 0},
    reference=_reference,
    function=_function,
    kernels=LIST_KERNELS,
    lower=_lower,
)


def _nms(form: str, boxes: object, scores: object, **attributes: object) -> list[int]:
    arrays = np.asarray(boxes, np.float32).reshape(-1, 4), np.asarray(scores, np.float32)
    (kept,) = FORMS[form](NMS, arrays, **attributes)
    return kept[kept >= 0].tolist()


@pytest.mark.golden
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", golden_cases("detectron_py", "nms"))
def test_matches_detectron(form, case):
    (dets,), (expected,) = case.inputs, case.outputs
    kept = _nms(form, dets[:, :4], dets[:, 4], threshold=case.args["thresh"])
    assert sorted(kept) == expected.tolist()
    assert (np.diff(dets[kept, 4]) <= 0).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("inclusive", "expected"), [(1, [0]), (0, [0, 1])])
def test_an_overlap_of_exactly_the_threshold(form, inclusive, expected):
    boxes = [[0, 0, 9, 9], [0, 0, 9, 4]]
    assert _nms(form, boxes, [0.9, 0.8], threshold=0.5, inclusive=inclusive) == expected


@pytest.mark.parametrize("form", FORMS)
def test_equal_scores_are_visited_lower_index_first(form):
    boxes = [[0, 0, 9, 9], [0, 0, 9, 8], [40, 0, 49, 9], [0, 0, 8, 9]]
    assert _nms(form, boxes, [0.5, 0.5, 0.5, 0.7], threshold=0.5) == [3, 2]
    assert _nms(form, boxes[:3], [0.5, 0.5, 0.5], threshold=0.5) == [0, 2]


@pytest.mark.parametrize("form", FORMS)
def test_the_limit_counts_kept_boxes(form):
    boxes = [[20 * i, 0, 20 * i + 9, 9] for i in range(5)]
    assert _nms(form, boxes, [0.1, 0.2, 0.3, 0.4, 0.5], threshold=0.5, limit=2) == [4, 3]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("plus_one", "one_empty_box", "expected"), [(0.0, 0, [1, 2, 0]), (0.0, 1, [1, 2]), (1.0, 0, [1, 2, 0])]
)
def test_boxes_without_area(form, plus_one, one_empty_box, expected):
    boxes = [[5, 5, 5, 5], [50, 5, 50, 9], [7, 7, 9, 9]]
    scores = [0.5, 0.7, 0.6]
    assert (
        _nms(form, boxes, scores, threshold=0.5, inclusive=0, plus_one=plus_one, one_empty_box=one_empty_box)
        == expected
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("threshold", "inclusive", "kept"), [(1.0, 0, 2), (1.0, 1, 1), (2.0, 1, 2), (0.0, 0, 1)])
def test_thresholds_at_and_beyond_the_ends(form, threshold, inclusive, kept):
    same = [[0, 0, 9, 9], [0, 0, 9, 9]]
    assert len(_nms(form, same, [0.9, 0.8], threshold=threshold, inclusive=inclusive)) == kept


@pytest.mark.parametrize("form", FORMS)
def test_negative_scores_survive(form):
    assert _nms(form, [[0, 0, 9, 9]], [-3.0], threshold=0.5) == [0]


@pytest.mark.parametrize("form", FORMS)
def test_forms_agree_on_many_boxes(form):
    rng = np.random.default_rng(7)
    low = rng.uniform(0, 200, (400, 2))
    boxes = np.concatenate([low, low + rng.uniform(1, 80, (400, 2))], axis=1)
    scores = np.round(rng.uniform(0, 1, 400), 2)
    for threshold in (0.1, 0.3, 0.5, 0.7):
        for inclusive in (0, 1):
            expected = _nms("reference", boxes, scores, threshold=threshold, inclusive=inclusive)
            assert _nms(form, boxes, scores, threshold=threshold, inclusive=inclusive) == expected


def test_below_is_the_next_smaller_float():
    level = below(0.3)
    assert level < np.float32(0.3)
    assert np.nextafter(np.float32(level), np.float32(1)) == np.float32(0.3)
    assert below(0.0) == 0.0


def test_pad_rows_fills_up_to_the_longest():
    padded = pad_rows([np.ones((1, 2), np.float32), np.ones((0, 2), np.float32), np.ones((3, 2), np.float32)], -1.0)
    assert padded.shape == (3, 3, 2)
    assert padded[0].tolist() == [[1, 1], [-1, -1], [-1, -1]]
    assert (padded[1] == -1).all()
