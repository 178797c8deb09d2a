"""The real Python bindings of TensorRT 11 over stub libraries: declarations are validated by TensorRT's own code, nothing is built or run.

The bindings are a wheel of their own; the libraries they want are not to be had without NVIDIA's index. They need a handful of symbols,
which a few lines of C give them. A builder's dimension expressions are stood in for by numbers.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

_LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
_SYMBOLS = (
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createInferRuntime_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL",
    "createNvOnnxParser_INTERNAL",
    "getBuilderPluginRegistry",
    "getNvOnnxParserVersion",
    "getPluginRegistry",
    "initLibNvInferPlugins",
)


def skip_without_bindings() -> None:
    """Skips a module's tests where the bindings or gcc are absent."""
    if importlib.util.find_spec("tensorrt_bindings") is None:
        pytest.skip("needs the wheel tensorrt_cu13_bindings 11", allow_module_level=True)
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc for the stub libraries", allow_module_level=True)


@lru_cache(maxsize=1)
def _load(folder: Path) -> dict[str, Any]:
    """Imports the bindings once and returns the modules that they are, by the names that TensorRT's code imports."""
    source = folder / "stubs.c"
    source.write_text("\n".join(f"void *{symbol}(void) {{ return 0; }}" for symbol in _SYMBOLS))
    for name in _LIBRARIES:
        target = folder / f"lib{name}.so.11"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{target.name}", str(source), "-o", str(target)], check=True
        )
        ctypes.CDLL(str(target), ctypes.RTLD_GLOBAL)
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "tensorrt"}
    bindings = importlib.import_module("tensorrt_bindings")
    sys.modules["tensorrt"] = bindings
    bindings.get_plugin_registry = Registry.shared
    importlib.import_module("tensorrt.plugin")
    found = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "tensorrt"}
    sys.modules.update(before)
    return found


@contextmanager
def real_bindings(folder: Path):
    """Gives TensorRT's module and its `plugin` module, and takes the name `tensorrt` back afterwards."""
    modules = _load(folder)
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "tensorrt"}
    sys.modules.update(modules)
    try:
        yield modules["tensorrt"], modules["tensorrt.plugin"]
    finally:
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(before)


class Registry:
    """Is a plugin registry in Python, in place of the one of the absent library."""

    _one: Registry | None = None

    def __init__(self) -> None:
        self.creators: dict[tuple[str, str, str], Any] = {}

    @classmethod
    def shared(cls) -> Registry:
        cls._one = cls._one or cls()
        return cls._one

    def register_creator(self, creator: Any, namespace: str = "") -> bool:
        self.creators[creator.name, creator.plugin_version, namespace or creator.plugin_namespace] = creator
        return True

    def get_creator(self, name: str, version: str, namespace: str) -> Any:
        return self.creators.get((name, version, namespace))


def make_expressions(trt: Any, trtp: Any) -> Any:
    """Returns a builder of dimension expressions that are numbers."""

    class Number(trt.IDimensionExpr):
        value: int

        def is_constant(self) -> bool:
            return False

    operations = {
        trt.DimensionOperation.SUM: lambda a, b: a + b,
        trt.DimensionOperation.SUB: lambda a, b: a - b,
        trt.DimensionOperation.PROD: lambda a, b: a * b,
        trt.DimensionOperation.FLOOR_DIV: lambda a, b: a // b,
        trt.DimensionOperation.CEIL_DIV: lambda a, b: -(-a // b),
        trt.DimensionOperation.MIN: min,
        trt.DimensionOperation.MAX: max,
    }

    def constant(value: int) -> Any:
        number = Number.__new__(Number)  # the base class is abstract in C++ and has no constructor
        number.value = value
        return number

    def operation(kind: Any, first: Any, second: Any) -> Any:
        return constant(operations[kind](first.value, second.value))

    return SimpleNamespace(constant=constant, operation=operation)


class PluginUnderTest:
    """Asks a registered plugin what TensorRT's builder asks, in its order, and gives numbers back."""

    def __init__(self, trt: Any, trtp: Any, registry: Registry, name: str, namespace: str = "roiline") -> None:
        creator = registry.get_creator(name, "1", namespace)
        fields = trt.PluginFieldCollection([])
        wanted = trt.QuickPluginCreationRequest.STRICT_AOT
        self._trt = trt
        self._builder = make_expressions(trt, trtp)
        self.plugin = creator.create_plugin(name, namespace, fields, trt.TensorRTPhase.BUILD, wanted)

    def output_types(self, types: Sequence[Any], ranks: Sequence[int]) -> list[Any]:
        return list(self.plugin.get_output_data_types(list(types), list(ranks)))

    def output_shapes(self, shapes: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        expressions = [[self._builder.constant(size) for size in shape] for shape in shapes]
        real, self._trt.DimsExprs = self._trt.DimsExprs, lambda length: [None] * length
        try:
            given = self.plugin.get_output_shapes(expressions, [], self._builder)
        finally:
            self._trt.DimsExprs = real
        return [tuple(size.value for size in shape) for shape in given]

    def kernel(self, types: Sequence[Any], shapes: Sequence[Sequence[int]]) -> tuple[str, bytes, int]:
        """Goes the way of a build: formats, launch parameters, kernel. Returns entry, PTX and the number of extra integers."""
        plugin = self.plugin
        ends = [self._describe(kind, shape) for kind, shape in zip(types, shapes, strict=True)]
        outputs = self.output_shapes(shapes)
        ends += [self._describe(kind, shape) for kind, shape in zip(plugin.output_types, outputs, strict=True)]
        offered = plugin.get_supported_format_combinations(ends, len(shapes))
        assert [one.type for one in offered] == [end.desc.type for end in ends]
        assert {one.format for one in offered} == {self._trt.TensorFormat.LINEAR}
        plugin.configure_plugin(ends[: len(shapes)], ends[len(shapes) :])
        assert plugin.get_valid_tactics() == []
        plugin.set_tactic(0)
        setter = _SymbolSetter()
        plugin.get_launch_params([], ends, len(shapes), SimpleNamespace(), setter, self._builder)
        assert sorted(setter) == list(range(setter.nbSymExprs))
        descriptions = [end.desc for end in ends]
        entry, ptx = plugin.get_kernel(descriptions[: len(shapes)], descriptions[len(shapes) :])
        return entry, ptx, setter.nbSymExprs

    def _describe(self, kind: Any, shape: Sequence[int]) -> Any:
        end = self._trt.DynamicPluginTensorDesc()
        end.desc.type, end.desc.format = kind, self._trt.TensorFormat.LINEAR
        end.desc.dims = end.min = end.opt = end.max = self._trt.Dims(tuple(shape))
        return end

    def launch(self, shapes: Sequence[Sequence[int]]) -> tuple[str, str, dict[str, int], list[int]]:
        """Returns the entry, the PTX, the launch parameters and the extra integers for input shapes."""
        self.output_shapes(shapes)
        expressions = sys.modules["tensorrt.plugin._tensor"].SymIntExpr
        expressions._exprBuilder = self._builder
        try:
            plugin = self.plugin
            entry, ptx, params, extra = plugin.aot_impl_function(*plugin.input_descs, plugin.output_descs, 0)
        finally:
            expressions._exprBuilder = None
        launch = {name: value._expr.value for name, value in vars(params).items()}
        return entry, ptx, launch, [value._expr.value for value in extra]


class _SymbolSetter(dict[int, Any]):
    """Takes the symbols of extra arguments by place."""

    nbSymExprs = 0  # noqa: N815 - the name is TensorRT's
