"""Reads YAML as data, Detectron's dialect included: trees that Python dumped with object tags become plain values.

A configuration inside a weights file carries tags that ask for the construction of Python objects. The few that
Detectron wrote (attribute dictionaries, tuples, texts, NumPy arrays and numbers) are understood here by their
meaning; any other is refused. Nesting, aliases and length are bounded before anything is built.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import yaml
from yaml.constructor import SafeConstructor
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from roiline.core.errors import ConfigError
from roiline.core.quantities import is_integer

MAX_DEPTH = 50
"""How deep mappings and lists may be nested in each other."""

MAX_VALUES = 200_000
"""How many values a document may have, those repeated by aliases counted each time."""

_MAX_LENGTH = 16 << 20
_TAG = "tag:yaml.org,2002:"
_PYTHON = _TAG + "python/"
_ATTRIBUTE_DICTS = frozenset(
    f"{root}{module}.AttrDict" for root in ("", "detectron.", "lib.") for module in ("utils.collections", "core.config")
)
_NUMPY_CORES = ("numpy.core.multiarray", "numpy._core.multiarray")
_DTYPE = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f[248])")
# libyaml is about ten times faster; both loaders are safe and build the same nodes.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml(text: str | bytes, *, source: str, calls: Mapping[str, Callable[[str], Any]] | None = None) -> object:
    """Reads one YAML document into plain values: dict, list, tuple, str, int, float, bool, None, bytes, ndarray.

    Mapping keys that YAML 1.1 would take for truth values (`ON`, `no`) stay texts, since keys are names; dates stay
    texts too.

    Args:
        text: the document.
        source: what it is called in messages, usually a path.
        calls: what stands in for Python functions that the document may call with one text
            (`!!python/object/apply:eval ["2 * 3"]`); a ValueError of theirs is a fault of the document.

    Raises:
        ConfigError: with line and column, when the text is no YAML, is too deep or too large, repeats a key, or
            asks for a Python object that is not data.
    """
    if len(text) > _MAX_LENGTH:
        raise ConfigError(f"{source}: {len(text)} bytes of YAML; configurations have at most {_MAX_LENGTH}")
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        _check_events(text, source)
        node = yaml.compose(text, _Loader)
    except UnicodeError as exc:
        raise ConfigError(
            f"{source}: not a text file in UTF-8 ({exc.reason if isinstance(exc, UnicodeDecodeError) else exc})"
        ) from None
    except yaml.YAMLError as exc:
        raise ConfigError(_describe_error(exc, source)) from None
    return None if node is None else _Builder(source, calls or {}).build(node)


def dump_yaml(tree: object) -> str:
    """Writes plain values as YAML without tags or aliases, keys in order of insertion.

    Tuples are written the way that Detectron's configurations write them, as texts `(0.5, 1, 2)`, which its own
    merge decodes back to tuples; arrays become nested lists and NumPy numbers plain ones.

    Raises:
        TypeError: for a value that has no plain form.
    """
    plain = _make_plain(tree)
    return yaml.dump(
        plain, Dumper=_PlainDumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=110
    )


class _PlainDumper(yaml.SafeDumper):
    """Writes shared values out in full, because not every reader knows aliases."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


def _make_plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _make_plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return repr(_make_plain_tuple(value))
    if isinstance(value, list):
        return [_make_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _make_plain(value.tolist())
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"a {type(value).__name__} has no plain YAML form")


def _make_plain_tuple(value: object) -> object:
    if isinstance(value, tuple | list):
        return type(value)(_make_plain_tuple(item) for item in value)
    return value.item() if isinstance(value, np.generic) else value


def _describe_error(exc: yaml.YAMLError, source: str) -> str:
    mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
    problem = getattr(exc, "problem", None) or str(exc).splitlines()[0]
    where = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    return f"{source}{where}: not valid YAML: {problem}"


