"""A kernel's translation unit: prelude, `Arguments`, the operator's header, and the entry point, as one text.

The text is all that a compiler needs: headers are flattened, so it can be hashed, kept, and given to a compiler that sees no files. It
is the same for the device and for the host; the preprocessor chooses. It depends on the kernel, the number of levels and the element
types, not on attributes: those are arguments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from roiline.core.errors import EngineError
from roiline.ops.kernels import Argument, KernelNode

_OPS = Path(__file__).resolve().parent
_PRELUDE = "kernel_sources/prelude.cuh"
_INCLUDE = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)
_C_TYPES = {"float32": "float", "float16": "Half", "int32": "int", "int64": "long long", "uint8": "unsigned char"}

_ITEM_ENTRY = """\
extern "C" __global__ void __launch_bounds__({block}) {entry}({parameters}) {{
  const Arguments k = {{{fields}}};
  const Index step = (Index)gridDim.x * blockDim.x;
  for (Index item = (Index)blockIdx.x * blockDim.x + threadIdx.x; item < items; item += step) {function}(k, item);
}}"""

_BLOCK_ENTRY = """\
extern __shared__ __align__(16) unsigned char block_memory[];
extern "C" __global__ void __launch_bounds__({block}) {entry}({parameters}) {{
  const Arguments k = {{{fields}}};
  Block block = {{(int)threadIdx.x, (int)blockDim.x, block_memory}};
  for (Index item = blockIdx.x; item < items; item += gridDim.x) {{
    {function}(k, item, block);
    __syncthreads();  // the next item uses the same memory
  }}
}}"""

_HOST_ITEM_ENTRY = """\
extern "C" void {entry}({parameters}) {{
  const Arguments k = {{{fields}}};
  for (Index item = 0; item < items; ++item) {function}(k, item);
}}"""

_HOST_BLOCK_ENTRY = """\
extern "C" {{
unsigned char* block_memory = nullptr;
}}
#if HOST_THREADS > 1
struct Share {{
  const Arguments* k;
  Index item;
  Block block;
}};
static void* run_share(void* share) {{
  Share& mine = *(Share*)share;
  {function}(*mine.k, mine.item, mine.block);
  return nullptr;
}}
static void run_item(const Arguments& k, Index item) {{
  pthread_barrier_t meeting;
  pthread_barrier_init(&meeting, nullptr, HOST_THREADS);
  pthread_t threads[HOST_THREADS];
  Share shares[HOST_THREADS];
  for (int thread = 0; thread < HOST_THREADS; ++thread) {{
    shares[thread] = {{&k, item, {{thread, HOST_THREADS, block_memory, &meeting}}}};
    if (pthread_create(&threads[thread], nullptr, run_share, &shares[thread])) __builtin_trap();
  }}
  for (pthread_t thread : threads) pthread_join(thread, nullptr);
  pthread_barrier_destroy(&meeting);
}}
#else
static void run_item(const Arguments& k, Index item) {{
  Block block = {{0, 1, block_memory}};
  {function}(k, item, block);
}}
#endif
extern "C" void {entry}({parameters}) {{
  const Arguments k = {{{fields}}};
  for (Index item = 0; item < items; ++item) run_item(k, item);
}}"""


def translation_unit(node: KernelNode, input_dtypes: Sequence[str]) -> str:
    """Returns the source of a node's kernel for the element types of all its input tensors.

    Raises:
        TypeError: an input may not have its type.
        EngineError: a source file of the package is missing.
    """
    seen: set[str] = set()
    pieces = {
        "entry": node.kernel.entry,
        "function": node.kernel.function,
        "block": node.kernel.block,
        "parameters": ", ".join(_parameters(node, input_dtypes)),
        "fields": ", ".join(_field_values(node)),
    }
    device, host = (_BLOCK_ENTRY, _HOST_BLOCK_ENTRY) if node.kernel.cooperative else (_ITEM_ENTRY, _HOST_ITEM_ENTRY)
    return "\n".join(
        [
            _flatten(_PRELUDE, seen),
            _arguments(node, input_dtypes),
            _flatten(node.kernel.source, seen),
            "#if ON_DEVICE",
            device.format(**pieces),
            "#else",
            host.format(**pieces),
            "#endif",
            "",
        ]
    )


def _flatten(name: str, seen: set[str]) -> str:
    """Returns a source file with the project's own headers in place of their includes, each once."""
    if name in seen:
        return ""
    seen.add(name)
    path = _OPS / name
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise EngineError(
            f"kernel source {path} cannot be read ({error.strerror}); it is part of the package: install roiline anew"
        ) from error
    return _INCLUDE.sub(lambda match: _flatten(match[1], seen), text)


