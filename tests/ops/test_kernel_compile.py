"""Compiles every kernel, in all its element types and numbers of levels, to PTX and for every GPU generation: nothing may be spilled."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from kernel_calls import KERNELS, KernelCall, record_calls

from roiline.core.errors import EngineError
from roiline.ops.kernel_build import DEVICE_ARCHITECTURE, compile_ptx, find_device_compiler
from roiline.ops.kernel_source import translation_unit

pytestmark = pytest.mark.cuda_compile

GENERATIONS = ("sm_80", "sm_90", "sm_100", "sm_120")
USAGE = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """Returns the translation unit of every instance of a kernel by a name for it."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        calls = {call.instance: call for call in record_calls(monkeypatch, ((1, 12),))}
    units = {}
    for call in calls.values():
        for dtypes in _variants(call):
            node = KERNELS[call.kernel].node(len(call.arrays), call.attributes)
            units[f"{node.op_type} {' '.join(dict.fromkeys(dtypes))}"] = translation_unit(node, dtypes)
    assert {name.split()[0].rstrip("0123456789") for name in units} == set(KERNELS)
    return units


def _variants(call: KernelCall) -> list[list[str]]:
    """Returns the element types of a call's inputs, and those with half-precision maps where a kernel takes them."""
    node = KERNELS[call.kernel].node(len(call.arrays), call.attributes)
    dtypes = [array.dtype.name for array in call.arrays]
    half = [
        "float16" if "float16" in rule.dtypes else dtype
        for (_, _, rule), dtype in zip(node.inputs, dtypes, strict=True)
    ]
    return [dtypes, half]


def _ptx_for_ptxas(source: str) -> str:
    """Returns PTX of the toolkit that ptxas belongs to, if nvcc is there: NVRTC of a newer one writes what it cannot read."""
    try:
        return compile_ptx(source, compiler="nvcc" if shutil.which("nvcc") else find_device_compiler())
    except EngineError as error:
        if "no compiler" in str(error):
            pytest.skip(str(error))
        raise


def test_no_generation_spills(sources, tmp_path):
    if shutil.which("ptxas") is None:
        pytest.skip("ptxas is not on the PATH")
    for name, source in sources.items():
        ptx = tmp_path / "kernel.ptx"
        ptx.write_text(_ptx_for_ptxas(source))
        for generation in GENERATIONS:
            command = ["ptxas", "-v", f"-arch={generation}", str(ptx), "-o", str(tmp_path / "kernel.cubin")]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            assert result.returncode == 0, (name, generation, result.stderr)
            usage = USAGE.findall(result.stderr)
            assert usage, (name, result.stderr)
            assert set(usage) == {("0", "0", "0")}, (name, generation, result.stderr)


def test_nvrtc_takes_every_source(sources):
    pytest.importorskip(
        "cuda.bindings.nvrtc", reason="NVRTC's bindings (cuda-bindings, nvidia-cuda-nvrtc) are not installed"
    )
    for name, source in sources.items():
        ptx = compile_ptx(source, compiler="nvrtc")
        assert f".target {DEVICE_ARCHITECTURE.replace('compute', 'sm')}" in ptx, name
        assert ".entry roiline_" in ptx, name
        own = source.partition("struct Arguments")[2]
        if "expf(" not in own and "fmaf(" not in own:  # these two are made of fused steps on purpose
            assert not re.search(r"\bfma\.rn", ptx), name


def test_half_precision_is_converted_by_the_device(sources):
    (source,) = {source for name, source in sources.items() if name == "AlignRoIs4 float32 float16"}
    ptx = _ptx_for_ptxas(source)
    assert "cvt.f32.f16" in ptx
    assert "cvt.rn.f16.f32" in ptx
