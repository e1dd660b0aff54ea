"""What rules of the source follow: a name to what it is given, and noise and steps through functions and loops."""

import ast
import functools
import re
from collections.abc import Collection, Iterable, Iterator

from decrescendo.doctor.source import MAKERS, Module, Sources, keyword, name_of, names_in, targets_of

# Rows that are not trained on, and those that are.
TESTS = re.compile(r"test|(^|_)val(id|_|s?$)|(^|_)(te|va|dev|pub)(_|$)|public|hold_?out|held_?out|(^|_)eval(_|$)")
PUBLIC = re.compile(r"public|(^|_)pub(_|$)")
# Of functions that make or load the rows.
_ROWS_OF = re.compile(r"privat\w*_(data|records?|rows?|sets?|batch|loader|images|samples|people|patients|train)")
TRAINS = re.compile(r"train|(^|_)tr(_|$)")
SCORE = re.compile(r"loss|^err[dg]|(^|_)acc(s|_|\d|$)|accurac|top1|correct(?!ion)")
_DRAWS = (
    "normal", "randn", "randn_like", "normal_", "laplace", "standard_normal", "Normal", "Laplace", "sample",
)  # fmt: skip
# `torch.rand(n) < q`, but no coin for one row.
_POISSON = re.compile(
    r"poisson(?!sampleddpevent|_?subsampl)|uniformwithreplacement|bernoulli|iidbatch|withoutreplacement|"
    r"rand\w*\((?!1\)|\(1,\)\))[^\n<>=]+\) < "
)
_RATES = re.compile(
    r"sampl\w*_?(rate|prob|ratio|frac)|subsampl|\bq\b|_q\b|opacus|(rdp|prv|pld|gdp|moments|privacy_?)accountant|_rdp\b|"
    r"(batch|lot)_?(size)? / |\b(b|batch|lot|bs) / (n|len)\b|dp_accounting|get_noise_multiplier|sgm"
)
_FORMULA = re.compile(r"(eps|rho)\w* = [^\n]*(sqrt\(|log\(|\*\*)|return [^\n]*sqrt\([^\n]*log\(")
# Persons are drawn, not rows: `torch.rand(len(people)) < q`.
_PERSONS_DRAWN = re.compile(
    r"rand\w*\([^\n<>=]*(person|people|user|patient|client|subject|phone|speaker|volunteer|member|author|writer)"
    r"[^\n<>=]*\) < |for \w+ in [^\n\]]*(person|people|user|patient|client|subject|phone|speaker|member|author)"
    r"[^\n\]]* if [^\n\]]*rand\w*\("
)
# What loops over the tensors of one gradient go over.
_TENSORS = re.compile(
    r"param|grad|items\(|values\(|zip\(|total|summed|sums|layers|tensors|state_dict|weights|theta|update"
)
# Functions that have such a name are called by anybody.
_COMMON = ("main", "__init__", "forward", "run")


def engines(sources: Sources) -> bool:
    """Whether Opacus, 1.0 or later, makes the loader: then batches are Poisson batches."""
    own = any(
        isinstance(node, ast.FunctionDef) and node.name in MAKERS
        for module in sources.modules for node in ast.walk(module.tree)
    )  # fmt: skip
    called = any(sources.calls(*MAKERS))
    return called and (not own or sources.mentions("import opacus", "from opacus"))


def noises(sources: Sources) -> list[tuple[Module, ast.Call]]:
    """Noise that is drawn for a gradient or for weights, by hand."""
    found = []
    for module, call in sources.calls(*_DRAWS):
        statement = module.statement(call)
        if name_of(call.func) == "sample" and "normal" not in ast.unparse(call).lower():
            continue
        function = module.function(call)
        words = names_in(statement) if statement is not None else set()
        words |= {function.name.lower()} if function is not None else set()
        about = any(re.search(r"grad|nois[ey]|dp_|_dp|privat|sigma|perturb", _ROWS_OF.sub("", word)) for word in words)
        if about and "forward" not in words:
            found.append((module, call))
    return found


def scaled_draws(sources: Sources) -> list[tuple[Module, ast.Call]]:
    """Normal draws that are given, or multiplied by, a scale that is no constant: noise, whatever it is added to."""
    found = []
    for module, call in sources.calls(*_DRAWS):
        function, above = module.function(call), module.parents.get(call)
        scales = [k.value for k in call.keywords if k.arg in ("scale", "std")] + call.args[1:2]
        scales = scales if name_of(call.func) in ("normal", "normal_", "laplace") else []
        if isinstance(above, ast.BinOp) and isinstance(above.op, ast.Mult):
            scales.append(above.left if above.right is call else above.right)
        if (function is None or function.name != "forward") and not all(isinstance(s, ast.Constant) for s in scales):
            found.append((module, call))
    return found


def amplifies(sources: Sources) -> bool:
    """Whether steps may be counted as those of a sample. A script's own formula of epsilon that names no rate, and no
    accountant of DP-SGD, claims nothing of sampling, nor does an accountant that is told a rate of 1."""
    rates = [rate for _, call in sources.calls("step") if (rate := keyword(call, "sample_rate")) is not None]
    if rates and all(sources.number(rate) == 1 for rate in rates):
        return False
    return sources.matches(_RATES) or not sources.matches(_FORMULA)


def draws_each_alone(sources: Sources) -> bool:
    """Whether some batch is drawn record by record, or by another scheme that accountants know."""
    return sources.matches(_POISSON)


def draws_persons(sources: Sources) -> bool:
    """Whether persons are drawn, each with all of their rows."""
    return sources.matches(_PERSONS_DRAWN)


