"""Kernels launched through the CUDA layer: a fake GPU runs the source that the host compiles, with the pointers of its own memory."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from cuda_fakes import FakeGpu, install_bindings, install_pycuda
from operator_forms import need_host_compiler

from roiline.engines.cuda.driver import open_driver
from roiline.engines.cuda.kernels import DeviceKernels, launch_rule
from roiline.engines.cuda.resources import CudaContext
from roiline.ops.kernel_build import compile_host_library
from roiline.ops.kernel_host import run_on_host
from roiline.ops.kernel_source import translation_unit
from roiline.ops.multilevel_roi_align import MULTILEVEL_ROI_ALIGN
from roiline.ops.trim import TRIM

(ALIGN,) = MULTILEVEL_ROI_ALIGN.kernels
(PAD_ROWS,) = TRIM.kernels


class HostGpu(FakeGpu):
    """Does the work of a launch with the library that g++ makes of the same source."""

    def prepare(self, node, arrays, folder):
        need_host_compiler()
        dtypes = [array.dtype.name for array in arrays]
        compile_host_library(translation_unit(node, dtypes), folder / f"{node.kernel.function}.so")
        library = ctypes.CDLL(str(folder / f"{node.kernel.function}.so"))
        _, arguments = launch_rule(node, arrays, [0] * (len(arrays) + len(node.kernel.outputs)))
        self.kernels[node.kernel.entry] = tuple(type(argument) for argument in arguments)

        def execute(name, values):
            converted = [
                ctypes.c_void_p(self.view(value, 1).ctypes.data) if kind is np.uint64 else ctypes.c_int32(value)
                for kind, value in zip(self.kernels[name], values, strict=True)
            ]
            library[name](*converted)

        self.execute = execute


@pytest.fixture(params=["cuda-bindings", "pycuda"])
def gpu(request, monkeypatch):
    gpu = HostGpu()
    {"cuda-bindings": install_bindings, "pycuda": install_pycuda}[request.param](monkeypatch, gpu)
    gpu.binding = request.param
    return gpu


def make_case(name):
    random = np.random.default_rng(3)
    if name == "rows":
        boxes = random.random((2, 5, 4), np.float32)
        return PAD_ROWS.node(2, {}), (boxes, np.int64([3, 5]))
    rois = np.float32([[0, 1, 2, 30, 25], [0, 5, 5, 200, 180], [-1, 0, 0, 0, 0]])
    features = [random.random((1, 6, 32 >> level, 40 >> level), np.float32) for level in range(2)]
    attributes = MULTILEVEL_ROI_ALIGN.complete({"spatial_scales": (0.25, 0.125), "resolution": 7, "sampling_ratio": 2})
    return ALIGN.node(3, attributes), (rois, *features)


@pytest.mark.parametrize("name", ["rows", "align"])
def test_a_launch_is_what_the_host_runs(gpu, tmp_path, name):
    node, arrays = make_case(name)
    gpu.prepare(node, arrays, tmp_path)
    compiled = []

    def compile_kernel(one, dtypes):
        compiled.append(one.kernel.name)
        return translation_unit(one, dtypes)

    with CudaContext(open_driver(gpu.binding)) as context:
        kernels = DeviceKernels(context, compile_kernel)
        measured = kernels.measure(node, arrays, launches=3)
        assert not gpu.memory
    expected = run_on_host(node.kernel, arrays, node.attributes)
    for got, want in zip(measured.outputs, expected, strict=True):
        np.testing.assert_array_equal(got, want)
    assert measured.launches_ms == (1.5, 1.5, 1.5)
    assert measured.moved_bytes == sum(array.nbytes for array in (*arrays, *expected))
    assert len(gpu.launches) == 3
    _, grid, block, shared, _ = gpu.launches[0]
    assert block == (node.kernel.block, 1, 1)
    assert grid[0] * block[0] >= max(array.size for array in expected) > (grid[0] - 1) * block[0]
    assert shared == 0
    del kernels, measured
    assert not gpu.alive


def test_arrays_that_do_not_fit_are_refused(gpu, tmp_path):
    node, (boxes, count) = make_case("rows")
    with CudaContext(open_driver(gpu.binding)) as context:
        kernels = DeviceKernels(context, translation_unit)
        with pytest.raises(TypeError, match="expected rank 3"):
            kernels.run(node, (boxes[0], count))
        with pytest.raises(TypeError, match="count is int32"):
            kernels.run(node, (boxes, count.astype(np.int32)))
        assert not gpu.memory
