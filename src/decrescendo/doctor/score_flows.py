"""Where scores of private rows go: from the loops that compute them, through returns, to what prints or saves them."""

import ast
import re
from collections.abc import Iterator

from decrescendo.doctor.flows import (
    PUBLIC,
    SCORE,
    TESTS,
    TRAINS,
    data_in,
    is_over_tensors,
    makers_of,
    noises,
    scope_of,
    within,
)
from decrescendo.doctor.source import MAKERS, Module, Sources, assigned, keyword, name_of, names_in

# Whether a value is a private score; of a tuple or dict, the places or keys of those that are.
Shape = bool | dict[object, bool]
_Function = ast.FunctionDef | ast.AsyncFunctionDef
# What is no score of its rows any more, or never was.
_OTHER = re.compile(r"nois[ey]|laplace|randn|normal\(|autograd|\bgrad\(|accountant|get_epsilon")
_SCORES = re.compile(r"_score$|^roc_curve$|^precision_recall_curve$|^confusion_matrix$|^log_loss$")
_PASSES = "backward", "manual_backward"
_NUMBERS = ("item", "float", "tolist", "append", "extend")


class ScoreFlows:
    """Which expressions of a script have losses or scores of its training rows.

    Args:
        sources: the script, and what it imports from beside it.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._functions = {
            node.name: (module, node) for module in sources.modules for node in ast.walk(module.tree)
            if isinstance(node, _Function)
        }  # fmt: skip
        passes = list(_passes(sources))
        steps = [*passes, *noises(sources)]
        steps = [*sources.calls(*makers_of(sources, steps, once=True)), *steps]
        self._steps = {(module.function(call), _turn(module, call)): call for module, call in [*steps, *passes]}
        self._trained, self._rows = _trained_on(sources)
        self._tables = _tables(sources, self._rows)
        self._returned = dict[str, Shape]()
        self._known = dict[tuple[ast.AST, bool], list[tuple[int, dict[str, Shape]]]]()
        for _ in range(3):  # functions that call functions
            for name, (module, function) in self._functions.items():
                self._returned[name] = self._returns(module, function)
            self._known.clear()

    def has(self, module: Module, node: ast.expr) -> bool:
        """Whether an expression has a score of the training rows, where it stands."""
        scope = scope_of(module, node)
        given = any(self._is_private(held, argument) for held, argument in self._given(scope))
        return _any(self._shape(module, node, self._names(module, scope, given, node.lineno)))

    def _given(self, scope: ast.AST) -> Iterator[tuple[Module, ast.expr]]:
        """What a function is called with, for the arguments that it loops over."""
        if isinstance(scope, _Function):
            for module, call in self._sources.calls(scope.name):
                yield from ((module, value) for name, value in _bound(scope, call) if name in _looped(scope))

    def _names(self, module: Module, scope: ast.AST, given: bool, line: int) -> dict[str, Shape]:
        """What a scope's names hold in a line, if what it loops over is given to it from the training rows, or not."""
        if (scope, given) not in self._known:
            self._known[scope, given] = list(self._walked(module, scope, given))
        states = [names for at, names in self._known[scope, given] if at <= line]
        return states[-1] if states else {}

    def _walked(self, module: Module, scope: ast.AST, given: bool) -> Iterator[tuple[int, dict[str, Shape]]]:
        """What names hold after each line of a scope, when all of it has been run before."""
        names: dict[str, Shape] = {}
        nodes = sorted((n for n in within(scope) if isinstance(n, ast.stmt)), key=lambda n: n.lineno)
        nodes = [] if isinstance(scope, _Function) and PUBLIC.search(scope.name) else nodes
        for again in (False, True):
            for node in nodes:
                for target, value in _gives(node):
                    noised = not isinstance(value, ast.JoinedStr) and _OTHER.search(ast.unparse(value).lower())
                    shape = not noised and (
                        self._shape(module, value, names) or self._is_score(module, scope, node, target, value, given)
                    )
                    names = _put(names, target, shape, more=not isinstance(node, ast.Assign) and not noised)
                if again:
                    yield node.lineno, names

    def _is_score(
        self, module: Module, scope: ast.AST, node: ast.stmt, target: ast.expr, value: ast.expr, given: bool
    ) -> bool:
        """Whether a statement computes a score in a loop over training rows, or in a step on them."""
        loop = next(iter(module.loops(node)), None)
        over = data_in(loop.iter) if isinstance(loop, ast.For) else set[str]()
        name = _path(target).lower()
        if any(map(TESTS.search, over)) or TESTS.search(name) or any(map(TESTS.search, data_in(value))):
            return False
        if name.startswith("tr") and SCORE.search(name) and isinstance(value, ast.Call):
            return True  # a score of the training rows, by its name
        passed = self._steps.get((module.function(node), loop))
        if passed is not None:
            given_on = data_in(passed) if name_of(passed.func) in _PASSES else set[str]()
            return name in given_on or bool(SCORE.search(name))
        own = {argument.lower() for argument in _looped(scope)} if isinstance(scope, _Function) else set[str]()
        private = (given and bool(over & own)) or bool((over - own) & self._trained)
        calls = {name_of(part.func) for part in ast.walk(loop or node) if isinstance(part, ast.Call)}
        numbers = {name_of(part.func) for part in ast.walk(node) if isinstance(part, ast.Call)} & set(_NUMBERS)
        models = any(re.search(r"model|net|^m$|forward|predict|criterion|loss|entropy", call.lower()) for call in calls)
        return private and models and (bool(numbers) or bool(SCORE.search(name)))

    def _returns(self, module: Module, function: _Function) -> Shape:
        found: Shape = False
        for node in within(function):
            if isinstance(node, ast.Return | ast.Yield) and node.value is not None:
                found = _merged(
                    found, self._shape(module, node.value, self._names(module, function, True, node.lineno))
                )
        return found

    def _shape(self, module: Module, node: ast.AST, names: dict[str, Shape]) -> Shape:
        if isinstance(node, ast.Tuple | ast.List):
            return {i: _any(self._shape(module, part, names)) for i, part in enumerate(node.elts)}
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            return {getattr(k, "value", None): _any(self._shape(module, v, names)) for k, v in pairs}
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            inner = self._shape(module, node.value, names)
            return inner if isinstance(inner, bool) else inner.get(node.slice.value, False)
        if (path := _path(node)) in names:
            return names[path]
        if isinstance(node, ast.Call):
            name = name_of(node.func)
            if name in self._functions:
                return self._called(module, node, name)
            if _SCORES.search(name) and self._is_of_rows(module, node):
                return True
            if name in ("len", "isinstance", "isnan", "isfinite") or _OTHER.search(name.lower()):
                return False
        noised = isinstance(node, ast.BinOp) and _OTHER.search(ast.unparse(node).lower())
        if noised or (isinstance(node, ast.Attribute) and node.attr in ("shape", "dtype", "device")):
            return False
        return any(_any(self._shape(module, part, names)) for part in ast.iter_child_nodes(node))

    def _called(self, module: Module, call: ast.Call, name: str) -> Shape:
        """What a function of the script returns, where it is called."""
        function = self._functions[name][1]
        given = [*call.args, *(k.value for k in call.keywords)]
        if any(TESTS.search(word) for part in given for word in names_in(part)):
            return False
        looped = [value for argument, value in _bound(function, call) if argument in _looped(function)]
        trains = any(where is function for where, _ in self._steps)
        if looped and not trains and not any(self._is_private(module, value) for value in looped):
            return False
        return self._returned.get(name, False)

    def _is_of_rows(self, module: Module, call: ast.Call) -> bool:
        """Whether a function of scores is given a table that is trained on."""
        function = module.function(call)
        own = {a.arg.lower() for a in _arguments(function)} if function is not None else set[str]()
        return bool({name for part in call.args for name in data_in(part)} & self._tables - own)

    def _is_private(self, module: Module, value: ast.expr) -> bool:
        """Whether an argument is what is trained on; one that a function only hands on is not known to be."""
        function, name = module.function(value), name_of(value).lower()
        own = {a.arg.lower() for a in _arguments(function)} if function is not None else set[str]()
        if isinstance(value, ast.Call) and value.args and ast.unparse(value.args[0]) in self._rows:
            return True
        return (name in self._trained or bool(TRAINS.search(name))) and (
            name not in own or "train" in name or name in _trained_in(module, function)
        )


