"""What an engine is made of, as hashes: two builds of one identity would give the same engine, as far as a builder's choice goes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from roiline.core.errors import ModelError
from roiline.core.files import sha256_of_file
from roiline.core.records import plain_from_record
from roiline.engines.tensorrt.passport import Machine
from roiline.engines.tensorrt.profiles import Profile
from roiline.engines.tensorrt.settings import BuildSettings
from roiline.ops.kernel_source import translation_unit
from roiline.ops.kernels import KernelNode


def engine_identity(
    model: onnx.ModelProto,
    source: Path,
    *,
    plugins: Mapping[str, KernelNode],
    profiles: Sequence[Profile],
    settings: BuildSettings,
    machine: Machine,
    package_version: str,
) -> dict[str, str]:
    """Returns the identity of an engine of a lowered model; `source` is the file that it came from, beside which external data lies.

    Raises:
        ModelError: a file of external data is not there.
    """
    return {
        "graph": _digest(_graph_bytes(model)),
        "weights": weights_digest(model, source),
        "kernels": _digest("".join(f"{name} {digest}\n" for name, digest in plugin_digests(plugins).items()).encode()),
        "profiles": _digest(_text([plain_from_record(profile) for profile in profiles])),
        "settings": json.dumps(plain_from_record(settings), sort_keys=True),
        "tensorrt": machine.tensorrt,
        "cuda": machine.cuda,
        "gpu": f"{machine.gpu} ({machine.compute_capability})",
        "roiline": package_version,
    }


def weights_digest(model: onnx.ModelProto, source: Path) -> str:
    """Returns the SHA-256 of all weights: their names, types, shapes and every byte, wherever these lie.

    Raises:
        ModelError: a file of external data is not there.
    """
    digest = hashlib.sha256()
    for tensor in sorted(model.graph.initializer, key=lambda tensor: str(tensor.name)):
        head = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        digest.update(head.SerializeToString(deterministic=True))
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            path = source.parent / entries["location"]
            if not path.is_file():
                raise ModelError(f"{source}: its weights lie in {path.name}, which is not beside it")
            place = {key: value for key, value in entries.items() if key in ("offset", "length")}
            digest.update(f"{sha256_of_file(path)} {sorted(place.items())}".encode())
        else:
            digest.update(tensor.SerializeToString(deterministic=True))
    return digest.hexdigest()


def plugin_digests(plugins: Mapping[str, KernelNode]) -> dict[str, str]:
    """Returns the SHA-256 of every plugin's kernel source, for every type that its first input may have."""
    return {name: _digest("".join(_sources(node)).encode()) for name, node in sorted(plugins.items())}


def _sources(node: KernelNode) -> list[str]:
    options = max(len(rule.dtypes) for _, _, rule in node.inputs)
    return [
        translation_unit(node, [rule.dtypes[min(option, len(rule.dtypes) - 1)] for _, _, rule in node.inputs])
        for option in range(options)
    ]


def _graph_bytes(model: onnx.ModelProto) -> bytes:
    """Returns the graph without its weights, and without what does not change the engine."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.initializer[:]
    del bare.metadata_props[:]
    content: bytes = bare.SerializeToString(deterministic=True)
    return content


def _text(plain: object) -> bytes:
    return json.dumps(plain, sort_keys=True).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
