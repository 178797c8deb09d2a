from __future__ import annotations

import builtins

import numpy as np
import pytest

from roiline.core.errors import EngineError, ModelError, UsageError
from roiline.engines.protocol import Device
from roiline.engines.registry import ENGINES, open_engine, resolve_engine


def _feeds(images: int = 1, height: int = 64, width: int = 96) -> dict[str, np.ndarray]:
    pixels = np.random.default_rng(2).normal(0, 60, (images, 3, height, width)).astype(np.float32)
    return {
        "data": pixels,
        "im_info": np.tile(np.array([height, width, 1.5], np.float32), (images, 1)),
        "im_size": np.tile(np.array([height / 1.5, width / 1.5], np.float32), (images, 1)),
    }


def test_names_are_resolved():
    assert resolve_engine("auto") in ENGINES
    with pytest.raises(UsageError, match=r"no engine named 'tpu'.*auto.*onnxruntime"):
        resolve_engine("tpu")


def test_threads_and_batch_size_change_no_bit(digits_model):
    feeds = _feeds(images=3)
    with (
        open_engine(digits_model, device=Device(threads=1)) as one,
        open_engine(digits_model, device=Device(threads=2)) as two,
    ):
        expected = one.run(feeds)
        for name, array in two.run(feeds).items():
            np.testing.assert_array_equal(array, expected[name])
        for image in range(3):
            single = one.run({name: array[image : image + 1] for name, array in feeds.items()})
            count = int(single["count"][0])
            assert count == expected["count"][image]
            for name in ("boxes", "scores", "classes"):
                np.testing.assert_array_equal(single[name][0, :count], expected[name][image, :count])


def test_description_says_what_was_got(digits_model):
    with open_engine(digits_model, device=Device(threads=1)) as engine:
        assert engine.description["provider"] == "CPUExecutionProvider"
        assert engine.description["threads"] == "1"


def test_calls_are_checked(digits_model):
    with open_engine(digits_model) as engine:
        feeds = _feeds()
        with pytest.raises(UsageError, match=r"takes the inputs .*im_size.*given"):
            engine.run({"data": feeds["data"]})
        with pytest.raises(UsageError, match=r"`data`: expected float32 .* got float64"):
            engine.run({**feeds, "data": feeds["data"].astype(np.float64)})
        with pytest.raises(UsageError, match=r"`data`: expected"):
            engine.run({**feeds, "data": feeds["data"][:, :2]})
    with pytest.raises(EngineError, match="closed"):
        engine.run(feeds)


def test_a_picture_that_does_not_fit_the_pyramid_is_an_error_of_the_engine(digits_model):
    with open_engine(digits_model) as engine, pytest.raises(EngineError, match="could not run"):
        engine.run(_feeds(height=50, width=70))


def test_a_gpu_is_refused(digits_model):
    with pytest.raises(EngineError, match="cuda"):
        open_engine(digits_model, device=Device("cuda"))


def test_without_onnxruntime_the_extra_is_named(digits_model, monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest):
        if name == "onnxruntime":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(EngineError, match=r"roiline\[cpu\].*roiline\[gpu\]"):
        open_engine(digits_model)


def test_a_graph_that_the_runtime_refuses(digits_model, tmp_path):
    import onnx

    model = onnx.load(str(digits_model))
    model.graph.node[0].op_type = "NoSuchOperator"
    path = tmp_path / "model.onnx"
    onnx.save(model, str(path))
    with pytest.raises(ModelError, match="cannot load"):
        open_engine(path)
