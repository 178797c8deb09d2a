"""What ONNX Runtime is asked to run on: its provider for a device, the options that make answers repeatable, and what it really took.

ONNX Runtime falls back to the CPU without a word that a program could read, and goes on listing CUDA as available. So the session that
was made is compared with what was asked for, and any difference is an error that says what the provider needs.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roiline.core.errors import EngineError
from roiline.engines.protocol import Device

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"

_NEEDS = {
    CUDA: "onnxruntime-gpu {version} needs the libraries of CUDA {cuda} (cuBLAS, cuRAND, cuFFT), cuDNN 9, and a driver for that CUDA",
    TENSORRT: (
        "its TensorRT provider needs TensorRT 10 (libnvinfer.so.10) beside the libraries of CUDA {cuda} and cuDNN 9, and a driver for that "
        "CUDA; for TensorRT 11 use `roiline build` and --engine tensorrt"
    ),
}


@dataclass(frozen=True, slots=True)
class ProviderChoice:
    """Is the providers that a session is asked for, by descending precedence, each with its options."""

    providers: tuple[tuple[str, Mapping[str, str]], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Is the providers' names."""
        return tuple(name for name, _ in self.providers)

    @property
    def arguments(self) -> list[tuple[str, dict[str, str]]]:
        """Is what a session takes."""
        return [(name, dict(options)) for name, options in self.providers]


def cpu_provider() -> ProviderChoice:
    """Returns the CPU alone."""
    return ProviderChoice(((CPU, {}),))


def cuda_provider(device: Device) -> ProviderChoice:
    """Returns CUDA on a GPU: in full single precision, and with convolutions chosen by rule instead of by a race.

    A race between algorithms can end otherwise the next time, and another algorithm gives other last bits.
    """
    options = {
        "device_id": str(device.index),
        "use_tf32": "0",
        "cudnn_conv_algo_search": "HEURISTIC",
        "do_copy_in_default_stream": "1",
    }
    return ProviderChoice(((CUDA, options),))


def tensorrt_provider(device: Device) -> ProviderChoice:
    """Returns ONNX Runtime's own TensorRT provider on a GPU, CUDA taking what TensorRT does not."""
    options = {"device_id": str(device.index), "trt_fp16_enable": "0", "trt_int8_enable": "0"}
    return ProviderChoice(((TENSORRT, options), *cuda_provider(device).providers))


def check_available(onnxruntime: Any, choice: ProviderChoice, device: Device) -> None:
    """Checks that the installed package was built with the providers.

    Raises:
        EngineError: it was not; both packages are named.
    """
    missing = [name for name in choice.names if name not in onnxruntime.get_available_providers()]
    if missing:
        raise EngineError(
            f"{device.kind}:{device.index} was asked for and the installed ONNX Runtime {onnxruntime.__version__} is built without "
            f"{', '.join(missing)}: it is the CPU package, or was overwritten by it. The two exclude each other: "
            "`pip uninstall onnxruntime onnxruntime-gpu`, then `pip install 'roiline[gpu]'` (or stay on the CPU with --cpu-workers N)"
        )


def load_libraries(onnxruntime: Any) -> str:
    """Loads the CUDA libraries that are installed as Python packages, where ONNX Runtime can; returns what it said about it."""
    preload = getattr(onnxruntime, "preload_dlls", None)
    if preload is None:
        return ""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        preload()
    return said.getvalue().strip()


def forbid_tf32() -> None:
    """Asks all of NVIDIA's libraries of this process for full single precision: the TensorRT provider has no option for it.

    It holds for libraries that are loaded later; where somebody has set it, it stays.
    """
    os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")


def check_taken(onnxruntime: Any, choice: ProviderChoice, taken: Sequence[str], *, said: str = "") -> None:
    """Checks that a session took the providers that it was asked for, in that order; the CPU may come last, for small nodes.

    Raises:
        EngineError: it took others; what the missing provider needs is said.
    """
    rest = [*taken[len(choice.names) :]]
    if (*taken[: len(choice.names)],) == choice.names and rest in ([], [CPU]):
        return
    missing = next((name for name in choice.names if name not in taken), choice.names[0])
    raise EngineError(
        f"ONNX Runtime was asked for {', '.join(choice.names)} and took {', '.join(taken)} "
        f"without raising an error; {describe_needs(onnxruntime, missing)}{f' (it said: {said})' if said else ''}"
    )


def describe_needs(onnxruntime: Any, provider: str) -> str:
    """Returns what a provider needs on a machine."""
    cuda = getattr(onnxruntime, "cuda_version", "") or "13"
    needs = _NEEDS.get(provider, "{version}").format(version=onnxruntime.__version__, cuda=cuda)
    return (
        f"{needs}. Its own lines on the standard error name the library that is missing; `nvidia-smi` shows the driver"
    )