def makers_of(sources: Sources, calls: Iterable[tuple[Module, ast.Call]], *, once: bool = False) -> set[str]:
    """Names of the functions that make one of these calls, by themselves or through others.

    With once, of those that make it outside of loops, or in loops over tensors: a step, and no training.
    """
    known: set[str] = set()
    waiting = _around(calls, once)
    while waiting := waiting - known - set(_COMMON):
        known |= waiting
        waiting = _around(sources.calls(*waiting), once)
    return known


def _around(calls: Iterable[tuple[Module, ast.Call]], once: bool) -> set[str]:
    return {
        function.name
        for module, call in calls
        if (function := module.function(call)) is not None
        and (not once or all(map(is_over_tensors, module.loops(call))))
    }


def is_over_tensors(loop: ast.For | ast.While) -> bool:
    """Whether a loop goes over the tensors of one gradient."""
    return isinstance(loop, ast.For) and bool(_TENSORS.search(ast.unparse(loop.iter).lower()))


def makes(node: ast.AST, calls: Collection[ast.AST], named: Collection[str]) -> bool:
    """Whether a node makes one of these calls, or calls a function with one of these names."""
    return any(isinstance(part, ast.Call) and (part in calls or name_of(part.func) in named) for part in ast.walk(node))


def scope_of(module: Module, node: ast.AST) -> ast.AST:
    """The function that a node is in, or the module."""
    return module.function(node) or module.tree


def within(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, those of functions and classes inside left out."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


def used_code(sources: Sources) -> str:
    """The code, in lower case, without functions that nothing calls."""
    whole = [node for module in sources.modules for node in ast.walk(module.tree)]
    named = {name_of(node) for node in whole if isinstance(node, ast.Name | ast.Attribute)}
    return "\n".join(
        ast.unparse(node) for module in sources.modules for node in module.tree.body
        if not isinstance(node, ast.FunctionDef) or node.name in named
    ).lower()  # fmt: skip


def given_to(scope: ast.AST, name: str) -> list[ast.Assign | ast.AugAssign | ast.Expr]:
    """What a scope assigns to a name, written in lower case, alone or among others, or appends to it."""
    return _given(scope).get(name, [])


@functools.lru_cache(maxsize=1024)
def _given(scope: ast.AST) -> dict[str, list[ast.Assign | ast.AugAssign | ast.Expr]]:
    """The same for all names of a scope."""
    found: dict[str, list[ast.Assign | ast.AugAssign | ast.Expr]] = {}
    for node in within(scope):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            method = node.value.func
            if isinstance(method, ast.Attribute) and method.attr in ("append", "extend"):
                found.setdefault(name_of(method.value).lower(), []).append(node)
        if isinstance(node, ast.Assign | ast.AugAssign):
            leaves = [
                part for target in targets_of(node) for part in (target.elts if isinstance(target, ast.Tuple | ast.List)
                                                                 else [target])
            ]  # fmt: skip
            for name in {name_of(leaf).lower() for leaf in leaves}:
                found.setdefault(name, []).append(node)
    return found


def data_in(node: ast.AST) -> set[str]:
    """Names in an expression, in lower case, but for those of what is called."""
    called = {part.func for part in ast.walk(node) if isinstance(part, ast.Call)}
    return {name_of(part).lower() for part in ast.walk(node) if part not in called} - {""}


def comes_from(
    sources: Sources, module: Module, node: ast.AST, name: str, rows: re.Pattern[str], deep: int = 3
) -> bool:
    """Whether all that a name is given, where a node stands, is about rows with such names."""
    scope = scope_of(module, node)
    nearest = next((loop for loop in module.loops(node) if given_to(loop, name)), scope)
    given = [made for made in given_to(nearest, name) if not _is_start(made.value)]
    return bool(given) and all(_is_about(sources, module, made, rows, deep) for made in given)


def _is_start(value: ast.expr) -> bool:
    """Whether a value is what sums and lists begin with: `[]`, `0`, or several of them."""
    if isinstance(value, ast.Tuple | ast.List):
        return all(map(_is_start, value.elts))
    return isinstance(value, ast.Constant) or ast.unparse(value) in ("{}", "list()")


def _is_about(
    sources: Sources,
    module: Module,
    made: ast.Assign | ast.AugAssign | ast.Expr,
    rows: re.Pattern[str],
    deep: int,
) -> bool:
    names = data_in(made.value)
    over = [name for loop in module.loops(made) if isinstance(loop, ast.For) for name in names_in(loop.iter)]
    if any(map(TRAINS.search, names)):
        return False
    if any(rows.search(name) for name in [*names, *over]):
        return True
    called = {name_of(part.func) for part in ast.walk(made.value) if isinstance(part, ast.Call)}
    if any(_reads(function, rows) for function in functions(sources, called)):
        return True
    scores = {name for name in names if SCORE.search(name)}
    return (
        deep > 0
        and bool(scores)
        and all(rows.search(name) or comes_from(sources, module, made, name, rows, deep - 1) for name in scores)
    )


def functions(sources: Sources, names: Collection[str]) -> Iterator[ast.FunctionDef]:
    """The functions of the script that have one of these names."""
    for module in sources.modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef) and node.name in names:
                yield node


def _reads(function: ast.FunctionDef, rows: re.Pattern[str]) -> bool:
    """Whether a function goes over such rows and over no others, and trains nothing."""
    over = [node.iter for node in ast.walk(function) if isinstance(node, ast.For | ast.comprehension)]
    names = {name for one in over for name in data_in(one)}
    trains = any(isinstance(n, ast.Call) and name_of(n.func) == "backward" for n in ast.walk(function))
    return not trains and any(map(rows.search, names)) and not any(map(TRAINS.search, names))