def _passes(sources: Sources) -> Iterator[tuple[Module, ast.Call]]:
    """Backward passes; some engines take the losses in their optimiser's step."""
    yield from sources.calls(*_PASSES)
    yield from ((m, call) for m, call in sources.calls("step") if keyword(call, "loss") is not None)


def _turn(module: Module, node: ast.AST) -> ast.For | ast.While | None:
    """The innermost loop around a node; of noise, one over tensors is none."""
    draws = isinstance(node, ast.Call) and name_of(node.func) not in _PASSES
    return next((loop for loop in module.loops(node) if not draws or not is_over_tensors(loop)), None)


def _any(shape: Shape) -> bool:
    return shape if isinstance(shape, bool) else any(shape.values())


def _merged(one: Shape, other: Shape) -> Shape:
    if isinstance(one, bool) or isinstance(other, bool):
        return other if not _any(one) else one if not _any(other) else True
    return {key: one.get(key, False) or other.get(key, False) for key in {*one, *other}}


def _path(node: ast.AST) -> str:
    """The name of a variable, or of an attribute of `self`; empty for others."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return f"self.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _gives(node: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What a statement gives to what, also by `append`, and by the turns of a loop."""
    yield from assigned(node)
    if isinstance(node, ast.AugAssign):
        yield node.target, node.value
    elif isinstance(node, ast.For):
        yield node.target, node.iter
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.value.args:
        method = node.value.func
        if isinstance(method, ast.Attribute) and method.attr in ("append", "extend", "update", "add"):
            yield from ((method.value, argument) for argument in node.value.args)


