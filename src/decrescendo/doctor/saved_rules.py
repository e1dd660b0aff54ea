"""Rules of the source about what is saved beside the weights: statistics, vocabularies, whole modules."""

import ast
import re
from collections.abc import Iterator

from decrescendo.doctor.flows import PUBLIC, draws_persons, functions, given_to, makes, scope_of, within
from decrescendo.doctor.source import MAKERS, Hit, Module, Sources, assigned, keyword, name_of, targets_of

_SAVES = ("save", "savez", "savez_compressed", "dump", "dumps", "save_file", "savetxt")
# A file that calls one of these handles weights.
_OF_WEIGHTS = ("backward", "state_dict", "make_private", "make_private_with_epsilon", "fit", "train")
_STATISTICS = ("mean", "std", "var", "min", "max", "amin", "amax", "quantile", "median", "nanmean", "nanstd")
# What is no private row, or has noise.
_NO_ROWS = re.compile(
    r"grad|loss|weight|param|norm|score|acc|logit|pred|metric|public|pretrain|noise|noisy|normal|randn|laplace|dp_|"
    r"synth|fake|generated|epsilon|sigma"
)
_ALL_ROWS = re.compile(r"train|data|^xs?$|rows|records|images|features|samples|table|df")
# What reads a table of rows.
_TABLE = re.compile(
    r"\bread_(csv|table|parquet|json|excel|feather|pickle|sql)\(|\b(loadtxt|genfromtxt)\(|\bfetch_\w+\("
)
# Pandas' functions of whole columns, unless along rows.
_OF_COLUMNS = ("apply", "transform", "agg")
_SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)
_STANDARDISED = (
    "beside", "rows are standardised by means and deviations of the private rows, without noise",
    "they go into every row, and often into what is published: take public ones",
)  # fmt: skip
# Names of classes are seldom secret.
_CLASSES = re.compile(r"class|label|target|^y$|categor")
_COLLECTED = re.compile(r"Counter\([^)]|most_common\(|\bset\([^)]|\bunique\(")
# Sets that are not of what stands in the rows.
_OF_NAMES = re.compile(r"range\(|columns|config|args|keys\(\)|index|indices|idx|files|paths")
_WORDS = re.compile(r"vocab|word|token|itos|stoi|char|letter|dict|lexicon|alphabet")
# What a vocabulary may be rebuilt by.
_REBUILDS = (
    "list",
    "dict",
    "sorted",
    "enumerate",
    "zip",
    "set",
    "tuple",
    "items",
    "keys",
    "tolist",
    "most_common",
)


def saved_statistics(sources: Sources) -> Iterator[Hit]:
    """Means, ranges and vocabularies of private rows that are saved."""
    for module, save in sources.calls(*_SAVES):
        saved = {name for part in save.args for name in _names(part)}
        # (A table that is cached beside the data is not published.)
        if not any(name_of(call.func) in _OF_WEIGHTS for call in module.calls):
            continue
        scopes = [scope_of(module, save), module.tree]
        for scope in scopes:
            for name in sorted(saved):
                if _is_statistic(scope, name):
                    yield (module, save, "beside", "means or ranges of the private rows are saved, without noise",
                           "they are no part of epsilon: take public ones, or add noise to them")  # fmt: skip
                    return
                if _is_vocabulary(scope, name, 3) or _is_built(sources, scope, name):
                    yield (module, save, "beside", "a vocabulary of the private rows is saved, without noise",
                           "a rare word tells who wrote it: take a public vocabulary")  # fmt: skip
                    return


def _names(node: ast.expr) -> set[str]:
    """Names in an expression, those left out whose number alone is asked for."""
    counted = {
        id(inner)
        for part in ast.walk(node)
        if isinstance(part, ast.Call) and name_of(part.func) == "len"
        for inner in ast.walk(part)
    }
    return {name_of(part).lower() for part in ast.walk(node) if id(part) not in counted} - {""}


def _is_statistic(scope: ast.AST, name: str) -> bool:
    """Whether a name is a statistic of all rows, by column."""
    return any(
        _by_column(part) or (_is_whole(part) and _is_table(scope, name_of(getattr(part.func, "value", part))))
        for made in given_to(scope, name)
        for part in ast.walk(made.value)
        if isinstance(part, ast.Call) and not _NO_ROWS.search(ast.unparse(made).lower())
    )


