"""In which order NMS visits boxes: by descending score, and which of equal scores comes first.

torchvision sorts stably, so the earlier row wins. Detectron visits by `scores.argsort()[::-1]`: where few scores are sorted, the later row
wins; else the order among equal scores is the sort's own: numpy's quicksort by the median of three, the smaller part first, parts of up
to 16 by insertion. That decides which of two equal detections the original keeps (proposals that are one RoI after rounding share score
and box). Later numpy versions sort with vector instructions on some processors; published results are of the plain one.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from roiline.core.structures import Float32, Int64

Ties: TypeAlias = Literal["earlier", "later", "quicksort"]

_SMALL = 16


def visit_order(scores: Float32, ties: Ties) -> Int64:
    """Returns the indices of scores (n,) by descending score; of equal ones the earlier, the later, or the sort's choice is first."""
    if ties == "earlier":
        return np.argsort(-scores, kind="stable")
    if ties == "later" or len(np.unique(scores)) == len(scores):
        return np.argsort(scores, kind="stable")[::-1]
    return np.asarray(_sort_indirectly(scores.tolist())[::-1], np.int64)


def _sort_indirectly(values: list[float]) -> list[int]:
    order = list(range(len(values)))
    parts = [(0, len(values) - 1)]
    while parts:
        low, high = parts.pop()
        while high - low > _SMALL:
            split = _partition(values, order, low, high)
            small, large = sorted([(low, split - 1), (split + 1, high)], key=lambda part: part[1] - part[0])
            if small[1] - small[0] == large[1] - large[0]:
                small, large = (split + 1, high), (low, split - 1)
            parts.append(large)
            low, high = small
        _insert(values, order, low, high)
    return order


def _partition(values: list[float], order: list[int], low: int, high: int) -> int:
    """Splits order[low..high] around the median of its first, middle and last value; returns where that one ends up."""
    middle = low + ((high - low) >> 1)
    for first, second in ((low, middle), (middle, high), (low, middle)):
        if values[order[second]] < values[order[first]]:
            order[first], order[second] = order[second], order[first]
    pivot = values[order[middle]]
    order[middle], order[high - 1] = order[high - 1], order[middle]
    left, right = low, high - 1
    while True:
        left += 1
        while values[order[left]] < pivot:
            left += 1
        right -= 1
        while pivot < values[order[right]]:
            right -= 1
        if left >= right:
            break
        order[left], order[right] = order[right], order[left]
    order[left], order[high - 1] = order[high - 1], order[left]
    return left


def _insert(values: list[float], order: list[int], low: int, high: int) -> None:
    for position in range(low + 1, high + 1):
        index = order[position]
        place = position
        while place > low and values[index] < values[order[place - 1]]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = index
