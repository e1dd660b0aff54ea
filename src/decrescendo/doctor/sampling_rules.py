"""Rules of the source about how the rows of a step are drawn by hand."""

import ast
import re
from collections.abc import Iterator

from decrescendo.doctor.flows import (
    TESTS,
    amplifies,
    data_in,
    draws_each_alone,
    engines,
    given_to,
    makers_of,
    makes,
    noises,
    scope_of,
)
from decrescendo.doctor.source import Hit, Module, Sources, keyword, name_of, names_in

_CUT = (
    "batches are cut from a list of the rows, shuffled or not: accountants of DP-SGD assume that each record is drawn "
    "by itself (Poisson)"
)
_UNPROVEN = "amplification by sampling is not proven for such batches"
# Numbers of rows, and what rows are called.
_ALL = re.compile(r"^n$|^(n|num|number)_|_(n|num|size|rows|count)$|^len$|total|shape|size|^rows$")
_ROWS = re.compile(
    r"(^|_)(x|y|xs|ys|data|dataset|train\w*|rows|records|images?|imgs|inputs?|features?|labels?|targets?|texts?|"
    r"examples?|samples?|df|clients?|users?|people|persons?|patients?)(_|\d|$)"
)


def shuffled(sources: Sources) -> Iterator[Hit]:
    """Accountants of DP-SGD beside loaders that cut a list into batches."""
    if engines(sources) or draws_each_alone(sources) or not amplifies(sources):
        return
    for module, call in sources.calls("DataLoader"):
        shuffle, text = keyword(call, "shuffle"), ast.unparse(module.statement(call) or call).lower()
        trains = isinstance(shuffle, ast.Constant) and shuffle.value is True
        by_list = trains or ("train" in text and keyword(call, "batch_sampler") is None)
        if by_list and _is_iterated(sources, module, call):
            yield module, call, "sampling", _CUT, _UNPROVEN
            return
    drawn = noises(sources)
    calls, functions = {call for _, call in drawn}, makers_of(sources, drawn, once=True)
    for module, node in ((m, n) for m in sources.modules for n in ast.walk(m.tree)):
        loop = _cut_in(module, node)
        if loop is not None and makes(loop, calls, functions):
            yield module, node, "sampling", _CUT, _UNPROVEN
            return


def _cut_in(module: Module, node: ast.AST) -> ast.For | ast.While | None:
    """The loop in which a permutation of the rows is cut into batches: `order[i : i + B]`, `randperm(n).split(B)`."""
    if isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
        parted = name_of(node.iter.func) in ("split", "array_split", "chunk")
        return node if parted and _is_permutation(module, node.iter) else None
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice) or node.slice.lower is None:
        return None
    loops = module.loops(node)
    turned = names_in(loops[0].target) if loops and isinstance(loops[0], ast.For) else set[str]()
    at = data_in(node.slice)
    at = at.union(*(data_in(made.value) for word in at for made in given_to(loops[0], word))) if loops else at
    return loops[0] if turned & at and _is_permutation(module, node.value) else None


def _is_permutation(module: Module, node: ast.expr) -> bool:
    """Whether an expression is a permutation of numbers, or has a name for one in it."""
    scope = scope_of(module, node)
    made = [ast.unparse(given.value) for name in data_in(node) for given in given_to(scope, name)]
    return any(re.search(r"randperm\(|permutation\(", text) for text in [ast.unparse(node), *made])


def _is_iterated(sources: Sources, module: Module, call: ast.Call) -> bool:
    """Whether a loader that has a name is read by it somewhere, and not for its length alone."""
    statement = module.statement(call)
    if not isinstance(statement, ast.Assign) or statement.value is not call or len(statement.targets) != 1:
        return True
    name = name_of(statement.targets[0])
    for held in sources.modules:
        for node in ast.walk(held.tree):
            read = isinstance(getattr(node, "ctx", None), ast.Load) and name_of(node) == name
            if read and not _is_counted(held, node):
                return True
    return not name


def _is_counted(module: Module, node: ast.AST) -> bool:
    above = module.parents.get(node)
    if isinstance(above, ast.Attribute) and above.attr in ("dataset", "batch_size", "sampler"):
        above = module.parents.get(above) if above.attr != "batch_size" else None
        return above is None or (isinstance(above, ast.Call) and name_of(above.func) == "len")
    return isinstance(above, ast.Call) and name_of(above.func) == "len"


def drawn_by_number(sources: Sources) -> Iterator[Hit]:
    """As many rows for each step, drawn together by hand."""
    drawn = noises(sources)
    if engines(sources) or not drawn or draws_each_alone(sources) or not amplifies(sources):
        return
    calls, functions = {call for _, call in drawn}, makers_of(sources, drawn, once=True)
    for module, call in sources.calls("randint", "choice", "integers", "sample", "choices", "randperm", "permutation"):
        if not _takes_rows(module, call):
            continue
        if not any(_is_private_loop(place, loop, calls, functions) for place, loop in _loops(sources, module, call)):
            continue
        yield (module, call, "sampling",
               "a fixed number of rows is drawn for each step: accountants of DP-SGD assume that each record is drawn "
               "by itself (Poisson)",
               _UNPROVEN)  # fmt: skip
        return


