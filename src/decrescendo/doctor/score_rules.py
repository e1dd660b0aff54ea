"""Rules of the source about losses and scores of private rows: logged, saved, or chosen by."""

import ast
import re
from collections.abc import Iterator
from typing import TypeGuard

from decrescendo.doctor.flows import PUBLIC, SCORE, TESTS, comes_from, given_to, scope_of, within
from decrescendo.doctor.source import TRAINERS, Hit, Module, Sources, keyword, name_of, names_in, targets_of

_LOGS = (
    "print", "info", "debug", "log", "add_scalar", "add_scalars", "set_postfix", "set_description", "log_metric",
    "write",
)  # fmt: skip
_SAVES = (
    "save",
    "savez",
    "savez_compressed",
    "dump",
    "dumps",
    "to_csv",
    "to_json",
    "to_pickle",
    "save_file",
    "savetxt",
)
_OF_TESTS = re.compile(r"test|val|eval")
# What a comparison must name to be a choice by a score.
_CHOSEN_BY = re.compile(r"(^|_)(auc|auroc|acc|accuracy|f1|loss|score|metric|mcc|ppl|perplexity|rmse|mae|bleu)(_|\d|$)")


def logs(sources: Sources) -> Iterator[Hit]:
    """Losses and scores on private rows that are printed, logged or sent."""
    for module in sources.modules:
        for call in module.calls:
            if name_of(call.func) not in _LOGS:
                continue
            function = module.function(call)
            if function is not None and PUBLIC.search(function.name):
                continue
            given = [*call.args, *(k.value for k in call.keywords)]
            names = {word for argument in given for word in _words(sources, module, argument)}
            names = names.union(*(names_in(value) for value in _built(module, call, names)))
            summed = [
                value for name, value in _summed(module, call, names)
                if not _OF_TESTS.search(name) and not comes_from(sources, module, call, name, TESTS)
            ]  # fmt: skip
            if not summed and not _trains_around(sources, module, call):
                continue
            names = names.union(*map(names_in, summed))
            scores = {name for name in names if SCORE.search(name) and not _OF_TESTS.search(name)}
            scores = {name for name in scores if not comes_from(sources, module, call, name, TESTS)}
            if not summed and not _trains_here(module, call):  # what a function that trains returned, by such a name
                scores = {name for name in scores if name.startswith("tr")}
            scores = {name for name in scores if not _is_accountant(module, call, name)}
            if scores:
                yield (module, call, "beside", "losses or scores on the training rows are printed or "
                                               "logged, without noise",
                       "they are no part of epsilon: keep them where the data are, or leave them out")  # fmt: skip
                return


def _is_accountant(module: Module, call: ast.Call, name: str) -> bool:
    """Whether a name that looks like an accuracy's, `acc`, is that of an accountant."""
    made = [one for scope in (scope_of(module, call), module.tree) for one in given_to(scope, name)]
    return any("ccountant" in ast.unparse(one.value) for one in made)


def gradient_logs(sources: Sources) -> Iterator[Hit]:
    """Gradients of single records, or their norms, that are printed, logged or sent."""
    for module, call in sources.calls(*_LOGS, "emit", "log_dict", "record"):
        given = [*call.args, *(k.value for k in call.keywords)]
        names = {name for argument in given for name in _read(argument)}
        made = [one.value for name in names for one in given_to(scope_of(module, call), name)]
        if any(map(_has_numbers_of_gradients, [*given, *made])):
            yield (module, call, "beside", "norms of the records' gradients are printed or logged, without noise",
                   "they are no part of epsilon: keep them where the data are, or leave them out")  # fmt: skip
            return


def _read(node: ast.AST) -> set[str]:
    """Names in an expression, but for those of which only a length or a shape is read."""
    if (isinstance(node, ast.Call) and name_of(node.func) == "len") or (
        isinstance(node, ast.Attribute) and node.attr in ("shape", "dtype", "device")
    ):
        return set()
    return ({name_of(node).lower()} - {""}).union(*map(_read, ast.iter_child_nodes(node)))


def _has_numbers_of_gradients(node: ast.expr) -> bool:
    """Whether an expression has norms or entries of records' gradients, not their shapes alone."""
    shapes = re.search(
        r"\.(shape|size\(|numel\(|dtype|device|dim\()|\blen\(|\bhasattr\(|is (not )?None", ast.unparse(node)
    )
    return "grad_sample" in names_in(node) and shapes is None


