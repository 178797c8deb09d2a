"""The house rules that a tool does not hold: what importing loads, what is packaged, what the public face is."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import roiline

ROOT = Path(__file__).resolve().parents[1]
HEAVY = (
    "cv2",
    "onnx",
    "onnxruntime",
    "tensorrt",
    "cuda",
    "pycuda",
    "torch",
    "pyarrow",
    "pynvml",
    "ray",
    "pandas",
    "yaml",
)


def _tracked(pattern: str) -> list[Path]:
    listing = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode or not listing.stdout:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.splitlines() if (ROOT / name).is_file()]


def test_importing_loads_nothing_heavy():
    code = f"import sys, roiline; print([name for name in {HEAVY!r} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize("room", ["core", "ops", "engines", "infer", "report"])
def test_modules_load_heavy_libraries_on_use(room):
    allowed = {"core": {"yaml"}, "ops": {"onnx"}}.get(room, set())
    if room in ("engines", "infer", "report"):
        allowed = {"yaml", "onnx"}  # through core and ops
    own = {"engines": {"onnx"}, "infer": {"onnx", "yaml"}, "report": {"onnx", "yaml"}}.get(room, set())
    for path in sorted((ROOT / room).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            loaded = {name.split(".")[0] for name in names} & set(HEAVY)
            assert not loaded - allowed or not loaded - (allowed - own), f"{path}: imports {loaded} at its top"


def test_packages_are_all_listed():
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    rooms = ("checks", "commands", "core", "ops", "engines", "export", "infer", "report")
    found = {
        "roiline." + ".".join(path.parent.relative_to(ROOT).parts)
        for room in rooms
        for path in (ROOT / room).rglob("__init__.py")
    }
    assert listed == found | {"roiline"}


def test_nothing_of_the_tree_is_imported_outside_the_package():
    strays = [
        name
        for name, module in sys.modules.items()
        if (file := getattr(module, "__file__", None))
        and Path(file).resolve().is_relative_to(ROOT)
        and not Path(file).resolve().is_relative_to(ROOT / "tests")
        and not {".venv", ".venv-wheel"} & set(Path(file).resolve().relative_to(ROOT).parts)
        and name.split(".")[0] not in ("roiline", "__main__")
    ]
    assert not strays


def test_public_names_are_pinned():
    assert roiline.__all__ == sorted(roiline.__all__)
    assert roiline.__all__ == [
        "Classification",
        "Detections",
        "ModelSpec",
        "OpenedModel",
        "Proposals",
        "RoilineError",
        "RunOverrides",
        "RunSummary",
        "export_detectron",
        "open",
        "run",
    ]
    for name in roiline.__all__:
        assert getattr(roiline, name).__doc__


def test_version_is_one():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == roiline.__version__


def test_outside_data_is_reached_in_one_place():
    word = "sha" + "red"
    for path in _tracked("*"):
        if path.suffix in (".jpg", ".png", ".pkl") or path.name in ("shared_data.py", "LICENSE"):
            continue
        assert f"../{word}" not in path.read_text(encoding="utf-8"), path


def test_no_page_has_a_gap_that_was_to_be_filled():
    for path in _tracked("*.md"):
        assert not re.search(r"@[A-Z_]+@", path.read_text(encoding="utf-8")), path
