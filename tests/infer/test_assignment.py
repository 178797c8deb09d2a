"""Assignment against every permutation of small matrices."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from roiline.infer.assignment import assign_rows


def _best(gains: np.ndarray) -> float:
    wide = gains if gains.shape[0] <= gains.shape[1] else gains.T
    return max(
        wide[np.arange(len(wide)), list(columns)].sum() for columns in permutations(range(wide.shape[1]), len(wide))
    )


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (3, 3), (4, 6), (6, 4), (5, 5)])
@pytest.mark.parametrize("levels", [2, 4, 1000])
def test_the_sum_is_the_largest(shape, levels):
    random = np.random.default_rng(levels + 10 * shape[0] + shape[1])
    for _ in range(20):
        gains = random.integers(-1, levels, shape) / levels
        rows, columns = assign_rows(gains)
        assert len(rows) == len(columns) == min(shape)
        assert np.all(np.diff(rows) > 0)
        assert len(set(columns.tolist())) == len(columns)
        assert gains[rows, columns].sum() == pytest.approx(_best(gains), abs=1e-12)


def test_a_large_matrix_with_a_hidden_order():
    random = np.random.default_rng(3)
    order = random.permutation(100)
    gains = random.uniform(0, 0.4, (100, 100)).astype(np.float32)
    gains[np.arange(100), order] = 0.9
    rows, columns = assign_rows(gains)
    np.testing.assert_array_equal(rows, np.arange(100))
    np.testing.assert_array_equal(columns, order)


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (4, 0)])
def test_nothing_to_assign(shape):
    rows, columns = assign_rows(np.zeros(shape, np.float32))
    assert len(rows) == len(columns) == 0
