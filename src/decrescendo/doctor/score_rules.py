"""Rules of the source about losses and scores of private rows: logged, saved, or chosen by."""

import ast
import re
from collections.abc import Iterator

from decrescendo.doctor.flows import (
    PUBLIC,
    SCORE,
    TESTS,
    comes_from,
    given_to,
    is_over_tensors,
    noises,
    scope_of,
    within,
)
from decrescendo.doctor.source import TRAINERS, Hit, Module, Sources, keyword, name_of, names_in, targets_of

_LOGS = (
    "print", "info", "debug", "log", "add_scalar", "add_scalars", "set_postfix", "set_description", "log_metric",
    "write", "writerow", "writerows",
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
_OF_TRAINING = re.compile(r"^tr(ain(ing)?)?_(metrics?|stats|results?)$")
_OF_TESTS = re.compile(r"test|val|eval")


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
            trained = _differentiated(module, call)
            scores = {name for name in names if _is_score(name, trained) and not _OF_TESTS.search(name)}
            scores = {name for name in scores if not comes_from(sources, module, call, name, TESTS)}
            if (
                not summed and not _trains_here(module, call) and not _steps_around(sources, module, call)
            ):  # what a function that trains returned, by such a name
                scores = {name for name in scores if name.startswith("tr")}
            scores = {name for name in scores if not _is_accountant(module, call, name) and "nois" not in name}
            if scores:
                yield (module, call, "beside", "losses or scores on the training rows are printed or "
                                               "logged, without noise",
                       "they are no part of epsilon: keep them where the data are, or leave them out")  # fmt: skip


def _is_score(name: str, trained: set[str]) -> bool:
    return bool(SCORE.search(name) or _OF_TRAINING.search(name)) or name in trained


def client_scores(sources: Sources) -> Iterator[Hit]:
    """Scores of a client's own rows, which it sends to the server: Flower's `evaluate`."""
    for module in sources.modules:
        for kind in (node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)):
            if not any(name_of(base) in ("NumPyClient", "Client") for base in kind.bases):
                continue
            for method in kind.body:
                sent = [node for node in ast.walk(method) if isinstance(node, ast.Return) and node.value is not None]
                scores = any(SCORE.search(name) for node in sent for name in names_in(node))
                if getattr(method, "name", "") == "evaluate" and scores:
                    yield (module, sent[-1], "beside", "a client sends the loss or accuracy of its own rows to the "
                           "server, without noise", "each number tells of the client's rows, and is no part of "
                           "epsilon: evaluate at the server, on public rows")  # fmt: skip
                    return


def _differentiated(module: Module, call: ast.Call) -> set[str]:
    """Names whose backward pass is called near a call: `l.mean().backward()`, in lower case."""
    found = set[str]()
    for one in _calls_around(module, call):
        root: ast.expr = one.func
        while name_of(one.func) == "backward" and not one.args and isinstance(root, ast.Attribute):
            root = root.value
            while isinstance(root, ast.Call) and isinstance(root.func, ast.Attribute) and not root.args:
                root = root.func.value
        if isinstance(root, ast.Name) and root is not one.func:
            found.add(root.id.lower())
    return found


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
    """Names in an expression, but for what is taken out of the scores of a test, `metrics["loss"]`, or computed of its
    rows: `accuracy(model, test_loader)`."""
    if isinstance(node, ast.Call) and any(TESTS.search(name) for given in node.args for name in names_in(given)):
        return set()
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
    backward = [(held, one) for held in sources.modules for one in held.calls if name_of(one.func) == "backward"]
    made = [held.function(one) for held, one in [*backward, *noises(sources)]]
    trained = {other.name for other in made if other is not None}
    return bool(called & trained)


def _steps_around(sources: Sources, module: Module, call: ast.Call) -> bool:
    """Whether the innermost loop around a call calls a function that makes one step: one with noise, and no loop over
    batches of its own."""
    names = {
        made.name for held, drawn in noises(sources)
        if (made := held.function(drawn)) is not None and all(map(is_over_tensors, held.loops(drawn)))
    }  # fmt: skip
    inside = [node for loop in module.loops(call)[:1] for node in ast.walk(loop) if isinstance(node, ast.Call)]
    return any(name_of(node.func) in names for node in inside)


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
