"""Holds the forms of every operator of the catalogue against each other, and batches against single pictures."""

from __future__ import annotations

import numpy as np
import pytest
from operator_cases import FORM_CASES, LIMIT, ROWS, make_feed
from operator_forms import FORMS, forms_of, open_model

from roiline.ops.box_with_nms_limit import BOX_WITH_NMS_LIMIT
from roiline.ops.catalogue import OPERATORS

PADDING = {"boxes": 0.0, "kept_scores": -np.inf, "scores": -np.inf, "classes": 0}
ALL = [
    pytest.param(case, attributes, rows, id=f"{case.operator.name}-{variation}-{'_'.join(map(str, rows))}")
    for case in FORM_CASES
    for variation, attributes in case.variations.items()
    for rows in ROWS
]


def test_every_operator_of_the_catalogue_is_held_here():
    assert {case.operator.name for case in FORM_CASES} == set(OPERATORS)


@pytest.mark.parametrize(("case", "attributes", "rows"), ALL)
def test_forms_agree(case, attributes, rows, capfd):
    feed = make_feed(case, attributes, rows)
    open_model.cache_clear()  # the runtime warns when it opens a model
    results = {form: run(case.operator, feed, **attributes) for form, run in forms_of(case.operator).items()}
    assert capfd.readouterr().err == "", "the runtime warns about the function"
    declared = case.operator.outputs.items()
    reference = results.pop("reference")
    for form, outputs in results.items():
        for (name, (dtype, rank)), expected, got in zip(declared, reference, outputs, strict=True):
            assert (expected.dtype, expected.ndim) == (np.dtype(dtype), rank), name
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape), (form, name)
            assert not np.isnan(got).any(), (form, name)
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4, err_msg=f"{form} {name}")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("case", "attributes", "rows"), [p for p in ALL if len(p.values[2]) > 1])
def test_a_batch_gives_exactly_what_single_pictures_give(form, case, attributes, rows):
    feed = make_feed(case, attributes, rows)
    batch = FORMS[form](case.operator, feed, **attributes)
    for image in range(len(rows)):
        alone = FORMS[form](case.operator, case.single(feed, rows, image), **attributes)
        for got, expected in zip(case.answer(batch, rows, image), alone, strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("case", "attributes", "rows"),
    [p for p in ALL if "count" in p.values[0].operator.outputs and len(p.values[2]) == 3],
)
def test_outputs_are_padded_to_the_longest_with_what_is_declared(form, case, attributes, rows):
    outputs = FORMS[form](case.operator, make_feed(case, attributes, rows), **attributes)
    *arrays, count = outputs
    for name, array in zip(case.operator.outputs, arrays, strict=False):
        assert array.shape[1] == count.max()
        padding = np.arange(array.shape[1])[None] >= count[:, None]
        assert (array[padding] == PADDING[name]).all()
        assert np.isfinite(array[~padding]).all()


@pytest.mark.parametrize("rows", [0, 1, 30])
def test_batch_splits_may_be_left_out(rows):
    feed = make_feed(LIMIT, {}, (rows,))
    for run in forms_of(BOX_WITH_NMS_LIMIT).values():
        for got, expected in zip(run(BOX_WITH_NMS_LIMIT, feed[:2]), run(BOX_WITH_NMS_LIMIT, feed), strict=True):
            np.testing.assert_array_equal(got, expected)