def _check_events(text: str, source: str) -> None:
    """Bounds nesting and length before any node exists: building nodes recurses."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, _Loader)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH or count > 2 * MAX_VALUES:
            what = f"nested more than {MAX_DEPTH} deep" if depth > MAX_DEPTH else f"more than {MAX_VALUES} values"
            line = event.start_mark.line + 1 if event.start_mark else 0
            raise ConfigError(f"{source}, line {line}: {what}; this is no configuration")


class _Builder:
    """Turns nodes into values; counts them, so that aliases cannot multiply without end."""

    def __init__(self, source: str, calls: Mapping[str, Callable[[str], Any]]) -> None:
        self._source = source
        self._calls = calls
        self._count = 0
        self._open: set[int] = set()
        self._scalars = SafeConstructor()

    def fault(self, node: Node, problem: str) -> ConfigError:
        mark = node.start_mark
        return ConfigError(f"{self._source}, line {mark.line + 1}, column {mark.column + 1}: {problem}")

    def build(self, node: Node) -> Any:
        self._count += 1
        if self._count > MAX_VALUES:
            raise self.fault(node, f"aliases multiply the content beyond {MAX_VALUES} values; this is no configuration")
        if len(self._open) > 2 * MAX_DEPTH:
            raise self.fault(node, f"aliases nest values more than {2 * MAX_DEPTH} deep; this is no configuration")
        if id(node) in self._open:
            raise self.fault(node, "a value contains itself through an alias")
        self._open.add(id(node))
        try:
            return self._build_tagged(node)
        finally:
            self._open.discard(id(node))

    def _build_tagged(self, node: Node) -> Any:
        tag: str = node.tag
        if tag.startswith(_PYTHON):
            return self._build_python(node, tag[len(_PYTHON) :])
        if isinstance(node, ScalarNode):
            return self.build_scalar(node)
        if isinstance(node, MappingNode) and tag == _TAG + "map":
            return self.build_mapping(node)
        if isinstance(node, SequenceNode) and tag == _TAG + "seq":
            return self.build_list(node)
        raise self.fault(
            node, f"the tag {tag.removeprefix(_TAG)[:80]!r} is unknown; plain mappings, lists and values are read"
        )

    # Plain YAML

    def build_scalar(self, node: ScalarNode) -> Any:
        kind = node.tag.removeprefix(_TAG)
        constructors: dict[str, Callable[[ScalarNode], Any]] = {
            "null": self._scalars.construct_yaml_null,
            "bool": self._scalars.construct_yaml_bool,
            "int": self._scalars.construct_yaml_int,
            "float": self._scalars.construct_yaml_float,
            "binary": self._scalars.construct_yaml_binary,
        }
        if kind in ("str", "timestamp", "value"):
            return node.value
        if kind not in constructors:
            raise self.fault(node, f"the tag {kind[:80]!r} is unknown; plain values are read")
        try:
            value = constructors[kind](node)
        except (ValueError, KeyError, IndexError, OverflowError, yaml.YAMLError):
            raise self.fault(node, f"{node.value[:40]!r} is no {kind}") from None
        if _has_long_integer(value):
            raise self.fault(node, f"{node.value[:40]!r} is an integer of more than 64 bits")
        return value

    def build_list(self, node: Node) -> list[Any]:
        if not isinstance(node, SequenceNode):
            raise self.fault(node, "expected a list")
        return [self.build(item) for item in node.value]

    def build_mapping(self, node: Node) -> dict[Any, Any]:
        if not isinstance(node, MappingNode):
            raise self.fault(node, "expected a mapping")
        merged: dict[Any, Any] = {}
        own: dict[Any, Any] = {}
        lines: dict[Any, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                for part in value_node.value if isinstance(value_node, SequenceNode) else [value_node]:
                    merged = {**self.build_mapping(part), **merged}
                continue
            key = self._build_key(key_node)
            if key in own:
                raise self.fault(key_node, f"the key {key!r} is there twice, first in line {lines[key]}")
            lines[key] = key_node.start_mark.line + 1
            own[key] = self.build(value_node)
        return {**merged, **own}

    def _build_key(self, node: Node) -> Any:
        if isinstance(node, ScalarNode) and node.tag == _TAG + "bool":
            return node.value
        key = self.build(node)
        if isinstance(key, bytes):
            return key.decode("latin-1")
        if not isinstance(key, str | int | float | bool | None):
            raise self.fault(node, "a key must be a text or a number")
        return key

    # What Python dumped

    def _build_python(self, node: Node, kind: str) -> Any:
        if kind in ("str", "unicode") and isinstance(node, ScalarNode):
            return node.value
        if kind == "bytes" and isinstance(node, ScalarNode):
            return self.build_scalar(ScalarNode(_TAG + "binary", node.value, node.start_mark, node.end_mark))
        if kind in ("int", "long", "float", "bool", "none") and isinstance(node, ScalarNode):
            plain = {"long": "int", "none": "null"}.get(kind, kind)
            return self.build_scalar(ScalarNode(_TAG + plain, node.value, node.start_mark, node.end_mark))
        if kind == "tuple":
            return tuple(self.build_list(node))
        if kind == "list":
            return self.build_list(node)
        if kind == "dict":
            return self.build_mapping(node)
        action, _, name = kind.partition(":")
        if action in ("object/new", "object") and name in _ATTRIBUTE_DICTS:
            return self._build_attributes(node)
        if action == "object/apply" and name == "numpy.dtype":
            return self._build_dtype(node)
        if action == "object/apply" and name in [f"{core}._reconstruct" for core in _NUMPY_CORES]:
            return self._build_array(node)
        if action == "object/apply" and name in [f"{core}.scalar" for core in _NUMPY_CORES]:
            return self._build_number(node)
        if action == "object/apply" and name in self._calls:
            return self._call(node, name)
        raise self.fault(
            node,
            f"the tag '!!python/{kind[:80]}' asks for a Python object or tries to run code; nothing was run. "
            "Detectron's own trees have dictionaries, tuples, texts and NumPy numbers only",
        )

    def _call(self, node: Node, name: str) -> Any:
        arguments, _ = self._read_call(node)
        if len(arguments) != 1 or not isinstance(arguments[0], str):
            raise self.fault(node, f"`{name}` of {len(arguments)} values; expected one text")
        try:
            return self._calls[name](arguments[0])
        except ValueError as error:
            raise self.fault(node, f"`{name}` of {arguments[0][:60]!r}: {error}") from error

    def _build_attributes(self, node: Node) -> dict[Any, Any]:
        parts = self.build_mapping(node)
        unknown = sorted(map(str, set(parts) - {"dictitems", "state"}))
        if unknown:
            raise self.fault(node, f"an AttrDict has the part {unknown[0]!r}; `dictitems` and `state` are known")
        items = parts.get("dictitems", {})
        if not isinstance(items, dict):
            raise self.fault(node, "the items of an AttrDict are no mapping")
        return items

    def _read_call(self, node: Node) -> tuple[list[Any], tuple[Any, ...]]:
        """Splits an `object/apply` node into its arguments and its state."""
        if isinstance(node, SequenceNode):
            return self._build_arguments(node), ()
        if not isinstance(node, MappingNode):
            raise self.fault(node, "a call without arguments")
        arguments: list[Any] = []
        state: Any = ()
        for key_node, value_node in node.value:
            if key_node.value == "args":
                arguments = self._build_arguments(value_node)
            elif key_node.value == "state":
                state = self.build(value_node)
            else:
                raise self.fault(key_node, "a NumPy value has a part that is neither `args` nor `state`")
        return arguments, tuple(state) if isinstance(state, list | tuple) else ()

    def _build_arguments(self, node: Node) -> list[Any]:
        if not isinstance(node, SequenceNode):
            raise self.fault(node, "expected a list of arguments")
        ndarray = _PYTHON + "name:numpy.ndarray"
        return [np.ndarray if item.tag == ndarray else self.build(item) for item in node.value]

    def _build_dtype(self, node: Node) -> np.dtype[Any]:
        arguments, state = self._read_call(node)
        if not arguments or not isinstance(arguments[0], str) or not _DTYPE.fullmatch(arguments[0]):
            raise self.fault(node, f"a NumPy value of type {str(arguments[:1])[:40]}; numbers are read")
        dtype = np.dtype(arguments[0])
        return dtype.newbyteorder(">") if len(state) > 1 and state[1] == ">" else dtype

    def _build_array(self, node: Node) -> np.ndarray[Any, Any]:
        arguments, state = self._read_call(node)
        if len(state) < 4 or not arguments or arguments[0] is not np.ndarray:
            raise self.fault(node, "a NumPy array without content")
        shape, dtype, fortran, content = state[-4:]
        if not isinstance(shape, list | tuple) or any(type(length) is not int or length < 0 for length in shape):
            raise self.fault(node, "a NumPy array whose shape is no shape")
        flat = self._read_numbers(node, dtype, content)
        try:
            array = flat.reshape(tuple(shape), order="F" if fortran else "C").astype(flat.dtype.newbyteorder("="))
        except (ValueError, OverflowError):
            raise self.fault(node, f"a NumPy array of shape {tuple(shape)} has {flat.size} values") from None
        array.flags.writeable = False
        return array

    def _build_number(self, node: Node) -> np.generic:
        arguments, _ = self._read_call(node)
        if len(arguments) != 2:
            raise self.fault(node, "a NumPy number without content")
        flat = self._read_numbers(node, *arguments)
        if flat.size != 1:
            raise self.fault(node, f"a NumPy number has {flat.size} values")
        number: np.generic = flat.astype(flat.dtype.newbyteorder("="))[0]
        return number

    def _read_numbers(self, node: Node, dtype: Any, content: Any) -> np.ndarray[Any, Any]:
        if isinstance(content, str):
            content = content.encode("utf-8")  # Python 2 writes bytes that are valid UTF-8 as text
        if not isinstance(dtype, np.dtype) or not isinstance(content, bytes) or len(content) % dtype.itemsize:
            raise self.fault(node, "a NumPy value whose bytes do not fit its type")
        return np.frombuffer(content, dtype)


def decode_literal(text: str) -> object:
    """Reads a text as a Python literal where it is one (`(1, 2)`, `1e-3`, `None`), else answers the text itself.

    This is how Detectron reads the texts of its configurations and its command line.

    Raises:
        ConfigError: when the text is nested too deep for a literal, or has an integer of more than 64 bits.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a path with a backslash is no faulty literal
            value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError):
        return text
    except (RecursionError, MemoryError):
        raise ConfigError(f"{text[:40]!r}...: nested too deep for a value") from None
    if _has_long_integer(value):
        raise ConfigError(f"{text[:40]!r}: has an integer of more than 64 bits; no setting has such a value")
    return value


def _has_long_integer(value: object) -> bool:
    """Says whether a value has an integer that no setting can have, and that Python may refuse to show."""
    if isinstance(value, dict):
        return any(_has_long_integer(item) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple | set):
        return any(map(_has_long_integer, value))
    return isinstance(value, int) and not isinstance(value, bool) and not is_integer(value)
