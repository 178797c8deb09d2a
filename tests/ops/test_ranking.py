from __future__ import annotations

import numpy as np
import pytest
from operator_forms import need_host_compiler

from roiline.ops.kernel_host import run_on_host
from roiline.ops.ranking import CHUNK, RANK_CHUNKS, SORT_CHUNKS

SPECIAL = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, -1e-42, 1.0, -1.0, 3e38, -3e38], np.float32)


def _rank(scores: np.ndarray, limit: int, *, later_first: int = 0, threads: int = 1) -> np.ndarray:
    need_host_compiler()
    keys, order = run_on_host(SORT_CHUNKS, [scores], {"later_first": later_first}, threads=threads)
    (index,) = run_on_host(RANK_CHUNKS, [keys, order], {"limit": limit})
    return index


def _expected(scores: np.ndarray, limit: int, *, later_first: bool = False) -> np.ndarray:
    best = scores.shape[2] if limit <= 0 else min(limit, scores.shape[2])
    if later_first:
        return scores.shape[2] - 1 - np.argsort(-scores[..., ::-1], axis=2, kind="stable")[..., :best]
    return np.argsort(-scores, axis=2, kind="stable")[..., :best]


def _scores(*shape: int, decimals: int = 9) -> np.ndarray:
    return np.round(np.random.default_rng(shape).normal(0, 1, shape), decimals).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("decimals", [1, 9])
@pytest.mark.parametrize("entries", [0, 1, 7, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_ranks_as_a_stable_sort(entries, decimals, threads):
    scores = _scores(2, 2, entries, decimals=decimals)
    for limit in (0, 1, 100, 2000):
        index = _rank(scores, limit, threads=threads)
        assert index.dtype == np.int32
        np.testing.assert_array_equal(index, _expected(scores, limit))


@pytest.mark.parametrize("entries", [1, 40, 2 * CHUNK + 3])
def test_of_equal_scores_the_later_may_be_first(entries):
    scores = _scores(1, 3, entries, decimals=1)
    np.testing.assert_array_equal(_rank(scores, 0, later_first=1), _expected(scores, 0, later_first=True))


@pytest.mark.parametrize("limit", [0, 5, 1500])
def test_what_is_no_number_comes_last_and_zeros_are_equal(limit):
    scores = np.random.default_rng(3).choice(SPECIAL, (2, 1, 2500))
    np.testing.assert_array_equal(_rank(scores, limit), _expected(scores, limit))


@pytest.mark.parametrize(
    "scores", [np.zeros(6000, np.float32), np.arange(6000, dtype=np.float32)], ids=["equal", "rising"]
)
def test_extreme_orders(scores):
    lists = scores.reshape(1, 1, -1)
    np.testing.assert_array_equal(_rank(lists, 4500), _expected(lists, 4500))


def test_the_12000_best_of_200000():
    scores = _scores(1, 1, 200_000, decimals=3)
    np.testing.assert_array_equal(_rank(scores, 12_000), _expected(scores, 12_000))