def _put(names: dict[str, Shape], target: ast.expr, shape: Shape, *, more: bool) -> dict[str, Shape]:
    """What names hold after an assignment, or after something was added to one of them."""
    if isinstance(target, ast.Tuple | ast.List):
        for i, part in enumerate(target.elts):
            names = _put(names, part, shape if isinstance(shape, bool) else shape.get(i, False), more=more)
    elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        names = _put(names, target.value, {target.slice.value: _any(shape)}, more=True)
    elif path := _path(target):
        before = names.get(path, False) if more else False
        names = {**names, path: not TESTS.search(path.lower()) and _merged(before, shape)}
    return names


def _arguments(function: _Function) -> list[ast.arg]:
    return [a for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs) if a.arg != "self"]


def _bound(function: _Function, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """The arguments of a function, and what a call gives for each."""
    yield from zip((a.arg for a in _arguments(function)), call.args, strict=False)
    yield from ((k.arg, k.value) for k in call.keywords if k.arg)


def _looped(function: _Function) -> set[str]:
    """The arguments that a function goes over in loops."""
    over = [node.iter for node in ast.walk(function) if isinstance(node, ast.For | ast.comprehension)]
    names = {part.id for one in over for part in ast.walk(one) if isinstance(part, ast.Name)}
    for target, value in (pair for node in ast.walk(function) for pair in assigned(node)):
        if name_of(target) in names:  # a loader that is made of an argument
            names |= {part.id for part in ast.walk(value) if isinstance(part, ast.Name)}
    return names & {argument.arg for argument in _arguments(function)}


def _trained_in(module: Module, scope: ast.AST | None) -> set[str]:
    """What loops with a backward pass go over in a scope, in lower case."""
    found = set[str]()
    for node in ast.walk(scope) if scope is not None else ():
        if isinstance(node, ast.Call) and name_of(node.func) in _PASSES:
            loops = [loop for loop in module.loops(node) if isinstance(loop, ast.For) and not is_over_tensors(loop)]
            function = module.function(node)
            if function is None or not PUBLIC.search(function.name):
                found = found.union(*(data_in(loop.iter) for loop in loops))
    return {name for name in found if not TESTS.search(name) and not re.search("epoch|round|step", name)}


def _trained_on(sources: Sources) -> tuple[set[str], set[str]]:
    """The names of loaders and rows that are trained on, in lower case, and what their loaders load."""
    found, same = set[str](), set[str]()
    for module in sources.modules:
        found |= _trained_in(module, module.tree)
        for node in ast.walk(module.tree):
            if isinstance(node, _Function):
                passed = _trained_in(module, node) & {name.lower() for name in _looped(node)}
                calls = sources.calls(node.name) if passed else ()
                given = [name_of(v).lower() for _, call in calls for a, v in _bound(node, call) if a.lower() in passed]
                found |= {name for name in given if name and not TESTS.search(name)}
    for _, call in sources.calls(*MAKERS):
        found.add(name_of(keyword(call, "data_loader") or call).lower())
    for _ in range(2):  # another name, or another loader of the same rows
        for module in sources.modules:
            for target, value in (pair for node in ast.walk(module.tree) for pair in assigned(node)):
                rows = ast.unparse(value.args[0]) if isinstance(value, ast.Call) and value.args else ""
                loads = isinstance(value, ast.Call) and name_of(value.func) == "DataLoader"
                name = name_of(target).lower()
                if loads and name in found:
                    same.add(rows)
                if (name_of(value).lower() in found or (loads and rows in same)) and not TESTS.search(name):
                    found.add(name)
    return found - {""}, same


def _tables(sources: Sources, rows: set[str]) -> set[str]:
    """The names of tables that a loader's data set is made of, or gives back, in lower case."""
    found = {name for text in rows for name in data_in(ast.parse(text, mode="eval"))}
    for target, value in (pair for m in sources.modules for node in ast.walk(m.tree) for pair in assigned(node)):
        if any(ast.unparse(value).startswith(f"{text}.") for text in rows if text):
            found |= names_in(target)
    return {name for name in found - {"self"} if not TESTS.search(name)}