def _loops(sources: Sources, module: Module, call: ast.Call) -> Iterator[tuple[Module, ast.For | ast.While]]:
    """The loop around a draw, or around the calls of the function that draws."""
    # (What a loop goes over is drawn before it.)
    own = [loop for loop in module.loops(call) if isinstance(loop, ast.While) or call not in ast.walk(loop.iter)]
    if own:
        yield module, own[0]
        return
    function = module.function(call)
    for held, other in sources.calls(function.name) if function is not None else ():
        yield from ((held, loop) for loop in held.loops(other)[:1])


def _is_private_loop(module: Module, loop: ast.For | ast.While, calls: set[ast.Call], functions: set[str]) -> bool:
    """Whether a loop over numbers makes steps with noise, which hooks may add that its function has registered."""
    counts = (
        isinstance(loop, ast.While) or "range(" in ast.unparse(loop.iter) or name_of(loop.iter) in ("steps", "rounds")
    )
    if not counts:
        return False
    hooked = makes(loop, (), ("backward",)) and any(
        makes(module.function(loop) or loop, (part,), ()) for part in calls if _is_in_hook(module, part)
    )
    return hooked or makes(loop, calls, functions)


def _is_in_hook(module: Module, call: ast.Call) -> bool:
    return any(isinstance(a, ast.Call) and name_of(a.func) == "register_hook" for a in module.around(call))


def _takes_rows(module: Module, call: ast.Call) -> bool:
    """Whether a call draws several of all rows, which are then picked."""
    name, args = name_of(call.func), list(call.args)
    statement = module.statement(call)
    if statement is None or not args:
        return False
    if any(TESTS.search(word) for word in data_in(call)):
        return False
    scope = scope_of(module, call)
    drawn = {name_of(t).lower() for t in getattr(statement, "targets", [])} - {""}
    picks = [node for node in ast.walk(scope) if isinstance(node, ast.Subscript)]
    if name in ("randperm", "permutation"):
        # `randperm(n)[:B]`, at once or by its name.
        cut = [
            p for p in picks if isinstance(p.slice, ast.Slice) and p.slice.lower is None and p.slice.upper is not None
        ]
        return any(p.value is call or name_of(p.value).lower() in drawn for p in cut) and _are_all(scope, args[:1])
    size = keyword(call, "size") or keyword(call, "k") or keyword(call, "shape")
    several = name in ("randint", "integers") and len(args) > 1 and not isinstance(args[1], ast.Tuple)
    at = 2 if several else 1
    size = size if size is not None else next(iter(args[at : at + 1]), None)
    upto = args[1:2] if several else args[:1]
    if size is None or re.fullmatch(r"\(?1?,?\)?", ast.unparse(size)) or _is_of_a_batch(scope, size, upto):
        return False
    of_rows = any(map(_ROWS.search, data_in(upto[0])))
    if name in ("sample", "choices") and isinstance(args[0], ast.Name | ast.Attribute):
        looped = any(isinstance(n, ast.For) and name_of(n.iter).lower() in drawn for n in ast.walk(scope))
        return looped or bool(_ROWS.search(name_of(args[0]).lower()))
    picked = any(
        _ROWS.search(name_of(p.value).lower())
        and (call in ast.walk(p.slice) or drawn & data_in(p.slice))
        for p in picks
    )  # fmt: skip
    above = module.parents.get(call)
    picked = picked or (isinstance(above, ast.For) and of_rows)  # `for i in choice(len(clients), 50):`
    return picked and (of_rows or _are_all(scope, upto))


def _are_all(scope: ast.AST, numbers: list[ast.expr]) -> bool:
    """Whether a number is that of all rows, by its name or by what it is given."""
    for number in numbers:
        text = ast.unparse(number).lower()
        words = data_in(number) | {"len"} if "len(" in text or "size(" in text else data_in(number)
        if any(map(_ALL.search, words)):
            return True
        if any("len(" in ast.unparse(made.value) for word in words for made in given_to(scope, word)):
            return True
    return False


def _is_of_a_batch(scope: ast.AST, size: ast.expr, drawn_of: list[ast.expr]) -> bool:
    """Whether a size is that of a batch that is there: `x.shape[0]`, or a name for it; a share of all rows is not."""
    words = ast.unparse(size).lower()
    for whole in drawn_of:
        words = words.replace(f"len({ast.unparse(whole).lower()})", "")
    given = [ast.unparse(made.value) for word in data_in(size) for made in given_to(scope, word)]
    return any(re.search(r"shape|size\(|\blen\(", text) for text in [words, *given])