def _by_column(call: ast.Call) -> bool:
    """Whether a call is `x.mean(0)`, `np.mean(x, axis=0)` or the like."""
    if name_of(call.func) not in _STATISTICS:
        return False
    along = [given for key in ("axis", "dim") if (given := keyword(call, key)) is not None]
    own = isinstance(call.func, ast.Attribute) and name_of(call.func.value) not in ("np", "numpy", "torch")
    at = 1 if not own or name_of(call.func) in ("quantile",) else 0
    along = along or call.args[at : at + 1]
    return any(isinstance(a, ast.Constant) and a.value == 0 and not isinstance(a.value, bool) for a in along)


def _is_vocabulary(scope: ast.AST, name: str, deep: int) -> bool:
    """Whether a name is made of the words or values that the rows have, by itself or through other names."""
    if _CLASSES.search(name):
        return False
    for made in given_to(scope, name):
        text = ast.unparse(made.value)
        if _NO_ROWS.search(text.lower()) or _CLASSES.search(text.lower()):
            continue
        if _COLLECTED.search(text) and not _OF_NAMES.search(text):
            return True
        calls = {name_of(part.func) for part in ast.walk(made.value) if isinstance(part, ast.Call)}
        if deep and calls <= set(_REBUILDS):
            inner = _names(made.value) - {name}
            if any(_is_vocabulary(scope, other, deep - 1) for other in sorted(inner)):
                return True
    return False


def _is_built(sources: Sources, scope: ast.AST, name: str) -> bool:
    """Whether a vocabulary, by its name, is what a function of the script makes of the words that it is given."""
    if not _WORDS.search(name):
        return False
    for made in given_to(scope, name):
        if not isinstance(made.value, ast.Call) or _NO_ROWS.search(ast.unparse(made.value).lower()):
            continue
        for maker in _definitions(sources, name_of(made.value.func)):
            statements = [ast.unparse(part) for part in ast.walk(maker) if isinstance(part, _SIMPLE)]
            if any(_COLLECTED.search(text) and not _OF_NAMES.search(text) for text in statements):
                return True
    return False


