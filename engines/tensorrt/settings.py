"""What an engine may be built with, beside the model and its shapes."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_WORKSPACE_MB = 4096


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """Is how an engine is built.

    `workspace_mb`: scratch memory that a layer may take at most. `tf32`: let single precision be computed with 10 bits of mantissa, which
    is faster and no longer agrees with other engines. `version_compatible`: the engine runs on later TensorRT of the same major version.
    `hardware_compatible`: it runs on every GPU from compute capability 8.0 on. Both cost speed.
    """

    workspace_mb: int = DEFAULT_WORKSPACE_MB
    tf32: bool = False
    version_compatible: bool = False
    hardware_compatible: bool = False
