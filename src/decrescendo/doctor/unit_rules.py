"""Rules of the source about the unit of privacy: whose a row is, and windows that overlap."""

import ast
import re
from collections.abc import Iterator

from decrescendo.doctor.flows import SCORE, draws_persons, engines
from decrescendo.doctor.source import Hit, Module, Sources, name_of, targets_of

_PERSONS = re.compile(
    r"^(user|patient|subject|speaker|author|person|customer|client|member|account|participant|writer)_?ids?$",
    re.IGNORECASE,
)
# As a name of a variable: clients and the like are what federations loop over.
_NAMED = re.compile(r"^(user|patient|subject|speaker|author|person|customer)_?ids?$", re.IGNORECASE)
_WHOSE = r"(user|person|patient|customer|speaker|author|subject|household|family|device|account|employee|meter)"
_STATED = re.compile(
    rf"\b{_WHOSE}[- ]level (dp\b|epsilon|privacy|differential|guarantee|\()|"
    rf"(epsilon|privacy|dp) (per|of each|for each|of every|for every) {_WHOSE}|per[- ]{_WHOSE} (epsilon|dp\b|privacy)"
)
_DENIED = re.compile(r"\b(not|no|never|isn't|rather than|instead of|unlike)\b")
# What a window may pass through on its way to the rows.
_WRAPS = (
    "append",
    "tensor",
    "array",
    "from_numpy",
    "as_tensor",
    "asarray",
    "stack",
    "float",
    "long",
    "astype",
    "join",
)


def _is_window(module: Module, node: ast.AST) -> bool:
    """Whether a data set cuts row i out of a series at i: `series[i : i + length]`."""
    function = module.function(node)
    if not isinstance(node, ast.Slice) or function is None or function.name != "__getitem__":
        return False
    lower, upper = node.lower, node.upper
    at = {argument.arg for argument in function.args.args[1:]}
    if not isinstance(lower, ast.Name) or not isinstance(upper, ast.BinOp):
        return False
    return lower.id in at and ast.unparse(upper.left) == lower.id


def _is_slid(sources: Sources, module: Module, node: ast.AST) -> bool:
    """Whether a loop cuts windows that overlap, each a row: `for s in range(0, n, 16): xs.append(x[s : s + 64])`."""
    if isinstance(node, ast.Call) and name_of(node.func) == "unfold" and len(node.args) == 3:
        size, step = map(sources.number, node.args[1:])
        function = module.function(node)
        models = function is not None and function.name in ("forward", "__call__")
        return size is not None and step is not None and step < size and not models and _are_rows(module, node)
    if not isinstance(node, ast.Slice) or not isinstance(node.lower, ast.Name) or node.step is not None:
        return False
    upper = node.upper
    if not isinstance(upper, ast.BinOp) or not isinstance(upper.op, ast.Add):
        return False
    if ast.unparse(upper.left) != node.lower.id:
        return False
    cut, over = module.parents[node], _range_over(module, node, node.lower.id)
    if over is None or not isinstance(cut, ast.Subscript) or SCORE.search(ast.unparse(cut.value).lower()):
        return False
    if "gram" in ast.unparse(module.statement(node) or node).lower() or _for_one_person(sources, module, node):
        return False  # (n-grams are counted, they are no rows)
    return _are_rows(module, cut) and _is_shorter(sources, module, over, upper.right)


def _for_one_person(sources: Sources, module: Module, node: ast.AST) -> bool:
    """Whether a function cuts windows, and what it returns is appended in one piece."""
    function = module.function(node)
    calls = sources.calls(function.name) if function is not None else ()
    return any(
        isinstance(above, ast.Call) and name_of(above.func) == "append"
        for held, call in calls
        for above in held.around(call)
    )


def _range_over(module: Module, node: ast.AST, name: str) -> ast.Call | None:
    """The `range(..)` that a name goes over, around a node."""
    for above in module.around(node):
        turns = [(above.target, above.iter)] if isinstance(above, ast.For) else []
        if isinstance(above, ast.ListComp | ast.GeneratorExp):
            turns = [(one.target, one.iter) for one in above.generators]
        for target, over in turns:
            if name_of(target) == name:
                return (
                    over if isinstance(over, ast.Call) and name_of(over.func) in ("range", "trange", "arange") else None
                )
    return None


