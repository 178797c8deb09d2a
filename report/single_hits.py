"""The last bit of COCO's precision: pycocotools' own number where one right detection stands before all wrong ones.

pycocotools adds 2.2e-16 to the number of detections before it divides by it. In double precision that changes nothing but 1 / 1, which
becomes 0.9999999999999998; faster-coco-eval leaves it out. Whether a precision of 1 is that of one detection or of several is seen from the
precision at a recall between those of the first and the second object found: one such recall serves all classes whose numbers of objects
lie between two powers of two.
"""

from __future__ import annotations

import numpy as np

from roiline.core.structures import Float64, Int64

SINGLE_HIT = float(1.0 / (1.0 + np.spacing(1.0)))
"""What pycocotools computes for one right detection of one."""


def single_hit_probes(objects: int) -> Float64:
    """Returns the recalls to ask for: number k lies between 1 / n and 2 / n for all n from 2^k to 2^(k+1) - 1, up to n = `objects`."""
    least = 2.0 ** np.arange(max(1, objects).bit_length())
    probes: Float64 = (1 / least + 2 / (2 * least - 1)) / 2
    return probes


def lower_single_hits(precision: Float64, probed: Float64, objects: Int64) -> Float64:
    """Returns `precision` (T, R, K, A, M) with every 1 that one detection alone has earned as pycocotools computes it.

    `probed` (T, P, K, A, M) is the precision at `single_hit_probes`, `objects` (K, A) the number of objects to find.
    """
    groups = np.frexp(np.maximum(objects, 1))[1] - 1
    second = np.take_along_axis(
        probed, np.broadcast_to(groups[None, None, :, :, None], (len(probed), 1, *probed.shape[2:])), 1
    )
    lowered: Float64 = np.where((precision == 1.0) & (second < 1.0), SINGLE_HIT, precision)
    return lowered
