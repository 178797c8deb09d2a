from __future__ import annotations

import numpy as np
import pytest
from operator_forms import FORMS

from roiline.ops.trim import TRIM


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [(2, 0, 3), (0, 0, 0), (3, 3, 3), (0, 1, 0)])
def test_padding_is_cut_and_rows_know_their_picture(form, count):
    boxes = np.arange(36, dtype=np.float32).reshape(3, 3, 4)
    padding = np.arange(3)[None] >= np.array(count)[:, None]
    boxes[padding] = np.nan
    (rois,) = FORMS[form](TRIM, (boxes, np.array(count, np.int64)))
    assert rois.shape == (sum(count), 5)
    assert rois[:, 0].tolist() == [float(image) for image, n in enumerate(count) for _ in range(n)]
    np.testing.assert_array_equal(rois[:, 1:], boxes[~padding])
