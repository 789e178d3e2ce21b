"""The shape of the source tree. The numbers are those reached: they may only get better, so lower them when they do."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "src" / "gpuyard"

MOST_LINES = 103_475
MOST_FILES = 496
MOST_LOOSE = 5
MOST_IN_A_FOLDER = 20
MOST_SINGLE = 45
SHORT = 250
"""Lines below which a module with one importer counts as a fragment of that importer."""
MOST_OWNER_IMPORTS = 0
MOST_REPEATED_NAMES = 0
MOST_LAYERS = 12
LONGEST_FILE = 500


class Module:
    """A module, and the modules of the package that it imports."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.text = path.read_text()
        self.tree = ast.parse(self.text)
        self.lines = self.text.count("\n")

    def imports(self, known: set[str]) -> tuple[set[str], set[str]]:
        """Modules imported at run time, anywhere in the file, and those imported for type checkers only."""
        plain, typed = set[str](), set[str]()
        for node in self.tree.body:
            is_typed = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            (typed if is_typed else plain).update(_imported(node, known))
        return plain - {self.name}, typed - {self.name}


def _imported(node: ast.AST, known: set[str]) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            names = [alias.name for alias in part.names]
        elif isinstance(part, ast.ImportFrom):
            assert not part.level, "imports are absolute"
            names = [f"{part.module}.{alias.name}" for alias in part.names]
        else:
            continue
        for name in names:
            while name and name not in known:
                name = name.rpartition(".")[0]
            if name:
                yield name


@pytest.fixture(scope="module")
def modules() -> dict[str, Module]:
    found: dict[str, Module] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("gpuyard", *path.relative_to(PACKAGE).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path)
    return found


def _is_plain(module: Module) -> bool:
    return module.path.name not in ("__init__.py", "__main__.py")


def test_size(modules: dict[str, Module]) -> None:
    assert len(modules) <= MOST_FILES
    assert sum(module.lines for module in modules.values()) <= MOST_LINES
    assert not {name: m.lines for name, m in modules.items() if m.lines > LONGEST_FILE}


def test_folders(modules: dict[str, Module]) -> None:
    loose = [m.name for m in modules.values() if m.path.parent == PACKAGE and _is_plain(m)]
    assert len(loose) <= MOST_LOOSE, loose
    folders = Counter(str(m.path.parent.relative_to(PACKAGE)) for m in modules.values())
    assert not {folder: count for folder, count in folders.items() if count > MOST_IN_A_FOLDER}


def test_names(modules: dict[str, Module]) -> None:
    names = Counter(m.path.stem for m in modules.values() if _is_plain(m))
    repeated = sorted(name for name, count in names.items() if count > 2)
    assert len(repeated) <= MOST_REPEATED_NAMES, repeated
    vague = {"utils", "util", "helpers", "common", "misc", "manager"} & set(names)
    assert not vague


def test_fragments_and_owners(modules: dict[str, Module]) -> None:
    """A short module that one other imports belongs into that one; a part does not import its owner."""
    known = set(modules)
    imports = {name: module.imports(known) for name, module in modules.items()}
    importers = defaultdict[str, set[str]](set)
    for name, (plain, typed) in imports.items():
        for other in plain | typed:
            importers[other].add(name)
    single = [
        name for name, m in modules.items() if _is_plain(m) and m.lines < SHORT and len(importers[name]) == 1
    ]  # fmt: skip
    assert len(single) <= MOST_SINGLE, single
    owners = [(name, other) for name, (_, typed) in imports.items() for other in typed if name in imports[other][0]]
    assert len(owners) <= MOST_OWNER_IMPORTS, owners


def test_layers() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers")
    assert len(layers) <= MOST_LAYERS
    named = {name.strip() for layer in layers for name in layer.replace(":", "|").split("|")}
    there = {f"gpuyard.{path.parent.name}" for path in PACKAGE.glob("*/__init__.py")}
    loose = {f"gpuyard.{path.stem}" for path in PACKAGE.glob("*.py") if not path.stem.startswith("_")}
    assert named == there | loose, "every package has its layer, and layers name packages"
