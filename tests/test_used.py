"""What is written is used: a name of the library that only tests know is no part of it."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from nodes import nodes, parsed

ROOT = Path(__file__).resolve().parents[1]
CLIENTS = ("src", "papers/src", "examples", "benchmarks")
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "papers/docs").rglob("*.md")]
# Called by torch, enum, transformers and doctests.
CALLED_BY_OTHERS = {
    "_EXAMPLE", "_missing_", "_should_skip_dynamo", "hyperparameter_search", "get_train_dataloader",
    "floating_point_ops", "_step_supports_amp_scaling",
}  # fmt: skip


def defined(tree: ast.Module) -> Iterator[str]:
    """Functions, classes, methods and values of a file, but for those that a decorator hands on to somebody."""
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else []
        for found in (node, *inner):
            if isinstance(found, (ast.FunctionDef, ast.ClassDef)):
                handed_on = any(isinstance(mark, (ast.Call, ast.Attribute)) for mark in found.decorator_list)
                if isinstance(found, ast.ClassDef) or not handed_on or found in inner:
                    yield found.name
            elif isinstance(found, ast.Assign) and found is node:
                yield from (target.id for target in found.targets if isinstance(target, ast.Name))


def used(tree: ast.Module, *, door: bool) -> Iterator[str]:
    """Names that are read, attributes, keywords; imports and texts that are a name, unless it is a package's door."""
    for node in nodes(tree):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif door:
            continue
        elif isinstance(node, ast.alias):
            yield node.name
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Constant) and re.fullmatch(r"[\w.:]+", str(node.value)):
            yield from re.split(r"[.:]", str(node.value))


def unused(sources: dict[Path, str], pages: str) -> list[str]:
    trees = {path: parsed(text) for path, text in sources.items()}
    uses = Counter(name for path, tree in trees.items() for name in used(tree, door=path.name == "__init__.py"))
    fences = re.findall(r"^```.*?^```", pages, re.DOTALL | re.MULTILINE)
    for text in (
        *fences,
        *re.findall(r"`[^`\n]+`", re.sub(r"^```.*?^```", "", pages, flags=re.DOTALL | re.MULTILINE)),
    ):
        uses.update(re.findall(r"\w+", text))
    return [
        f"{path.name}: {name}"
        for path, tree in trees.items()
        if path.is_relative_to(ROOT / "src") and path.name != "__init__.py"
        for name in defined(tree)
        if not name.startswith("__") and name not in CALLED_BY_OTHERS and not uses[name]
    ]


def test_every_name_is_used_by_the_library_its_clients_or_its_pages() -> None:
    files = [path for folder in CLIENTS for path in sorted((ROOT / folder).rglob("*.py"))]
    sources = {path: path.read_text(encoding="utf-8") for path in files}
    found = unused(sources, "".join(page.read_text(encoding="utf-8") for page in PAGES))
    assert found == []


def test_a_name_that_nobody_uses_is_found() -> None:
    here = ROOT / "src/x.py"
    text = "def spare(): ...\nclass Kept:\n    def lonely(self): ...\n    def asked(self): ...\nKept().asked()\n"
    assert unused({here: text}, "") == ["x.py: spare", "x.py: lonely"]
    assert unused({here: text, ROOT / "benchmarks/y.py": "print(f'{spare()}')"}, "`x.lonely()`") == []
