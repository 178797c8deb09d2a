"""A TensorRT whose builder builds nothing: it parses what it is given, notes every call, and returns bytes that follow from them."""

from __future__ import annotations

import enum
import hashlib
import sys
import types
from typing import Any

import onnx


class FakeBuild:
    """Is one fake installation: what was asked of it, and how it is to fail."""

    def __init__(self, version: str = "11.4.0.106") -> None:
        self.version = version
        self.calls: list[str] = []
        self.profiles: list[dict[str, tuple[Any, Any, Any]]] = []
        self.registered: dict[str, set[str]] = {}
        self.config: Any = None
        self.lost_plugins = 0
        self.parse_error: str | None = None
        self.build_error: str | None = None
        self.no_builder = False
        self.refuses_cache = False
        self.refuses_profiles = False
        self.forgets_creators = False


class _Flag(enum.IntEnum):
    PREFER_AOT_PYTHON_PLUGINS = 2


def install_builder(monkeypatch: Any, fake: FakeBuild) -> types.ModuleType:
    """Puts the fake in place of `tensorrt` and `tensorrt.plugin`."""
    trt, trtp = _make_module(fake), _make_plugin_module(fake)
    trt.plugin = trtp  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    monkeypatch.setitem(sys.modules, "tensorrt.plugin", trtp)
    return trt


def _make_module(fake: FakeBuild) -> types.ModuleType:
    module = types.ModuleType("tensorrt")

    class Severity:
        INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    class ILogger:
        pass

    ILogger.Severity = Severity  # type: ignore[attr-defined]
    members = {
        "__version__": fake.version,
        "ILogger": ILogger,
        "Builder": lambda logger: _Builder(fake, logger),
        "OnnxParser": lambda network, logger: _Parser(fake, network),
        "NetworkDefinitionCreationFlag": _Flag,
        "MemoryPoolType": types.SimpleNamespace(WORKSPACE="workspace"),
        "ProfilingVerbosity": types.SimpleNamespace(DETAILED="detailed"),
        "BuilderFlag": types.SimpleNamespace(TF32="tf32", VERSION_COMPATIBLE="version compatible"),
        "HardwareCompatibilityLevel": types.SimpleNamespace(AMPERE_PLUS="ampere plus"),
        "LayerType": types.SimpleNamespace(PLUGIN_V3="plugin"),
        "DataType": types.SimpleNamespace(FLOAT="f", HALF="h", INT32="i", INT64="l", UINT8="u"),
        "get_plugin_registry": lambda: _Registry(fake),
    }
    for name, member in members.items():
        setattr(module, name, member)
    return module


def _make_plugin_module(fake: FakeBuild) -> types.ModuleType:
    module = types.ModuleType("tensorrt.plugin")

    def decorator(kind: str) -> Any:
        def take(identity: str) -> Any:
            def note(function: Any) -> Any:
                fake.registered.setdefault(identity, set()).add(kind)
                return function

            return note

        return take

    for kind in ("register", "autotune", "aot_impl"):
        setattr(module, kind, decorator(kind))
    for name in ("TensorDesc", "AutoTuneCombination", "KernelLaunchParams", "SymExprs"):
        setattr(module, name, type(name, (), {}))
    module.op = types.SimpleNamespace()  # type: ignore[attr-defined]
    return module


class _Registry:
    def __init__(self, fake: FakeBuild) -> None:
        self._fake = fake

    def get_creator(self, name: str, version: str, namespace: str) -> object:
        known = f"{namespace}::{name}" in self._fake.registered and version == "1"
        return object() if known and not self._fake.forgets_creators else None


class _Network:
    def __init__(self) -> None:
        self.layers: list[types.SimpleNamespace] = []

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def get_layer(self, index: int) -> types.SimpleNamespace:
        return self.layers[index]


class _Parser:
    def __init__(self, fake: FakeBuild, network: _Network) -> None:
        self._fake, self._network = fake, network
        self.num_errors = 0 if fake.parse_error is None else 1

    def get_error(self, index: int) -> str | None:
        return self._fake.parse_error

    def parse(self, content: bytes) -> bool:
        if self._fake.parse_error is not None:
            return False
        self._fake.calls.append("parse")
        lost = self._fake.lost_plugins
        for node in onnx.load_from_string(content).graph.node:
            is_plugin = node.domain == "roiline"
            lost -= is_plugin
            self._network.layers.append(
                types.SimpleNamespace(name=node.name, type="plugin" if is_plugin and lost < 0 else "other")
            )
        return True


class _Cache:
    def __init__(self, stored: bytes) -> None:
        self.stored = stored

    def serialize(self) -> bytes:
        return self.stored + b"+"


class _Config:
    def __init__(self, fake: FakeBuild) -> None:
        self.fake = fake
        self.flags = {"tf32"}
        self.pools: dict[str, int] = {}
        self.profiling_verbosity = self.hardware_compatibility_level = "none"
        self.cache: _Cache | None = None

    def set_memory_pool_limit(self, pool: str, size: int) -> None:
        self.pools[pool] = size

    def set_flag(self, flag: str) -> None:
        self.flags.add(flag)

    def clear_flag(self, flag: str) -> None:
        self.flags.discard(flag)

    def create_timing_cache(self, stored: bytes) -> _Cache:
        return _Cache(stored)

    def set_timing_cache(self, cache: _Cache, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        self.cache = cache
        return not self.fake.refuses_cache

    def add_optimization_profile(self, profile: _Profile) -> int:
        self.fake.profiles.append(profile.shapes)
        return -1 if self.fake.refuses_profiles else len(self.fake.profiles) - 1


class _Profile:
    def __init__(self) -> None:
        self.shapes: dict[str, tuple[Any, Any, Any]] = {}

    def set_shape(self, name: str, low: Any, usual: Any, high: Any) -> None:
        self.shapes[name] = (low, usual, high)


class _Builder:
    def __init__(self, fake: FakeBuild, logger: Any) -> None:
        if fake.no_builder:
            raise TypeError("pybind11::init(): factory function returned nullptr")
        self._fake, self._logger = fake, logger

    def create_network(self, flags: int) -> _Network:
        assert flags == 1 << _Flag.PREFER_AOT_PYTHON_PLUGINS
        return _Network()

    def create_builder_config(self) -> _Config:
        self._fake.config = _Config(self._fake)
        return self._fake.config

    def create_optimization_profile(self) -> _Profile:
        return _Profile()

    def build_serialized_network(self, network: _Network, config: _Config) -> bytes | None:
        self._fake.calls.append("build")
        if self._fake.build_error is not None:
            self._logger.log(1, self._fake.build_error)
            return None
        said = f"{[layer.name for layer in network.layers]} {self._fake.profiles} {sorted(config.flags)}"
        return b"engine " + hashlib.sha256(said.encode()).digest()
