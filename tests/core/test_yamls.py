"""YAML is read as data, in the dialect that Detectron dumps, and hostile documents are refused."""

from __future__ import annotations

import lzma
import pickle
import random

import numpy as np
import pytest
import yaml
from shared_data import shared_files, shared_path

from roiline.core.errors import ConfigError
from roiline.core.yamls import MAX_DEPTH, decode_literal, dump_yaml, load_yaml

NUMPY_TREE = """
!!python/object/new:{module}.AttrDict
dictitems:
  CLIP: !!python/object/apply:{core}.multiarray.scalar
  - &id001 !!python/object/apply:numpy.dtype
    args: [f8, false, true]
    state: !!python/tuple [3, <, null, null, null, -1, -1, 0]
  - !!binary |
    qeISGmmKEEA=
  MEANS: !!python/object/apply:{core}.multiarray._reconstruct
    args:
    - !!python/name:numpy.ndarray ''
    - !!python/tuple [0]
    - !!binary |
      Yg==
    state: !!python/tuple
    - 1
    - !!python/tuple [1, 1, 3]
    - *id001
    - false
    - !!binary |
      0LNZ9bm+WUB/arx0k/xcQK+UZYhjsV5A
  NAME: !!python/unicode 'abc'
  OLD: !!python/str 'def'
  RATIOS: !!python/tuple [0.5, 1, 2]
  BELOW: !!python/object/new:{module}.AttrDict
    dictitems: {{ON: true}}
    state: {{__immutable__: true}}
state:
  __immutable__: false
"""


@pytest.mark.parametrize("core", ["numpy.core", "numpy._core"])
@pytest.mark.parametrize(
    "module", ["detectron.utils.collections", "utils.collections", "core.config", "detectron.core.config"]
)
def test_dumped_trees_become_plain_values(module, core):
    tree = load_yaml(NUMPY_TREE.format(module=module, core=core), source="x")
    assert tree["CLIP"] == np.log(1000.0 / 16.0)
    assert type(tree["CLIP"]) is np.float64
    np.testing.assert_array_equal(tree["MEANS"], [[[102.9801, 115.9465, 122.7717]]])
    assert tree["RATIOS"] == (0.5, 1, 2)
    assert (tree["NAME"], tree["OLD"]) == ("abc", "def")
    assert tree["BELOW"] == {"ON": True}


def test_what_this_python_dumps_is_read():
    dumped = yaml.dump(
        {"m": np.arange(6, dtype=">f4").reshape(2, 3), "s": np.float32(0.5), "t": (1, (2,)), "b": b"\xff"}
    )
    tree = load_yaml(dumped, source="x")
    np.testing.assert_array_equal(tree["m"], np.arange(6).reshape(2, 3))
    assert (tree["s"], tree["t"], tree["b"]) == (0.5, (1, (2,)), b"\xff")


def test_the_configuration_of_a_python_2_file_is_read():
    content = lzma.decompress(shared_path("golden/e2e/faster_R50_FPN_tiny.py2.pkl.xz").read_bytes())
    tree = load_yaml(pickle.loads(content, encoding="latin1")["cfg"], source="x")
    assert tree["MODEL"]["NUM_CLASSES"] == 5
    assert tree["FPN"]["RPN_ASPECT_RATIOS"] == tree["RPN"]["ASPECT_RATIOS"] == (0.5, 1, 2)
    assert tree["PIXEL_MEANS"].shape == (1, 1, 3)


@pytest.mark.parametrize("path", shared_files("data/detectron-configs/*/*.yaml"))
def test_hand_written_files_are_read_as_pyyaml_reads_them(path):
    assert load_yaml(path.read_bytes(), source=str(path)) == yaml.safe_load(path.read_text())


def test_names_stay_names():
    text = "ON: 1\nno: 2\n3: x\nsince: 2017-12-01\nmerged: {<<: {a: 1, b: 2}, a: 3}\n"
    assert load_yaml(text, source="x") == {"ON": 1, "no": 2, 3: "x", "since": "2017-12-01", "merged": {"a": 3, "b": 2}}
    assert load_yaml("", source="x") is None
    assert load_yaml("\ufeffa: 1".encode(), source="x") == {"a": 1}


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.system",
        "!!python/object/apply:eval",
        "!!python/object/new:os.system",
        "!!python/object/new:tuple",
        "!!python/object:utils.collections.Other",
        "!!python/name:os.system",
        "!!python/module:os",
        "!!python/object/apply:numpy.core.multiarray.fromfile",
        "!!python/object/apply:numpy.load",
        "!!python/complex",
        "!other",
        "!!set",
    ],
)
def test_objects_are_refused_with_their_place(tag):
    for value in ("[x]", "x", "{a: b}"):
        with pytest.raises(ConfigError, match=r"^f\.yaml, line 2, column 4: "):
            load_yaml(f"b: 1\na: {tag} {value}", source="f.yaml")


def test_a_call_is_said_to_be_one():
    with pytest.raises(ConfigError, match="tries to run code; nothing was run"):
        load_yaml("a: !!python/object/apply:os.system ['echo hello']", source="f.yaml")


