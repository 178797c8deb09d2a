"""Assignment of rows to columns one to one, by the largest sum: the Hungarian method with potentials (Kuhn 1955, Munkres 1957)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from roiline.core.structures import Float64, Int64


def assign_rows(gains: NDArray[Any]) -> tuple[Int64, Int64]:
    """Returns rows and columns (min(n, m),) of the pairs whose gains (n, m) sum up to the most; rows ascend.

    Takes O(min(n, m)^2 max(n, m)) steps. Gains must be finite.
    """
    costs = -np.asarray(gains, np.float64)
    if costs.shape[0] <= costs.shape[1]:
        columns = _assign_all(costs)
        return np.arange(len(columns)), columns
    rows = _assign_all(np.ascontiguousarray(costs.T))
    order = np.argsort(rows)
    return rows[order], order


def _assign_all(costs: Float64) -> Int64:
    """Returns the column of every row of (n, m), n <= m, at the smallest sum of costs.

    Rows come in one by one; each is joined by the shortest augmenting path, in reduced costs that stay non-negative. Row and column 0 are
    sentinels: `owner[j]` is the row of column j (0: free), and column 0 is where the new row starts.
    """
    count, width = costs.shape
    row_potential, column_potential = np.zeros(count + 1), np.zeros(width + 1)
    owner = np.zeros(width + 1, np.int64)
    for row in range(1, count + 1):
        owner[0] = row
        path = _find_path(costs, owner, row_potential, column_potential)
        for column, before in path:
            owner[column] = owner[before]
    columns = np.zeros(count, np.int64)
    taken = np.flatnonzero(owner[1:])
    columns[owner[1:][taken] - 1] = taken
    return columns


def _find_path(
    costs: Float64, owner: Int64, row_potential: Float64, column_potential: Float64
) -> list[tuple[int, int]]:
    """Returns the (column, column before it) of the shortest path from column 0 to a free one, last first; updates the potentials."""
    width = costs.shape[1]
    distance = np.full(width + 1, np.inf)
    before = np.zeros(width + 1, np.int64)
    seen = np.zeros(width + 1, np.bool_)
    column = 0
    while owner[column]:
        seen[column] = True
        row = owner[column]
        reduced = costs[row - 1] - row_potential[row] - column_potential[1:]
        shorter = ~seen[1:] & (reduced < distance[1:])
        distance[1:][shorter] = reduced[shorter]
        before[1:][shorter] = column
        nearest = 1 + int(np.argmin(np.where(seen[1:], np.inf, distance[1:])))
        step = distance[nearest]
        row_potential[owner[seen]] += step
        column_potential[seen] -= step
        distance[~seen] -= step
        column = nearest
    path = []
    while column:
        path.append((column, int(before[column])))
        column = int(before[column])
    return path