def _arguments(node: KernelNode, input_dtypes: Sequence[str]) -> str:
    """Returns the struct that a kernel function gets, and each input's element type and (if variadic) number of tensors."""
    types = {name: _C_TYPES[dtype] for (name, _, _), dtype in zip(node.inputs, input_dtypes, strict=True)}
    fields, constants = [], []
    for name in node.kernel.inputs:
        stem = name.removesuffix("...")
        array = f"[{node.levels}]" if stem != name else ""
        fields.append(f"  const {types[stem]}* {stem}{array};")
        constants.append(f"typedef {types[stem]} {stem}_t;")
        if array:
            constants.append(f"constexpr int {stem}_count = {node.levels};")
    for name, value in node.arguments.items():
        fields.append(
            f"  {_argument_type(value)} {name}{f'[{len(value)}]' if isinstance(value, (list, tuple)) else ''};"
        )
    for name, dtype in zip(node.kernel.outputs, node.output_dtypes(input_dtypes), strict=True):
        fields.append(f"  {_C_TYPES[dtype]}* {name};")
    return "\n".join([*constants, "struct Arguments {", *fields, "};"])


def _argument_type(value: Argument) -> str:
    """Returns the C type of an argument, or of the elements of one that is a sequence."""
    values = value if isinstance(value, (list, tuple)) else (value,)
    return "float" if any(isinstance(one, float) for one in values) else "int"


def _parameters(node: KernelNode, input_dtypes: Sequence[str]) -> list[str]:
    """Returns the parameters of the entry point: input pointers, integers, output pointers."""
    inputs = [
        f"const {_C_TYPES[dtype]}* __restrict__ {_tensor(name, level)}"
        for (name, level, _), dtype in zip(node.inputs, input_dtypes, strict=True)
    ]
    integers = ["int items", *(f"int integer_{index}" for index in range(1, len(node.extra_integers)))]
    outputs = [
        f"{_C_TYPES[dtype]}* __restrict__ {name}"
        for name, dtype in zip(node.kernel.outputs, node.output_dtypes(input_dtypes), strict=True)
    ]
    return inputs + integers + outputs


def _field_values(node: KernelNode) -> list[str]:
    """Returns what the entry point puts into the fields of `Arguments`."""
    values = []
    for name in node.kernel.inputs:
        stem = name.removesuffix("...")
        levels = [_tensor(stem, level) for level in range(node.levels)]
        values.append(stem if stem == name else "{" + ", ".join(levels) + "}")
    index = 0
    for argument in node.arguments.values():
        count = len(argument) if isinstance(argument, (list, tuple)) else 1
        integers = ["items" if at == 0 else f"integer_{at}" for at in range(index, index + count)]
        index += count
        if _argument_type(argument) == "float":
            integers = [f"float_of_bits((u32){integer})" for integer in integers]
        values.append("{" + ", ".join(integers) + "}" if isinstance(argument, (list, tuple)) else integers[0])
    return values + list(node.kernel.outputs)


def _tensor(name: str, level: int | None) -> str:
    return name if level is None else f"{name}_{level}"
