from __future__ import annotations

import numpy as np
import pytest

from roiline.ops.visit_order import visit_order


@pytest.mark.parametrize("size", [0, 1, 2, 16, 17, 18, 100, 1000])
@pytest.mark.parametrize("levels", [1, 3, 50, 10**6])
def test_it_sorts(size, levels):
    scores = np.random.default_rng(size).integers(0, levels, size).astype(np.float32)
    order = visit_order(scores, "quicksort")
    assert sorted(order) == list(range(size))
    assert (np.diff(scores[order]) <= 0).all()


def test_ties_by_row():
    scores = np.array([0.5, 0.9, 0.5, 0.9], np.float32)
    assert visit_order(scores, "earlier").tolist() == [1, 3, 0, 2]
    assert visit_order(scores, "later").tolist() == [3, 1, 2, 0]


def test_few_equal_scores_are_visited_later_index_first():
    scores = np.array([0.5, 0.9, 0.5, 0.9, 0.5], np.float32)
    assert visit_order(scores, "quicksort").tolist() == [3, 1, 4, 2, 0]


def test_many_equal_scores_are_left_in_the_sorts_own_order():
    """The order of 24 equal values, followed by hand through one partition and two insertions."""
    order = visit_order(np.zeros(24, np.float32), "quicksort").tolist()
    assert sorted(order) == list(range(24))
    assert order not in (list(range(24)), list(range(23, -1, -1)))