FAULTY = {
    "duplicate": ("a: 1\nb: 2\na: 3", r"line 3, column 1: the key 'a' is there twice, first in line 1"),
    "open list": ("a: [1, 2", r"line 2, column 1|line 1"),
    "undefined alias": ("a: *b", "undefined alias"),
    "itself": ("a: &x [*x]", "contains itself"),
    "two documents": ("--- 1\n--- 2", "another document"),
    "control character": ("a: \x00", "not valid YAML"),
    "bad integer": ("a: !!int x", "'x' is no int"),
    "list as key": ("[1]: 2", "a key must be a text or a number"),
    "tab": ("a:\n\t- b", "not valid YAML"),
    "array of objects": (
        "a: !!python/object/apply:numpy.core.multiarray.scalar [!!python/object/apply:numpy.dtype [O8, 0, 1], x]",
        "numbers are read",
    ),
    "array without content": (
        "a: !!python/object/apply:numpy.core.multiarray._reconstruct {args: [1]}",
        "without content",
    ),
    "no tree": ("!!python/object/new:utils.collections.AttrDict {listitems: [1]}", "listitems"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_faults_are_named(name):
    text, expected = FAULTY[name]
    with pytest.raises(ConfigError, match=expected):
        load_yaml(text, source="x")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_yaml(b"a: \xff\xfe", source="x")


def test_a_huge_array_is_bounded_by_its_content():
    text = NUMPY_TREE.format(module="utils.collections", core="numpy.core")
    with pytest.raises(ConfigError, match="NumPy array of shape"):
        load_yaml(text.replace("[1, 1, 3]", "[1000000000000, 1, 3]"), source="x")


def test_bombs_are_refused_quickly():
    laughs = "k0: &k0 [x, x, x, x, x, x, x, x, x]\n"
    laughs += "".join(f"k{i}: &k{i} [{', '.join([f'*k{i - 1}'] * 9)}]\n" for i in range(1, 10))
    with pytest.raises(ConfigError, match="aliases multiply"):
        load_yaml(laughs, source="x")
    ladder = "k0: &k0 [x]\n" + "".join(f"k{i}: &k{i} [*k{i - 1}]\n" for i in range(1, 3000))
    with pytest.raises(ConfigError, match="deep"):
        load_yaml(ladder, source="x")
    for nested in ("[" * 5000, "- " * 5000, "{a: " * 5000, "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)):
        with pytest.raises(ConfigError, match=rf"nested more than {MAX_DEPTH} deep|maximum nesting depth"):
            load_yaml(nested, source="x")
    with pytest.raises(ConfigError, match="values"):
        load_yaml("[" + "1," * 500_000 + "]", source="x")


def test_mutated_documents_give_values_or_our_error_and_nothing_else():
    seed = NUMPY_TREE.format(module="utils.collections", core="numpy.core")
    chance = random.Random(3)
    refused = 0
    for _ in range(1500):
        text = list(seed)
        for _ in range(chance.randint(1, 5)):
            place = chance.randrange(len(text))
            if chance.random() < 0.5:
                text[place] = chance.choice("!&*:-[]{}'\"|>% \n\t0aé\u2028,#")
            else:
                start = chance.randrange(len(text))
                text[place : place + chance.randint(0, 30)] = text[start : start + chance.randint(0, 30)]
        try:
            load_yaml("".join(text), source="x")
        except ConfigError:
            refused += 1
    assert refused > 500


def test_dumped_values_are_read_back_as_detectron_does():
    tree = {
        "A": {"T": (0.5, 1, 2), "NESTED": ((10.0, 5.0), (1.0, 2.0)), "EMPTY": (), "ONE": ("name",)},
        "L": [1, 2.5, "x", None, True],
        "MEANS": np.array([[[1.0, 2.0, 3.0]]]),
        "CLIP": np.float64(4.135),
        "EPS": 1e-14,
        "TEXT": "a: b",
        "shared": [[1]] * 2,
    }
    text = dump_yaml(tree)
    assert "!!" not in text
    assert "&id" not in text
    again = yaml.safe_load(text)
    assert {name: decode_literal(value) for name, value in again["A"].items()} == tree["A"]
    assert again["MEANS"] == [[[1.0, 2.0, 3.0]]]
    assert (again["CLIP"], again["EPS"], again["TEXT"], again["L"]) == (4.135, 1e-14, "a: b", tree["L"])
    with pytest.raises(TypeError, match="no plain YAML form"):
        dump_yaml({"a": object()})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(0.5, 1, 2)", (0.5, 1, 2)),
        ("1e-3", 1e-3),
        ("None", None),
        ("'abc'", "abc"),
        ("", ""),
        ("/a/path", "/a/path"),
        ("C:\\data\\x", "C:\\data\\x"),
        ("7", 7),
        ("a\x00b", "a\x00b"),
        ("1if", "1if"),
    ],
)
def test_texts_are_read_as_literals_where_they_are_ones(text, value):
    assert decode_literal(text) == value


def test_a_literal_nested_too_deep_is_refused():
    with pytest.raises(ConfigError, match="deep"):
        decode_literal("-" * 500_000 + "1")


@pytest.mark.parametrize("text", ["9" * 20, "0x" + "f" * 5000, "0b" + "1" * 20_000, "1:" * 3000 + "1"])
def test_integers_of_more_than_64_bits_are_refused(text):
    with pytest.raises(ConfigError, match=r"s, line 1, column 4: .* is an integer of more than 64 bits"):
        load_yaml(f"A: {text}", source="s")


@pytest.mark.parametrize("text", ["9" * 20, "-0x" + "f" * 5000, "(1, 0x" + "f" * 5000 + ")", "{1: [" + "9" * 20 + "]}"])
def test_literals_with_integers_of_more_than_64_bits_are_refused(text):
    with pytest.raises(ConfigError, match="has an integer of more than 64 bits"):
        decode_literal(text)