def _words(sources: Sources, module: Module, node: ast.AST) -> set[str]:
    """Names in an expression, but for what is taken out of the scores of a test: `metrics["loss"]`."""
    if isinstance(node, ast.Subscript | ast.Attribute):
        root: ast.expr = node
        while isinstance(root, ast.Subscript | ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and comes_from(sources, module, root, root.id.lower(), TESTS):
            return set()
    inner = [_words(sources, module, part) for part in ast.iter_child_nodes(node)]
    return ({name_of(node).lower()} - {""}).union(*inner)


def trainer_logs(sources: Sources) -> Iterator[Hit]:
    """Trainers of Hugging Face's kind write the loss of the training rows into their logs and checkpoints."""
    if not any(sources.calls(*TRAINERS)):
        return
    for module, call in sources.calls("TrainingArguments"):
        given = keyword(call, "logging_strategy")
        text = "" if given is None else ast.unparse(given).lower()
        if given is None or (isinstance(given, ast.Constant) and text != "'no'"):
            yield (module, call, "beside", "the trainer writes loss and gradient norm of the training rows into its "
                                           "log and its checkpoints, without noise",
                   "they are no part of epsilon: logging_strategy='no', or keep them where the data are")  # fmt: skip
            return


def _built(module: Module, call: ast.Call, names: set[str]) -> Iterator[ast.expr]:
    """What was put, in the same function, into names that are printed."""
    scope = module.function(call) or module.tree
    for node in ast.walk(scope):
        if not isinstance(node, ast.Assign | ast.AugAssign) or name_of(targets_of(node)[0]).lower() not in names:
            continue
        if any(isinstance(part, ast.JoinedStr) for part in ast.walk(node.value)):
            yield node.value


def _summed(module: Module, call: ast.Call, names: set[str]) -> Iterator[tuple[str, ast.expr]]:
    """What was added up, in the same function, in names that are printed: `total += loss.item()`."""
    for node in within(scope_of(module, call)):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            name = name_of(node.target).lower()
            if name in names and any(_trains_in(loop) for loop in module.loops(node)[:1]):
                yield name, node.value


def _trains_around(sources: Sources, module: Module, call: ast.Call) -> bool:
    """Whether a backward pass is in the function or loop of a call, or in a function that is called there."""
    if _trains_here(module, call):
        return True
    called = {name_of(node.func) for node in _calls_around(module, call)}
    trained = {
        other.name
        for held in sources.modules
        for other in map(held.function, (c for c in held.calls if name_of(c.func) == "backward"))
        if other is not None
    }
    return bool(called & trained)


def _trains_here(module: Module, call: ast.Call) -> bool:
    return any(map(_is_backward, _calls_around(module, call)))


def _trains_in(loop: ast.AST) -> bool:
    return any(isinstance(node, ast.Call) and _is_backward(node) for node in ast.walk(loop))


def _is_backward(call: ast.Call) -> bool:
    # Some engines take the losses in their optimiser's step.
    name = name_of(call.func)
    return name in ("backward", "manual_backward") or (name == "step" and keyword(call, "loss") is not None)


def _calls_around(module: Module, call: ast.Call) -> list[ast.Call]:
    """The calls in the function, or else in the outermost loop, that a call is in."""
    scope, loops = module.function(call), module.loops(call)
    inside: ast.AST | None = scope if scope is not None else loops[-1] if loops else None
    return [node for node in ast.walk(inside) if isinstance(node, ast.Call)] if inside is not None else []


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
            if _chooses(node) and not _of_public_rows(sources, module, node):
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


def _by_order(test: ast.Compare) -> bool:
    return any(isinstance(order, ast.Lt | ast.Gt | ast.LtE | ast.GtE) for order in test.ops)


def _of_public_rows(sources: Sources, module: Module, node: ast.Compare | ast.If) -> bool:
    """Whether a score that is compared is one of public rows."""
    names = names_in(node.test if isinstance(node, ast.If) else node)
    return any(PUBLIC.search(name) or comes_from(sources, module, node, name, PUBLIC) for name in names)


def saved_scores(sources: Sources) -> Iterator[Hit]:
    """Losses and scores of private rows that are collected, and saved."""
    for module, save in sources.calls(*_SAVES):
        parts = [*save.args, *(k.value for k in save.keywords)]
        parts += [save.func.value] if isinstance(save.func, ast.Attribute) else []
        saved = {name for part in parts for name in names_in(part)}
        scope = scope_of(module, save)
        for call in module.calls:
            if scope_of(module, call) is not scope or name_of(call.func) != "append" or not call.args:
                continue
            kept = _root(call.func)
            if kept not in saved or not _trains_around(sources, module, call):
                continue
            scores = {name for name in names_in(call.args[0]) if SCORE.search(name) and not _OF_TESTS.search(name)}
            scores = {name for name in scores if not comes_from(sources, module, call, name, TESTS)}
            if scores and not _OF_TESTS.search(kept):
                yield (module, save, "beside", "losses or scores on the training rows are collected, and saved "
                                               "without noise",
                       "they are no part of epsilon: keep them where the data are, or leave them out")  # fmt: skip
                return


def _root(node: ast.expr) -> str:
    """The first name of `a[..].b`, in lower case; of `self.a`, the second."""
    names: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
        node = node.value
    names.append(name_of(node))
    return (names[-2] if names[-1] == "self" and len(names) > 2 else names[-1]).lower()