def _definitions(sources: Sources, name: str) -> Iterator[ast.FunctionDef]:
    """A function of the script with a name, or what makes an object of a class with it."""
    yield from functions(sources, {name})
    for module in sources.modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and node.name == name:
                yield from (part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__")


def standardised(sources: Sources) -> Iterator[Hit]:
    """Rows that are standardised by their own mean and deviation, all at once, before the training."""
    if draws_persons(sources):
        return
    for module in sources.modules:
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
                continue
            inner = node.left
            if not isinstance(inner, ast.BinOp) or not isinstance(inner.op, ast.Sub):
                continue
            function = module.function(node)
            kept = _kept(module, inner.right) and _kept(module, node.right)
            if (isinstance(inner.left, ast.Subscript) and _by_itself(inner, node.right)) or (  # a column
                kept and function is not None and function.name == "__getitem__"
            ):
                yield (module, node, *_STANDARDISED)
                return
            base = name_of(inner.left)
            if (
                module.loops(node)
                or not base
                or _in_transform(module, node, base)
                or (function is not None and base in {a.arg for a in function.args.args})
            ):
                continue
            if _NO_ROWS.search(base.lower()) or (function is not None and makes(function, (), ("backward",))):
                continue
            if function is not None and re.search("getitem|collate|transform|forward", function.name):
                continue
            below, above = _own(module, inner.right, base), _own(module, node.right, base)
            if below and above:
                yield (module, node, *_STANDARDISED)
                return


def _by_itself(centred: ast.BinOp, scale: ast.expr) -> bool:
    """Whether a column of a table is centred and scaled by itself: `(df[c] - df[c].mean()) / df[c].std()`."""
    own = ast.unparse(centred.left)
    table = own.partition("[")[0].lower()
    if not _ALL_ROWS.search(table) or _NO_ROWS.search(table) or PUBLIC.search(table):
        return False
    texts = [ast.unparse(one) for one in (centred.right, scale)]
    return all(re.match(rf"\(?{re.escape(own)}\.({'|'.join(_STATISTICS)})\(", text) for text in texts)


def _in_transform(module: Module, node: ast.AST, name: str) -> bool:
    """Whether a name is the argument of a function without a name, which is given each row by itself."""
    for above in module.around(node):
        if isinstance(above, ast.Lambda) and name in {argument.arg for argument in above.args.args}:
            call = module.parents.get(above)
            along = keyword(call, "axis") if isinstance(call, ast.Call) else None
            whole = isinstance(call, ast.Call) and name_of(call.func) in _OF_COLUMNS
            return not whole or (along is not None and ast.unparse(along) in ("1", "'columns'"))
    return False


def _kept(module: Module, node: ast.expr) -> bool:
    """Whether an expression is an attribute that holds a statistic of all rows of a data set."""
    node = node.left if isinstance(node, ast.BinOp) else node
    held = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
    return held.startswith("self.") and any(
        isinstance(value, ast.Call) and (_by_column(value) or _is_whole(value))
        and not PUBLIC.search(ast.unparse(value).lower())
        for part in ast.walk(module.tree) for target, value in assigned(part) if ast.unparse(target) == held
    )  # fmt: skip


def _is_whole(call: ast.Call) -> bool:
    """Whether a call is `x.mean()` or the like."""
    named = isinstance(call.func, ast.Attribute) and call.func.attr in _STATISTICS
    return named and not call.keywords and not call.args


def _is_table(scope: ast.AST, name: str, deep: int = 3) -> bool:
    """Whether a name is of a table that was read from a file, or of a part of one."""
    made = [one.value for one in given_to(scope, name.lower())]
    texts = [ast.unparse(value) for value in made]
    if any(PUBLIC.search(text.lower()) for text in texts):
        return False
    parts = {other for value in made for other in _names(value)} - {name.lower()} if deep else set[str]()
    return any(map(_TABLE.search, texts)) or any(_is_table(scope, other, deep - 1) for other in sorted(parts))


def _own(module: Module, node: ast.expr, base: str) -> bool:
    """Whether an expression is a statistic of what has a name, or a name for one."""
    if isinstance(node, ast.BinOp):  # `std + 1e-8`
        node = node.left
    values = [node]
    if isinstance(node, ast.Name):
        for made in given_to(scope_of(module, node), node.id.lower()):
            pairs = [made.value]
            target = targets_of(made)[0]
            if isinstance(target, ast.Tuple) and isinstance(made.value, ast.Tuple):
                pairs = [v for t, v in zip(target.elts, made.value.elts, strict=False) if name_of(t) == node.id]
            values = pairs
    return any(isinstance(value, ast.Call) and _is_of(scope_of(module, node), value, base) for value in values)


def _is_of(scope: ast.AST, call: ast.Call, base: str) -> bool:
    """Whether a call is a statistic of all rows that have a name."""
    if name_of(call.func) not in _STATISTICS or not isinstance(call.func, ast.Attribute):
        return False
    held: ast.expr = call.func.value
    while isinstance(held, ast.Call | ast.Attribute):  # `x.float().mean(0)`
        held = held.func if isinstance(held, ast.Call) else held.value
    of = base in (name_of(call.func.value), name_of(held)) or (bool(call.args) and name_of(call.args[0]) == base)
    others = [a for a in call.args if name_of(a) != base]
    whole = not others and keyword(call, "axis") is None and keyword(call, "dim") is None
    # (The mean of an image is its own.)
    return of and ((whole and (bool(_ALL_ROWS.search(base.lower())) or _is_table(scope, base))) or _by_column(call))


def whole_modules(sources: Sources) -> Iterator[Hit]:
    """The module of make_private saved as it is, with the gradients that its parameters carry."""
    for module, call in sources.calls(*MAKERS):
        statement = module.statement(call)
        if not isinstance(statement, ast.Assign):
            continue
        target = statement.targets[0]
        private = ast.unparse(target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target)
        scope = scope_of(module, call)
        for save in within(scope):
            if not isinstance(save, ast.Call) or name_of(save.func) not in ("save", "dump") or not save.args:
                continue
            if ast.unparse(save.args[0]) != private or save.lineno < statement.lineno:
                continue
            if _cleared(module, scope, statement, save, private):
                continue
            yield (module, save, "beside", "the whole private module is saved: its parameters carry the gradients of "
                                           "the last batch, record by record, without noise",
                   "save model._module.state_dict() instead")  # fmt: skip
            return


def _cleared(module: Module, scope: ast.AST, made: ast.stmt, save: ast.Call, private: str) -> bool:
    """Whether the module was unwrapped, or its gradients cleared, between its making and its saving."""
    for node in within(scope):
        if not made.lineno < getattr(node, "lineno", 0) < save.lineno:
            continue
        if isinstance(node, ast.Assign) and any(private == ast.unparse(target) for target in node.targets):
            return True
        if isinstance(node, ast.Call) and name_of(node.func) == "zero_grad":
            alone = all(loop in module.loops(save) for loop in module.loops(node))
            if alone:
                return True
    return False
