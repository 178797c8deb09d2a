from __future__ import annotations

import numpy as np
import pytest
from golden_cases import golden_cases
from operator_forms import FORMS

from roiline.ops.roi_pool import MULTILEVEL_ROI_POOL, round_half_away


@pytest.mark.golden
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", golden_cases("ops/caffe2_torch_1.8.1", "RoIPool"))
def test_pools_as_caffe2(form, case):
    feature, rois = case.inputs
    (got,) = FORMS[form](
        MULTILEVEL_ROI_POOL,
        (rois, feature),
        spatial_scales=[case.args["spatial_scale"]],
        resolution=case.args["pooled_h"],
        resolution_across=case.args["pooled_w"],
    )
    np.testing.assert_array_equal(got, case.outputs[0])


def test_halves_are_rounded_away_from_zero():
    values = np.array([0.5, 1.5, -0.5, -2.5, 0.49999997, 2.4], np.float32)
    np.testing.assert_array_equal(round_half_away(values), [1, 2, -1, -3, 0, 2])


@pytest.mark.parametrize("form", FORMS)
def test_every_roi_is_pooled_from_its_own_level(form):
    sizes = {2: 60.0, 3: 150.0, 4: 300.0, 5: 600.0}
    rois = np.array([[0, 10, 10, 10 + side, 10 + side] for side in (600.0, 60.0, 300.0, 150.0)], np.float32)
    maps = [np.full((1, 2, 64, 64), level, np.float32) for level in sizes]
    (got,) = FORMS[form](
        MULTILEVEL_ROI_POOL, (rois, *maps), spatial_scales=[2.0**-level for level in sizes], resolution=2
    )
    np.testing.assert_array_equal(got[:, 0, 0, 0], [5, 2, 4, 3])
