"""Elements with a component in the browser. A wrong path raises nothing: the page silently shows a plain div."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpuyard.page

FOLDER = Path(gpuyard.page.__file__).parent


def declared() -> Iterator[tuple[str, str, Path]]:
    """Module, class, and the file that `component=` names, which is relative to the module."""
    for module in sorted(FOLDER.rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.ClassDef):
                for keyword in node.keywords:
                    if keyword.arg == "component":
                        path = module.parent / ast.literal_eval(keyword.value)
                        yield str(module.relative_to(FOLDER)), node.name, path.resolve()


COMPONENTS = list(declared())


def test_there_are_components() -> None:
    assert len(COMPONENTS) >= 17


@pytest.mark.parametrize(("module", "name", "path"), COMPONENTS, ids=lambda value: getattr(value, "name", value))
def test_the_component_of_each_element_exists(module: str, name: str, path: Path) -> None:
    assert path.is_file()
    assert path.parent == FOLDER / "assets"


@pytest.mark.parametrize(("module", "name", "path"), COMPONENTS, ids=lambda value: getattr(value, "name", value))
def test_nicegui_has_loaded_the_component_of_each_element(module: str, name: str, path: Path) -> None:
    dotted = f"gpuyard.page.{module.removesuffix('.py').replace('/', '.')}"
    element = getattr(importlib.import_module(dotted), name)
    assert element.component is not None
    assert element.component.path.resolve() == path