def _is_shorter(sources: Sources, module: Module, over: ast.Call, window: ast.expr) -> bool:
    """Whether the step of a range is shorter than a window."""
    size = _number(sources, module, window)
    if len(over.args) < 3:
        return size is None or size > 1
    step = over.args[2]
    if ast.unparse(step).startswith(f"{ast.unparse(window)} // "):
        return True
    length = _number(sources, module, step)
    return length is not None and (length < size if size is not None else length == 1)


def _number(sources: Sources, module: Module, node: ast.expr) -> float | None:
    """A constant, a name for one, or an argument that has one as its default."""
    function = module.function(node)
    if function is not None and isinstance(node, ast.Name):
        own = [*function.args.posonlyargs, *function.args.args]
        for argument, default in zip(
            own[len(own) - len(function.args.defaults) :], function.args.defaults, strict=True
        ):
            if argument.arg == node.id:
                return sources.number(default)
    return sources.number(node)


def _are_rows(module: Module, window: ast.expr) -> bool:
    """Whether a window is appended, yielded or an element of a list, that no outer loop begins anew."""
    node: ast.AST = window
    for above in module.around(window):
        if isinstance(above, ast.Yield):
            return True
        if isinstance(above, ast.ListComp) and name_of(getattr(module.parents[above], "func", above)) != "extend":
            return not module.loops(above) or isinstance(module.parents[above], ast.AugAssign)
        if isinstance(above, ast.Call):
            name = name_of(above.func)
            if name in ("append", "extend") and isinstance(above.func, ast.Attribute) and node in above.args:
                kept = ast.unparse(above.func.value)
                begun = [
                    loop for loop in module.loops(above) for part in ast.walk(loop)
                    if isinstance(part, ast.Assign) and kept in map(ast.unparse, part.targets)
                ]  # fmt: skip
                whole = isinstance(window, ast.Call) and name == "append"  # an unfolded series, in one piece
                return not begun and not whole
            if name in ("TensorDataset", "cat", "concatenate", "vstack"):
                return isinstance(window, ast.Call)
            if name not in _WRAPS and above is not window:
                return False
        if isinstance(above, ast.BinOp | ast.Compare | ast.stmt):
            return False
        node = above
    return False


def units(sources: Sources) -> Iterator[Hit]:
    """Columns that say whose a row is; windows that overlap."""
    by_person = draws_persons(sources)
    grouped = {ast.unparse(call.args[0]) for _, call in sources.calls("groupby") if call.args}
    for module in sources.modules:
        for node in ast.walk(module.tree):
            if _is_window(module, node) or (not by_person and _is_slid(sources, module, node)):
                yield (module, node, "unit", "rows are windows that overlap: each value is in many rows",
                       "epsilon is of one window; of a value in k windows it grows about k times: cut windows that do "
                       "not overlap")  # fmt: skip
                return
            named = [] if by_person else [name for name in _parts(node) if _NAMED.match(name)]
            key = node.value if isinstance(node, ast.Constant) else next(iter(named), None)
            compared = isinstance(module.parents.get(node), ast.Compare)
            if isinstance(key, str) and _PERSONS.match(key) and not compared and repr(key) not in grouped:
                statement = module.statement(node)
                if isinstance(statement, ast.Expr) and "argument" in ast.unparse(statement):
                    continue
                yield (module, node, "unit", f"rows have a column {key!r}: one person may have many rows",
                       "epsilon is of one row; of a person with k rows it grows about k times: sample and "
                       "clip by person")  # fmt: skip
                return


def stated_units(sources: Sources) -> Iterator[Hit]:
    """A guarantee that is stated for people, where an engine draws and clips rows."""
    if not engines(sources) or draws_persons(sources):
        return
    for module in sources.modules:
        for node in ast.walk(module.tree):
            text = node.value.lower() if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if _STATED.search(text) and not _DENIED.search(text):
                yield (module, node, "unit", "the guarantee is stated for people, and rows are drawn and clipped",
                       "of a person with k rows epsilon grows about k times: make each person one row")  # fmt: skip
                return


def _parts(node: ast.AST) -> list[str]:
    """The names that a row is taken apart into: `for x, y, user_id in loader`, `x, user_id = row`."""
    if isinstance(node, ast.For) and re.search(r"items\(|groupby|enumerate\(", ast.unparse(node.iter)):
        return []  # persons, one after another
    targets = [node.target] if isinstance(node, ast.For) else targets_of(node)
    return [name_of(part) for target in targets if isinstance(target, ast.Tuple) for part in target.elts]
