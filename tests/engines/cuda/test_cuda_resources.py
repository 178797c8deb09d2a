"""Both CUDA bindings behind the same tests, over a GPU that is none."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
import pytest
from cuda_fakes import PTX, FakeGpu, install_bindings, install_pycuda, remove_bindings

from roiline.core.errors import EngineError, UsageError
from roiline.engines.cuda.driver import Launch, open_driver
from roiline.engines.cuda.resources import CudaContext

INSTALL = {"cuda-bindings": install_bindings, "pycuda": install_pycuda}


@pytest.fixture(params=sorted(INSTALL))
def binding(request):
    return request.param


@pytest.fixture
def gpu(binding, monkeypatch):
    gpu = FakeGpu()
    INSTALL[binding](monkeypatch, gpu)
    return gpu


@pytest.fixture
def context(gpu, binding):
    with CudaContext(open_driver(binding)) as context:
        yield context


def test_devices_are_described(gpu, binding):
    driver = open_driver(binding)
    assert driver.name == binding
    assert driver.version() == 13000
    assert driver.count_devices() == 2
    first, second = driver.describe(0), driver.describe(1)
    assert (first.name, second.name) == ("NVIDIA H200", "NVIDIA L4")
    assert second.compute_capability == (9, 1)
    assert second.pci_bus_id == "0000:1b:00.0"
    assert first.total_bytes == gpu.room
    expected = {"cuda-bindings": "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "pycuda": None}
    assert first.uuid == expected[binding]


def test_a_machine_without_a_driver_is_told_so(binding, monkeypatch):
    INSTALL[binding](monkeypatch, None)
    with pytest.raises(EngineError, match=r"no NVIDIA driver on this machine.*--cpu-workers") as caught:
        open_driver(binding)
    assert caught.value.exit_code == 5


def test_a_driver_without_a_gpu(binding, monkeypatch):
    INSTALL[binding](monkeypatch, FakeGpu(devices=0))
    with pytest.raises(EngineError, match="sees no GPU"):
        open_driver(binding)


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(gpu, binding):
    with pytest.raises(UsageError, match=r"no GPU cuda:2; this process sees 0 \(NVIDIA H200\), 1 \(NVIDIA L4\)"):
        CudaContext(open_driver(binding), 2)
    assert not gpu.alive


def test_a_driver_that_fails_says_why(monkeypatch):
    install_bindings(monkeypatch, FakeGpu(), status=999)
    with pytest.raises(EngineError, match=r"could not be initialised: CUDA_ERROR_999: something else"):
        open_driver("cuda-bindings")


def test_no_binding_names_both_extras(monkeypatch):
    remove_bindings(monkeypatch)
    monkeypatch.setattr("roiline.engines.cuda.driver.has_driver_library", lambda: False)
    with pytest.raises(EngineError, match="no NVIDIA driver on this machine"):
        open_driver()
    monkeypatch.setattr("roiline.engines.cuda.driver.has_driver_library", lambda: True)
    with pytest.raises(EngineError, match=r"no CUDA binding .*roiline\[tensorrt\].*roiline\[pycuda\]"):
        open_driver()
    with pytest.raises(UsageError, match=r"no CUDA binding named 'cupy'"):
        open_driver("cupy")


def test_pycuda_serves_where_it_is_the_only_one(monkeypatch):
    remove_bindings(monkeypatch)
    install_pycuda(monkeypatch, FakeGpu())
    assert open_driver().name == "pycuda"


def test_what_goes_up_comes_down(context):
    stream = context.make_stream()
    data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    device, pinned = context.allocate(data.nbytes), context.allocate_pinned(data.nbytes)
    view = pinned.view(data.shape, data.dtype)
    view[:] = data
    device.upload(view, stream)
    view[:] = 0
    device.download(view, stream)
    stream.synchronize()
    np.testing.assert_array_equal(view, data)
    device.fill(0, stream)
    device.download(view, stream)
    assert not view.any()


def test_a_copy_beyond_a_buffer_is_refused(context):
    stream = context.make_stream()
    device, pinned = context.allocate(8), context.allocate_pinned(8)
    with pytest.raises(EngineError, match=r"16 bytes .* does not fit a buffer of 8"):
        device.upload(np.zeros(4, np.float32), stream)
    with pytest.raises(EngineError, match="contiguous: False"):
        device.download(np.zeros((2, 2), np.uint8).T[:1], stream)
    with pytest.raises(EngineError, match="needs 16 bytes, the pinned memory has 8"):
        pinned.view((4,), np.float32)


def test_nothing_to_copy_is_no_copy(gpu, context):
    empty = context.allocate(0)
    empty.upload(np.zeros(0, np.float32), context.make_stream())
    assert "upload" not in gpu.calls


def test_memory_that_is_not_there(gpu, context):
    with pytest.raises(
        EngineError, match=r"NVIDIA H200: 2147 MB of device memory could not be had, 1074 of 1074 MB are free"
    ):
        context.allocate(1 << 31)


def test_kernels_get_their_arguments(gpu, context):
    gpu.kernels["add"] = (np.uint64, np.int32, np.uint64)
    stream = context.make_stream()
    function = context.load_module(PTX).function("add", shared_bytes=70000)
    launch = Launch((3, 2, 1), (128, 1, 1), 70000)
    function.launch(launch, [np.uint64(0x7F0000001000), np.int32(-5), np.uint64(8)], stream)
    assert gpu.launches == [("add", (3, 2, 1), (128, 1, 1), 70000, (0x7F0000001000, -5, 8))]
    assert "allow 70000" in gpu.calls
    with pytest.raises(UsageError, match="argument 1: expected an address"):
        function.launch(launch, [np.uint64(1), 5], stream)  # type: ignore[list-item]
    with pytest.raises(EngineError, match="CUDA"):
        context.load_module(PTX).function("nowhere")


def test_events_order_streams(gpu, context):
    first, second = context.make_stream(), context.make_stream()
    start, end = context.make_event(timing=True), context.make_event(timing=True)
    first.record(start)
    second.wait(start)
    second.record(end)
    end.synchronize()
    assert end.elapsed_ms(start) == 1.5
    assert gpu.calls == ["record", "wait", "record", "synchronize event"]
    assert first.pointer != second.pointer


def test_everything_is_given_back(gpu, binding):
    with CudaContext(open_driver(binding)) as context:
        context.allocate(10)
        context.allocate_pinned(10)
        stream, event = context.make_stream(), context.make_event()
        context.load_module(PTX)
        stream.close()
        stream.close()
        with pytest.raises(EngineError, match="Stream was used after it was given back"):
            stream.synchronize()
        event.close()
    context.close()
    del stream, event
    assert not gpu.alive
    with pytest.raises(EngineError, match="context was used after"):
        context.allocate(1)


def test_a_recording_is_done_again(gpu, monkeypatch):
    gpu = FakeGpu()
    install_bindings(monkeypatch, gpu)
    with CudaContext(open_driver("cuda-bindings")) as context:
        stream, buffer, pinned = context.make_stream(), context.allocate(4), context.allocate_pinned(4)
        view = pinned.view((4,), np.uint8)
        with context.capture(stream) as captured:
            buffer.upload(view, stream)
        (graph,) = captured
        view[:] = 7
        graph.launch(stream)
        view[:] = 0
        buffer.download(view, stream)
        assert view.tolist() == [7, 7, 7, 7]
    assert not gpu.alive


def test_a_recording_that_fails_leaves_the_stream_usable(gpu, monkeypatch):
    gpu = FakeGpu()
    install_bindings(monkeypatch, gpu)
    with CudaContext(open_driver("cuda-bindings")) as context:
        stream = context.make_stream()
        with pytest.raises(EngineError, match="cuStreamSynchronize failed"), context.capture(stream):
            stream.synchronize()
        stream.synchronize()
    assert not gpu.alive


def test_pycuda_cannot_record(monkeypatch):
    install_pycuda(monkeypatch, FakeGpu())
    with CudaContext(open_driver("pycuda")) as context:
        assert not context.driver.has_graphs
        with pytest.raises(EngineError, match="no CUDA graphs"), context.capture(context.make_stream()):
            pass


def test_importing_touches_no_driver():
    code = (
        "import sys, roiline.engines.cuda.resources, roiline.engines.cuda.bindings_driver, roiline.engines.cuda.pycuda_driver;"
        "print([name for name in sys.modules if name.split('.')[0] in ('cuda', 'pycuda')])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert answer.stdout.strip() == "[]"


def test_the_real_bindings_without_a_driver():
    if importlib.util.find_spec("cuda") is None:
        pytest.skip("cuda-bindings is not installed")
    import ctypes.util

    if ctypes.util.find_library("cuda"):
        pytest.skip("this machine has an NVIDIA driver")
    code = (
        "from roiline.core.errors import EngineError\nfrom roiline.engines.cuda.driver import open_driver\n"
        "try:\n    open_driver('cuda-bindings')\nexcept EngineError as error:\n    print(error)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert answer.stdout.startswith("no NVIDIA driver on this machine")
