from __future__ import annotations

import numpy as np
import pytest
from golden_cases import golden_case, golden_cases
from operator_forms import FORMS

from roiline.ops.collect_proposals import COLLECT_PROPOSALS


def _collect(form: str, inputs: tuple[np.ndarray, ...], top_n: int) -> np.ndarray:
    """Returns rois (R, 5) of levels that are taken for one picture's, as Caffe2 takes a whole batch; rows travel as row numbers."""
    half = len(inputs) // 2
    rois = np.concatenate(inputs[:half])
    numbers = np.split(np.arange(len(rois)), np.cumsum([len(level) for level in inputs[:half]])[:-1])
    boxes = [np.repeat(rows[None, :, None], 4, axis=2).astype(np.float32) for rows in numbers]
    scores = [level.reshape(1, -1) for level in inputs[half:]]
    kept, kept_scores, count = FORMS[form](COLLECT_PROPOSALS, (*boxes, *scores), post_nms_top_n=top_n)
    assert count.tolist() == [kept.shape[1]]
    rows = kept[0, :, 0].astype(int)
    np.testing.assert_array_equal(kept_scores[0], np.concatenate(scores, axis=1)[0, rows])
    return rois[rows]


def _check(form: str, inputs: tuple[np.ndarray, ...], expected: np.ndarray, case) -> None:
    got = _collect(form, inputs, case.args["rpn_post_nms_topN"])
    if "topk_ties" not in case.tags:
        np.testing.assert_array_equal(got, expected)
        return
    # Which of the equal scores at the cut are kept is the original's accident: what scores more must be there, the rest must score it.
    rois, scores = np.concatenate(inputs[: len(inputs) // 2]), np.concatenate(inputs[len(inputs) // 2 :])
    assert got.shape == expected.shape
    least = np.sort(scores)[-len(expected)]
    above = {tuple(row) for row in rois[scores > least]}
    at_cut = {tuple(row) for row in rois[scores == least]}
    for rows in (got, expected):
        assert above <= {tuple(row) for row in rows} <= above | at_cut


@pytest.mark.golden
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "case",
    golden_cases("ops/caffe2_torch_1.8.1", "CollectRpnProposals", "CollectAndDistributeFpnRpnProposals"),
)
def test_collects_as_caffe2(form, case):
    _check(form, case.inputs, case.outputs[0], case)


@pytest.mark.golden
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", golden_cases("detectron_py", "CollectAndDistribute_python"))
def test_collects_as_detectron(form, case):
    source = golden_case("ops/caffe2_torch_1.8.1", case.note.split("case ")[1])
    _check(form, source.inputs, case.outputs[0], case)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("top_n", [0, -1, 2, 100])
def test_padding_of_a_level_is_never_collected(form, top_n):
    nothing = np.float32(-np.inf)
    fine = np.full((2, 3, 4), np.nan, np.float32)
    fine[0, 0], fine[1, :2] = 1, 2
    coarse = np.full((2, 2, 4), 3, np.float32)
    fine_scores = np.array([[0.5, nothing, nothing], [0.9, 0.1, nothing]], np.float32)
    coarse_scores = np.array([[0.4, nothing], [0.6, 0.3]], np.float32)
    boxes, scores, count = FORMS[form](
        COLLECT_PROPOSALS, (fine, coarse, fine_scores, coarse_scores), post_nms_top_n=top_n
    )
    expected = [[0.5, 0.4], [0.9, 0.6, 0.3, 0.1]]
    wanted = [row[:top_n] if top_n > 0 else row for row in expected]
    assert count.tolist() == [len(row) for row in wanted]
    assert boxes.shape[1] == max(count)
    for image, row in enumerate(wanted):
        np.testing.assert_array_equal(scores[image, : len(row)], np.float32(row))
        assert np.isfinite(boxes[image, : len(row)]).all()
        assert np.isneginf(scores[image, len(row) :]).all()


@pytest.mark.parametrize("form", FORMS)
def test_equal_scores_come_finer_level_first(form):
    levels = [np.full((1, 2, 4), level, np.float32) for level in (2, 3)]
    boxes, _, _ = FORMS[form](COLLECT_PROPOSALS, (*levels, *(np.full((1, 2), 0.5, np.float32),) * 2), post_nms_top_n=3)
    assert boxes[0, :, 0].tolist() == [2, 2, 3]
