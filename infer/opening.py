"""A worker's model: opened by the name of a function, and warmed up before the first picture."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np

from roiline.core.errors import UsageError
from roiline.core.timing import StageClock
from roiline.infer.messages import Setup
from roiline.infer.predictor import Predictor
from roiline.infer.preparation import PreparedPicture, prepare_picture, stack_batch
from roiline.infer.request import spec_with_overrides


def open_predictor(setup: Setup) -> Predictor:
    """Calls the function that `setup.predictor` names.

    Raises:
        UsageError: there is no such function.
    """
    module, _, name = setup.predictor.partition(":")
    factory = getattr(importlib.import_module(module), name, None)
    if factory is None:
        raise UsageError(f"no predictor {setup.predictor!r}: the module {module} has no function {name!r}")
    predictor: Predictor = factory(
        setup.model,
        setup.task,
        setup.device,
        engine=setup.engine,
        overrides=setup.overrides,
        companions=setup.companions,
    )
    return predictor


def warm_up(predictor: Predictor, setup: Setup, clock: StageClock) -> None:
    """Runs a gray picture of the usual size once, so that a model that cannot run fails now and the first picture is not slow."""
    rules = spec_with_overrides(predictor.spec, setup.overrides).image_rules
    side = min(rules.scale, rules.max_size)
    height, width = predictor.usual_hw or (side, side)
    picture = np.full((height, width, 3), 127, np.uint8)
    box = np.array([[0, 0, side - 1, side - 1]], np.float32)
    prepared = prepare_picture(picture, rules)
    if predictor.usual_hw is not None:  # an engine that was tuned for a size may take no other
        prepared = PreparedPicture(np.zeros((3, height, width), np.float32), height, width, 1.0, (height, width))
    batch = replace(stack_batch([prepared], [0]), pictures=(picture,), proposals=(box,))
    with clock.measure("infer"):
        raw = predictor.infer(batch)
    with clock.measure("post"):
        predictor.finish(raw, batch)
