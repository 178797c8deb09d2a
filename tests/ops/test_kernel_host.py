from __future__ import annotations

import numpy as np
import pytest
from operator_forms import need_host_compiler

from roiline.core.errors import EngineError
from roiline.ops import kernel_build, kernel_source
from roiline.ops.kernel_build import compile_host_library, compile_ptx, find_device_compiler
from roiline.ops.kernel_host import run_on_host
from roiline.ops.kernel_source import translation_unit
from roiline.ops.kernels import Kernel, KernelInput, KernelOutput

ONE = KernelInput(("float32", "float16"), 1)
COPY = """
DEVICE void work(const Arguments& k, Index item) { store(k.to + item, to_float(k.from[item])); }
"""
SUM = """
DEVICE void work(const Arguments& k, Index item, Block& block) {
  float* sums = (float*)block.shared;
  sums[block.thread] = 0.0f;
  for (Index i = block.thread; i < k.length; i += block.threads) sums[block.thread] += k.from[i];
  block.barrier();
  if (block.thread == 0) {
    float total = 0.0f;
    for (int i = 0; i < block.threads; ++i) total += sums[i];
    k.to[item] = total * k.factor;
  }
}
"""


def _kernel(monkeypatch, tmp_path, source: str, to: str = "float32", **changes) -> Kernel:
    need_host_compiler()
    (tmp_path / "kernel_sources").symlink_to(kernel_source._OPS / "kernel_sources")
    (tmp_path / "work.cuh").write_text(source)
    monkeypatch.setattr(kernel_source, "_OPS", tmp_path)
    settings = {
        "inputs": {"from": ONE},
        "outputs": {"to": KernelOutput(to, lambda node: (node.dim("from", 0),))},
        "items": lambda node: node.dim("from", 0),
    } | changes
    return Kernel(name="Work", source="work.cuh", function="work", **settings)


def test_half_precision_is_numpys_to_the_last_bit(monkeypatch, tmp_path):
    kernel = _kernel(monkeypatch, tmp_path, COPY)
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    (wide,) = run_on_host(kernel, [every], {})
    np.testing.assert_array_equal(wide, every.astype(np.float32))


def test_rounding_to_half_precision_is_numpys_to_the_last_bit(monkeypatch, tmp_path):
    kernel = _kernel(monkeypatch, tmp_path, COPY, to="float16")
    every = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    every = every[np.isfinite(every)]
    between = (every[:-1] + np.diff(every) / 2).astype(np.float32)
    values = np.concatenate(
        [every, between, np.nextafter(between, np.float32(np.inf)), np.nextafter(between, np.float32(-np.inf))]
    )
    values = np.concatenate(
        [values, np.array([65519.99, 65520, 1e9, np.inf, -np.inf, -65520, 1e-9, -1e-9, 0.0, -0.0], np.float32)]
    )
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    (narrow,) = run_on_host(kernel, [values], {})
    np.testing.assert_array_equal(narrow.view(np.uint16), expected.view(np.uint16))
    (nan,) = run_on_host(kernel, [np.array([np.nan], np.float32)], {})
    assert np.isnan(nan).all()


@pytest.mark.parametrize("threads", [1, 4])
def test_a_block_works_together(threads, monkeypatch, tmp_path):
    kernel = _kernel(
        monkeypatch,
        tmp_path,
        SUM,
        inputs={"from": KernelInput(("float32",), 1)},
        outputs={"to": KernelOutput("float32", lambda node: (3,))},
        items=lambda node: 3,
        arguments=lambda node: {"length": node.dim("from", 0), "factor": 0.5},
        cooperative=True,
        shared_bytes=lambda node: 4 * 256,
    )
    (total,) = run_on_host(kernel, [np.arange(100, dtype=np.float32)], {}, threads=threads)
    assert total.tolist() == [2475.0] * 3


def test_what_a_kernel_does_not_write_is_garbage(monkeypatch, tmp_path):
    kernel = _kernel(
        monkeypatch, tmp_path, "DEVICE void work(const Arguments& k, Index item) { if (item == 1) k.to[item] = 1.0f; }"
    )
    (left,) = run_on_host(kernel, [np.zeros(3, np.float32)], {})
    assert left[1] == 1
    assert (left[[0, 2]].view(np.uint8) == 0xA5).all()


def test_no_rows_are_no_work(monkeypatch, tmp_path):
    (nothing,) = run_on_host(_kernel(monkeypatch, tmp_path, COPY), [np.zeros(0, np.float32)], {})
    assert nothing.shape == (0,)


def test_arrays_that_do_not_fit_are_refused(monkeypatch, tmp_path):
    kernel = _kernel(monkeypatch, tmp_path, COPY)
    with pytest.raises(TypeError, match=r"input from has shape \(2, 2\), expected rank 1"):
        run_on_host(kernel, [np.zeros((2, 2), np.float32)], {})
    with pytest.raises(TypeError, match="input from is float64"):
        run_on_host(kernel, [np.zeros(2)], {})


def test_an_argument_beyond_32_bits_is_refused(monkeypatch, tmp_path):
    kernel = _kernel(monkeypatch, tmp_path, COPY, arguments=lambda node: {"much": node.dim("from", 0) * 2**31})
    with pytest.raises(TypeError, match="does not fit 32 bits"):
        run_on_host(kernel, [np.zeros(2, np.float32)], {})


def test_a_source_that_the_compiler_refuses_is_named(monkeypatch, tmp_path):
    kernel = _kernel(monkeypatch, tmp_path, "DEVICE void work(const Arguments& k, Index item) { k.nowhere[item] = 1; }")
    with pytest.raises(EngineError, match=r"g\+\+ refused a kernel source(.|\n)*nowhere"):
        run_on_host(kernel, [np.zeros(2, np.float32)], {})


def test_a_missing_source_is_named(monkeypatch, tmp_path):
    kernel = _kernel(monkeypatch, tmp_path, '#include "gone.cuh"\n')
    with pytest.raises(EngineError, match=r"gone\.cuh cannot be read"):
        translation_unit(kernel.node(1, {}), ["float32"])


def test_a_header_is_taken_once(monkeypatch, tmp_path):
    (tmp_path / "shared.cuh").write_text('#include "deeper.cuh"\nint shared_once;\n')
    (tmp_path / "deeper.cuh").write_text("int deeper_once;\n")
    kernel = _kernel(monkeypatch, tmp_path, '#include "shared.cuh"\n#include "deeper.cuh"\n#include "shared.cuh"\n')
    unit = translation_unit(kernel.node(1, {}), ["float32"])
    assert unit.count("shared_once") == unit.count("deeper_once") == 1
    assert '#include "' not in unit


def test_absent_compilers_are_errors(monkeypatch, tmp_path):
    def refuse() -> None:
        raise EngineError("NVRTC cannot be loaded")

    monkeypatch.setattr(kernel_build, "_open_nvrtc", refuse)
    monkeypatch.setattr(kernel_build.shutil, "which", lambda name: None)
    with pytest.raises(EngineError, match=r"no compiler for CUDA kernels: NVRTC cannot be loaded; nvcc"):
        find_device_compiler()
    with pytest.raises(EngineError, match="nvcc was asked for"):
        compile_ptx("", compiler="nvcc")
    with pytest.raises(EngineError, match=r"g\+\+ was asked for"):
        compile_host_library("", tmp_path / "none.so")


def test_nvrtc_comes_before_nvcc(monkeypatch):
    monkeypatch.setattr(kernel_build, "_open_nvrtc", lambda: object())
    assert find_device_compiler() == "nvrtc"
