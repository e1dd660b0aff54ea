"""The source of a training, and of its own modules beside it, as trees: what rules read."""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from decrescendo.errors import FileRefused

MAKERS = ("make_private", "make_private_with_epsilon")
# Trainers of Hugging Face's kind that step Opacus' optimiser.
TRAINERS = ("OpacusDPTrainer", "DPTrainer", "privatize_trainer")
_MOST_FILES = 40
_OBSERVED = ("opacus", "opake", "torch", "decrescendo")
# Commands of notebooks; a line that goes on with "% (" is Python.
_MAGIC = re.compile(r"^([ \t]*)(!|%%?[a-z]).*$", re.MULTILINE)


def script_of(path: Path, folder: Path) -> Path:
    """The script itself, or a notebook's code cells as one.

    Raises:
        FileRefused: a notebook that is no JSON of cells.
    """
    if path.suffix != ".ipynb":
        return path
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError) as error:
        raise FileRefused(f"{path} must be a notebook (JSON with cells), got {error!r}") from None
    script = folder / f"{path.stem}.py"
    script.write_text(_MAGIC.sub(r"\1pass", "\n\n".join(code)), encoding="utf-8")
    return script


def cell_of(path: Path, line: int) -> tuple[int, int]:
    """The code cell of a notebook, from 1, and the line in it, of a line of `script_of`."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sizes = [len("".join(cell["source"]).split("\n")) + 1 for cell in cells if cell["cell_type"] == "code"]
    number = 1
    while number < len(sizes) and line > sizes[number - 1]:
        line, number = line - sizes[number - 1], number + 1
    return number, line


@dataclass(frozen=True)
class Module:
    """One file; its code is in lower case, and without comments."""

    file: str
    text: str
    tree: ast.Module
    code: str

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node around each node."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def calls(self) -> list[ast.Call]:
        """All calls, in their order."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        return sorted(found, key=lambda node: (node.lineno, node.col_offset))

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """What encloses a node, the nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """The statement that a node is in."""
        return next((above for above in [node, *self.around(node)] if isinstance(above, ast.stmt)), None)

    def function(self, node: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The function that a node is in."""
        kinds = ast.FunctionDef, ast.AsyncFunctionDef
        return next((above for above in self.around(node) if isinstance(above, kinds)), None)

    def loops(self, node: ast.AST) -> list[ast.For | ast.While]:
        """The loops around a node within its function, the innermost first."""
        found: list[ast.For | ast.While] = []
        for above in self.around(node):
            if isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
                break
            if isinstance(above, ast.For | ast.While):
                found.append(above)
        return found


# A module, the node, the check, what is wrong, what it costs.
Hit = tuple[Module, ast.AST, str, str, str]


@dataclass
class Sources:
    """A script and what it imports from beside it."""

    modules: list[Module] = field(default_factory=list)

    def calls(self, *names: str) -> Iterator[tuple[Module, ast.Call]]:
        """Calls of functions, methods or classes with one of these last names."""
        for module in self.modules:
            for call in module.calls:
                if name_of(call.func) in names:
                    yield module, call

    def mentions(self, *words: str) -> bool:
        """Whether one of these words is in the code of some file, its comments left out."""
        return any(word in text for text in self._code for word in words)

    def matches(self, pattern: re.Pattern[str]) -> bool:
        """Whether a pattern of lower-case letters is in the code of some file, its comments left out."""
        return any(pattern.search(text) for text in self._code)

    @cached_property
    def _code(self) -> list[str]:
        return [module.code for module in self.modules]

    @cached_property
    def constants(self) -> dict[str, object]:
        """Names that have one constant each: assigned, an argument's default, or an option's default."""
        found: dict[str, object] = {}
        for module in self.modules:
            for node in ast.walk(module.tree):
                for one, value in assigned(node):
                    if isinstance(value, ast.Constant):
                        found.setdefault(name_of(one), value.value)
            for call in module.calls:
                if name_of(call.func) == "add_argument":
                    options = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                    default = keyword(call, "default")
                    if options and isinstance(default, ast.Constant):
                        found.setdefault(options[-1].lstrip("-").replace("-", "_"), default.value)
        return found

    def number(self, node: ast.expr | None) -> float | None:
        """What an expression is, if it is a constant, or a name for one."""
        if node is None:
            return None
        value = node.value if isinstance(node, ast.Constant) else self.constants.get(name_of(node))
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What an assignment gives to what: `a, b = 1, 2` is two."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield target, node.value


def name_of(node: ast.AST) -> str:
    """The last name of a dotted expression; empty if it has none.

    >>> name_of(ast.parse("a.b.c").body[0].value)
    'c'
    """
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return node.id if isinstance(node, ast.Name) else ""


def names_in(node: ast.AST) -> set[str]:
    """All names and attributes in an expression, in lower case."""
    return {name_of(part).lower() for part in ast.walk(node)} - {""}


def targets_of(node: ast.AST) -> list[ast.expr]:
    """What an assignment assigns to; nothing of another node."""
    return node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """An argument by its name."""
    return next((given.value for given in call.keywords if given.arg == name), None)


def read(script: Path) -> Sources:
    """A script, and the modules that it imports from its own folder.

    Raises:
        FileRefused: the script is no Python.
    """
    sources, waiting, known = Sources(), [script], {script.resolve()}
    while waiting and len(sources.modules) < _MOST_FILES:
        path = waiting.pop(0)
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
            tree = _parsed(text)
            code = ast.unparse(tree).lower()
        except (SyntaxError, ValueError, RecursionError) as error:
            if path == script:
                raise FileRefused(f"{path} must be Python 3, got {error}") from None
            continue
        sources.modules.append(Module(str(path), text, tree, code))
        for found in _imported(tree, path, script.parent):
            if found.resolve() not in known:
                known.add(found.resolve())
                waiting.append(found)
    return sources


def _parsed(text: str) -> ast.Module:
    """Python, or what a notebook was exported as."""
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.parse(_MAGIC.sub(r"\1pass", text))


def _imported(tree: ast.Module, path: Path, root: Path) -> Iterator[Path]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names, bases = [alias.name for alias in node.names], (root, path.parent)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [module, *(f"{module}.{alias.name}".strip(".") for alias in node.names)]
            above = path.parent
            for _ in range(node.level - 1):
                above = above.parent
            bases = (above,) if node.level else (root, root.parent, path.parent)
        else:
            continue
        for name in filter(None, names):
            if name.split(".")[0] in _OBSERVED:  # a script in the library's own checkout
                continue
            for base in bases:
                file = base.joinpath(*name.split("."))
                for candidate in (file.with_suffix(".py"), file / "__init__.py"):
                    if candidate.is_file():
                        yield candidate
