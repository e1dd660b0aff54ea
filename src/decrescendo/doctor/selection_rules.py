"""Rules of the source about choices by scores of private rows: of a model, a setting, or the end."""

import ast
import re
from collections.abc import Iterator
from typing import TypeGuard

from decrescendo.doctor.flows import PUBLIC, SCORE, comes_from, makes
from decrescendo.doctor.source import Hit, Module, Sources, name_of, names_in, targets_of

_OF_TESTS = re.compile(r"test|val|eval")
# What a comparison must name to be a choice by a score.
_CHOSEN_BY = re.compile(r"(^|_)(auc|auroc|acc|accuracy|f1|loss|score|metric|mcc|ppl|perplexity|rmse|mae|bleu)(_|\d|$)")


def _ends_by_size(node: ast.AST) -> TypeGuard[ast.If]:
    """Whether a loop ends here because something is larger or smaller than something else."""
    if not isinstance(node, ast.If):
        return False
    orders = ast.Lt, ast.Gt, ast.LtE, ast.GtE
    test = [part for part in ast.walk(node.test) if isinstance(part, ast.Compare)]
    inside = [part for inner in node.body for part in ast.walk(inner)]
    return any(isinstance(part, ast.Break) for part in inside) and any(isinstance(t.ops[0], orders) for t in test)


def selections(sources: Sources) -> Iterator[Hit]:
    """The best of several, by a score on rows that are private."""
    for module in sources.modules:
        for node in ast.walk(module.tree):
            if _chooses(node) and _matters(sources, module, node) and not _of_public_rows(sources, module, node):
                yield (module, node, "selection", "the best model is chosen by its score",
                       "free only if the score is of public rows: else each look costs, and the "
                       "choice tells of them")  # fmt: skip
                return
            words = names_in(node.test) if _ends_by_size(node) else set[str]()
            if any(SCORE.search(word) or "running" in word for word in words) and not any(map(_OF_TESTS.search, words)):
                yield (module, node, "selection", "the training ends by a score of the training rows",
                       "when it ended tells of them: end it by a released number, or after fixed steps")  # fmt: skip
                return
    for module, call in sources.calls(
        "EarlyStopping", "optimize", "GridSearchCV", "create_study", "ReduceLROnPlateau", "ModelCheckpoint"
    ):
        moved = name_of(call.func) == "ReduceLROnPlateau"
        if _asked_of_public_rows(sources, module, call):
            continue
        yield (module, call, "selection", "the learning rate follows a score" if moved else
               "a model or a setting is chosen by scores",
               "free only if it is of public rows, or was released with noise" if moved else
               "free only if they are of public rows: else every trial counts")  # fmt: skip
        return


def _chooses(node: ast.AST) -> TypeGuard[ast.Compare | ast.If]:
    """Whether something is compared with the best, or a score with the last one that was kept."""
    if isinstance(node, ast.Compare) and _by_order(node):
        return any("best" in name for name in names_in(node))
    if not isinstance(node, ast.If):
        return False
    for test in (part for part in ast.walk(node.test) if isinstance(part, ast.Compare) and _by_order(part)):
        sides = {ast.unparse(side) for side in (test.left, *test.comparators)}
        if not any(map(_CHOSEN_BY.search, names_in(test))) or len(sides) != 2:
            continue
        inside = [part for inner in node.body for part in ast.walk(inner)]
        if any(isinstance(part, ast.Assign) and {ast.unparse(part.value), *map(ast.unparse, part.targets)} == sides
               for part in inside):  # fmt: skip
            return True
    return False


def _matters(sources: Sources, module: Module, node: ast.Compare | ast.If) -> bool:
    """Whether a choice is between models: where a loop trains, or where weights are kept, and not of a threshold."""
    loops, statement = module.loops(node), module.statement(node)
    named = [name for target in targets_of(statement or node) for name in names_in(target)]
    if named and not any(re.search("best|better|improv", name) for name in named):
        return False  # a mask, say
    trained = {
        function.name for held, call in sources.calls("backward", "step", "make_private", "fit")
        if (function := held.function(call)) is not None
    } | {"backward", "step", "make_private", "fit"}  # fmt: skip
    kept = [part for part in ast.walk(statement or node) if isinstance(part, ast.Call)]
    keeps = any(re.search("save|state_dict|copy|clone|dump|keep", name_of(call.func)) for call in kept)
    return not loops or keeps or makes(loops[-1], (), trained)


def _asked_of_public_rows(sources: Sources, module: Module, made: ast.Call) -> bool:
    """Whether all that an object is told is a score of public rows: `scheduler.step(public_loss)`."""
    statement = module.statement(made)
    name = name_of(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    told = [
        (held, call.args[0]) for held in sources.modules for call in held.calls
        if call.args and name and name in (name_of(call.func), name_of(getattr(call.func, "value", call.func)))
    ]  # fmt: skip
    return bool(told) and all(
        any(PUBLIC.search(word) or comes_from(sources, held, given, word, PUBLIC) for word in names_in(given))
        for held, given in told
    )


def _by_order(test: ast.Compare) -> bool:
    return any(isinstance(order, ast.Lt | ast.Gt | ast.LtE | ast.GtE) for order in test.ops)


def _of_public_rows(sources: Sources, module: Module, node: ast.Compare | ast.If) -> bool:
    """Whether a score that is compared is one of public rows."""
    names = names_in(node.test if isinstance(node, ast.If) else node)
    return any(PUBLIC.search(name) or comes_from(sources, module, node, name, PUBLIC) for name in names)
