"""The TensorRT backend over a fake GPU and a fake TensorRT: what goes where, in which order, and what is cut away."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_fakes import FakeGpu, install_bindings, install_pycuda
from tensorrt_fakes import LIMIT, FakeEngine, expected, make_tensorrt

from roiline.core.errors import EngineError, ModelError, UsageError
from roiline.engines.cuda.driver import open_driver
from roiline.engines.cuda.resources import CudaContext
from roiline.engines.protocol import TensorInfo
from roiline.engines.tensorrt.backend import PlanLayout, ShapeRange, TensorRtBackend
from roiline.engines.tensorrt.runtime import load_engine, read_tensors
from roiline.engines.tensorrt.trimming import OutputTrim

RANGES = [
    {"data": ((4, 3, 32, 32), (4, 3, 32, 32)), "im_info": ((4, 3), (4, 3))},
    {"data": ((1, 3, 32, 32), (2, 3, 64, 96)), "im_info": ((1, 3), (2, 3))},
]
INPUTS = (TensorInfo("data", "float32", (None, 3, None, None)), TensorInfo("im_info", "float32", (None, 3)))
OUTPUTS = (
    TensorInfo("boxes", "float32", (None, None, 4)),
    TensorInfo("count", "int64", (None,)),
    TensorInfo("masks", "float32", (None, 2, 2)),
)
TRIMS = (OutputTrim("boxes", "padded", "count"), OutputTrim("count", "batch"), OutputTrim("masks", "rows", "count"))


def make_layout() -> PlanLayout:
    profiles = tuple({name: ShapeRange(*bounds) for name, bounds in profile.items()} for profile in RANGES)
    return PlanLayout(INPUTS, OUTPUTS, profiles, ("data", "im_info"), TRIMS)


def make_feeds(counts, height=64, width=64, *, seed=0):
    data = np.random.default_rng(seed).normal(size=(len(counts), 3, height, width)).astype(np.float32)
    return {"data": data, "im_info": np.array([(height, width, count) for count in counts], np.float32)}


@pytest.fixture(params=["cuda-bindings", "pycuda"])
def gpu(request, monkeypatch):
    gpu = FakeGpu()
    {"cuda-bindings": install_bindings, "pycuda": install_pycuda}[request.param](monkeypatch, gpu)
    gpu.binding = request.param
    return gpu


def open_fake(gpu, *, record=True, **changes):
    engine = FakeEngine(gpu, RANGES)
    for name, value in changes.items():
        setattr(engine, name, value)
    trt = make_tensorrt(engine)
    runtime, found = load_engine(trt, b"plan", where="m.plan")
    context = CudaContext(open_driver(gpu.binding))
    tensors = read_tensors(trt, found, where="m.plan")
    return TensorRtBackend(trt, runtime, found, context, make_layout(), tensors, {"engine": "tensorrt"}, record=record)


def check(answer, feeds):
    for name, array in expected(**feeds).items():
        np.testing.assert_array_equal(answer[name], array, err_msg=name)
        assert answer[name].flags.owndata


@pytest.mark.parametrize("counts", [[3], [5, 0], [0], [0, 0], [5, 2]])
def test_answers_lose_their_padding(gpu, counts):
    backend = open_fake(gpu)
    feeds = make_feeds(counts)
    check(backend.run(feeds), feeds)
    backend.close()
    assert not gpu.alive


@pytest.mark.parametrize("images", [3, 4])
def test_a_short_batch_is_filled_up_and_cut_back(gpu, images):
    backend = open_fake(gpu)
    feeds = make_feeds([1, 4, 2, 5][:images], 32, 32)
    check(backend.run(feeds), feeds)
    assert backend._lanes[0]._executions[0].shapes["data"] == (4, 3, 32, 32)


def test_two_batches_are_in_flight_and_keep_their_answers(gpu):
    backend = open_fake(gpu)
    batches = [make_feeds([index % 5, 2], seed=index) for index in range(6)]
    flights = []
    for index, feeds in enumerate(batches):
        given = {name: array.copy() for name, array in feeds.items()}
        flights.append(backend.submit(given))
        for array in given.values():
            array[:] = 0  # the caller may change its arrays at once
        if index:
            check(backend.collect(flights[index - 1]), batches[index - 1])
    check(backend.collect(flights[-1]), batches[-1])


def test_a_batch_goes_up_before_the_one_before_has_come_down(gpu):
    backend = open_fake(gpu, record=False)
    gpu.calls.clear()
    first = backend.submit(make_feeds([1]))
    backend.submit(make_feeds([2]))
    backend.collect(first)
    lane = ["upload", "upload", "compute", "download", "download", "download", "record"]
    assert gpu.calls == [*lane, *lane, "synchronize event"]


def test_a_third_batch_waits_for_a_lane(gpu):
    backend = open_fake(gpu)
    first = backend.submit(make_feeds([1]))
    second = backend.submit(make_feeds([1]))
    with pytest.raises(EngineError, match="2 batches are in flight already"):
        backend.submit(make_feeds([1]))
    with pytest.raises(UsageError, match="in the order"):
        backend.collect(second)
    backend.collect(first)
    backend.submit(make_feeds([1]))


def test_shapes_that_no_profile_takes_are_refused_with_those_that_one_does(gpu):
    backend = open_fake(gpu)
    with pytest.raises(
        EngineError, match=r"not built for data \(1, 3, 128, 64\); it takes 4 x 3 x 32 x 32 to .*--for DATA"
    ):
        backend.submit(make_feeds([1], 128, 64))
    feeds = make_feeds([2])
    check(backend.run(feeds), feeds)


def test_shapes_that_come_again_are_recorded(gpu):
    backend = open_fake(gpu)
    for index in range(8):
        feeds = make_feeds([index % 5], seed=index)
        check(backend.run(feeds), feeds)
        other = make_feeds([1, 2], 32, 96, seed=index)
        check(backend.run(other), other)
    recorded = gpu.binding == "cuda-bindings"
    assert gpu.calls.count("graph") == (12 if recorded else 0)
    assert backend.description["graphs"] == ("for shapes that come again" if recorded else "none")
    backend.close()
    assert not gpu.alive


def test_an_engine_that_cannot_be_recorded_runs_without(gpu, caplog):
    backend = open_fake(gpu, uncapturable=True)
    for index in range(6):
        feeds = make_feeds([index % 5], seed=index)
        check(backend.run(feeds), feeds)
    assert "graph" not in gpu.calls
    assert ("cannot be recorded" in caplog.text) == (gpu.binding == "cuda-bindings")


def test_what_tensorrt_refuses_is_an_error(gpu):
    with pytest.raises(EngineError, match="could not start the engine"):
        open_fake(gpu, fail=True).submit(make_feeds([1]))
    with pytest.raises(EngineError, match="follow from the pictures' content"):
        open_fake(gpu, data_dependent=True)


def test_more_rows_than_there_are_is_an_error(gpu):
    backend = open_fake(gpu, miscount=LIMIT)
    with pytest.raises(EngineError, match="counts"):
        backend.run(make_feeds([2]))


def test_memory_that_does_not_suffice_is_said(gpu):
    gpu.room = 100_000
    with pytest.raises(EngineError, match=r"device memory could not be had, .* are free"):
        open_fake(gpu)


def test_a_plan_that_tensorrt_refuses():
    with pytest.raises(
        ModelError, match=r"m\.plan: TensorRT refuses this engine: the version tag does not match.*--rebuild"
    ):
        load_engine(make_tensorrt(None), b"plan", where="m.plan")


def test_tensors_in_host_memory_are_refused():
    engine = FakeEngine(FakeGpu(), RANGES)
    engine.get_tensor_location = lambda name: "host" if name == "im_info" else "device"  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="im_info in host memory"):
        read_tensors(make_tensorrt(engine), engine, where="m.plan")
