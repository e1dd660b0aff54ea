"""Rules of the source about what is used longer than it should be: batches that were drawn, parts of a batch after its
epoch was left, noise for a clip norm."""

import ast
import re
from collections.abc import Iterator

from decrescendo.doctor.flows import engines, given_to, noises, scope_of
from decrescendo.doctor.source import MAKERS, Hit, Module, Sources, keyword, name_of, names_in, targets_of

_CLIP = re.compile(r"clip|bound|max_norm|sensitivity|^c$")


def kept_batches(sources: Sources) -> Iterator[Hit]:
    """A private loader's batches in a list, which each epoch goes through again."""
    for module in sources.modules if engines(sources) else ():
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                continue
            if not _is_all_of_a_loader(node.value, _private_loaders(module)):
                continue
            again = [
                loop for loop in ast.walk(module.function(node) or module.tree)
                if isinstance(loop, ast.For) and node.targets[0].id in names_in_case(loop.iter)
                and any(node not in ast.walk(outer) for outer in module.loops(loop))
            ]  # fmt: skip
            if again:
                yield (module, again[0], "history", "batches are drawn once, and each epoch takes the same ones again",
                       "accountants count each step's batch as drawn anew: go through the loader itself")  # fmt: skip
                return


def _private_loaders(module: Module) -> set[str]:
    """The names of what `make_private` returns last."""
    made = [node for node in ast.walk(module.tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    found = [node.targets[0] for node in made if name_of(node.value.func) in MAKERS]  # type: ignore[attr-defined]
    return {name_of(target.elts[-1]) for target in found if isinstance(target, ast.Tuple)}


def _is_all_of_a_loader(value: ast.expr, loaders: set[str]) -> bool:
    """`list(loader)`, or `[.. for .. in loader]`, of one of these."""
    if isinstance(value, ast.ListComp):
        over: ast.expr = value.generators[0].iter
    elif isinstance(value, ast.Call) and name_of(value.func) in ("list", "tuple") and len(value.args) == 1:
        over = value.args[0]
    else:
        return False
    return isinstance(over, ast.Name | ast.Attribute) and name_of(over) in loaders


def names_in_case(node: ast.AST) -> set[str]:
    """All names and attributes in an expression, as they are written."""
    return {name_of(part) for part in ast.walk(node)} - {""}


def fitted_without_noise(sources: Sources) -> Iterator[Hit]:
    """A tensor beside the model that an optimiser of its own fits, after the private one was made: a temperature."""
    makers = list(sources.calls(*MAKERS))
    for module, call in sources.calls("LBFGS", "SGD", "Adam", "AdamW"):
        given = call.args[0] if call.args else keyword(call, "params")
        if not isinstance(given, ast.List) or not given.elts:
            continue
        scope = scope_of(module, call)
        later = any(
            held is module and scope_of(held, one) is scope and one.lineno < call.lineno for held, one in makers
        )
        made = [[one.value for one in given_to(scope, name_of(leaf).lower())] for leaf in given.elts]
        tensors = all(any(re.search("requires_grad=True|Parameter\\(", ast.unparse(v)) for v in each) for each in made)
        if later and tensors:
            yield (module, call, "beside", f"{ast.unparse(given)} is fitted by an optimiser without noise, after the "
                   "private training", "what it learns of private rows is released as it is: fit it to public rows, or "
                   "make it a part of the private model")  # fmt: skip
            return


def stale_noise(sources: Sources) -> Iterator[Hit]:
    """A standard deviation that was computed once, of a clip norm that moves later."""
    for module, call in noises(sources):
        statement = module.statement(call)
        for word in sorted(names_in(statement)) if statement is not None else ():
            made = _assignments(module, word)
            if len(made) != 1 or not isinstance(made[0], ast.Assign):
                continue
            for clip in sorted(filter(_CLIP.search, names_in(made[0].value))):
                moved = [one for one in _assignments(module, clip) if _moves(module, one, clip, made[0])]
                if moved:
                    yield (module, call, "schedule", "the noise was computed once, for a clip norm that moves later",
                           f"as the clip norm ({clip}) grows the noise multiplier in force falls: compute the noise "
                           "where it is drawn")  # fmt: skip
                    return


def _assignments(module: Module, word: str) -> list[ast.Assign | ast.AugAssign]:
    return [
        node for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign | ast.AugAssign) and any(name_of(t).lower() == word for t in targets_of(node))
    ]  # fmt: skip


def _moves(module: Module, node: ast.Assign | ast.AugAssign, clip: str, made: ast.Assign) -> bool:
    """Whether a clip norm is made of itself there, in no loop in which the noise is computed again."""
    if not isinstance(node, ast.AugAssign) and clip not in names_in(node.value):
        return False
    if isinstance(node, ast.Assign) and name_of(node.value).lower() == clip:
        return False  # `self.clip = clip`
    step = module.function(made)
    if step is not None and step.name != "__init__" and step is not module.function(node):
        return False  # computed again in each call
    return not any(made in ast.walk(loop) for loop in module.loops(node))


def left_midway(sources: Sources) -> Iterator[Hit]:
    """An epoch under Opacus' memory manager that is left early, or looked into."""
    for module, call in sources.calls("BatchMemoryManager"):
        items = [item for above in module.around(call) if isinstance(above, ast.With) for item in above.items]
        name = next((name_of(i.optional_vars) for i in items if i.context_expr is call and i.optional_vars), "")
        if not name:
            continue
        loops = [node for node in ast.walk(module.tree) if isinstance(node, ast.For) and name in names_in(node.iter)]
        loops = loops if _goes_on(sources, module, call) else []
        left = (
            node for loop in loops for node in ast.walk(loop)
            if (isinstance(node, ast.Break) and module.loops(node)[:1] == [loop])
        )  # fmt: skip
        looked = (
            one for one in module.calls if name_of(one.func) == "next" and one.args and name in names_in(one.args[0])
        )
        for node in (*left, *looked):
            yield (module, node, "budget", "an epoch under BatchMemoryManager is left, or looked into, before its end: "
                   "in what is trained afterwards, Opacus adds parts of several batches up before it adds noise",
                   "a record may be in a sum two or three times, each with its clip norm: end on whole epochs, or take "
                   "batches that need no parts")  # fmt: skip


def _goes_on(sources: Sources, module: Module, made: ast.Call) -> bool:
    """Whether anything is trained after an epoch: in a loop around it or around its function, or by another one."""
    function = module.function(made)
    calls = list(sources.calls(function.name)) if function is not None else []
    around = [*module.loops(made), *(loop for held, call in calls for loop in held.loops(call))]
    ended = [node for loop in around for node in loop.body if isinstance(node, ast.If) and
             any(isinstance(part, ast.Break) for part in node.body)]  # fmt: skip
    others = [
        call for held, call in sources.calls("BatchMemoryManager") if held is module and call.lineno > made.lineno
    ]
    return (bool(around) and not ended) or len(calls) > 1 or bool(others)
