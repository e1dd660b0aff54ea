"""Rules of the source about what is published beside the weights, chosen by scores, or lost from a history."""

import ast
import re
from collections.abc import Iterator
from typing import TypeGuard

from decrescendo.doctor.source import TRAINERS, Hit, Module, Sources, keyword, name_of, names_in, targets_of

_SENT = (
    "get_parameters", "get_weights", "send", "save_pretrained", "push_to_hub", "save_model", "save_checkpoint",
)  # fmt: skip
_LOGS = (
    "print", "info", "debug", "log", "add_scalar", "add_scalars", "set_postfix", "set_description", "log_metric",
    "write",
)  # fmt: skip
_SCORE, _OF_TESTS = re.compile(r"loss|^err[dg]|^acc|_acc|top1|correct"), re.compile(r"test|val|eval")
_NORMAL = ("normal", "normal_", "randn", "randn_like")
_PERSONS = re.compile(
    r"^(user|patient|subject|speaker|author|person|customer|client|member|account|participant|writer)_?ids?$",
    re.IGNORECASE,
)


def histories(sources: Sources) -> Iterator[Hit]:
    """Accountants that begin anew."""
    federated = sources.mentions(
        "flwr", "nvflare", "federated", "num_rounds", "n_rounds", "global_round", "fedavg"
    )
    loaded = [
        ast.unparse(c.func).lower().removesuffix(".load_state_dict")
        for _, c in sources.calls("load_state_dict")
    ]
    restores = any(re.search("engine|accountant|privacy", name) for name in loaded) or sources.mentions(
        "accountant.history ="
    )
    if restores or sources.mentions("load_checkpoint", "accountant_state", "privacy_accountant"):
        return
    for module, call in sources.calls("PrivacyEngine"):
        function = module.function(call)
        turning = [loop for loop in module.loops(call) if not _guarded(module, call, loop)]
        trains = function is not None and re.search(r"fit|train|update|round|local", function.name.lower())
        # A client that is made anew for each round, by client_fn.
        made = function is not None and function.name == "__init__" and sources.mentions("def client_fn")
        repeated = function is not None and _called_in_a_loop(sources, function.name)
        if turning or (((federated and trains) or made or repeated) and not _guarded(module, call, function)):
            yield (module, call, "history", "a PrivacyEngine, with an empty history, is made anew each time",
                   "epsilon of all adds up on the same data; each accountant knows its own steps")  # fmt: skip
            return
    engines = any(sources.calls("PrivacyEngine"))
    for module, call in sources.calls("load") if engines else ():
        asked = [
            ast.unparse(above.test).lower() for above in module.around(call) if isinstance(above, ast.If)
        ]
        if ast.unparse(call.func) == "torch.load" and any("resum" in test for test in asked):
            yield (module, call, "history", "an earlier training goes on, and its accountant's history is not loaded",
                   "what was spent before is not in the epsilon that is printed")  # fmt: skip
            return
    for module, call in sources.calls("load_state_dict"):
        if "optim" in ast.unparse(call.func).lower():
            yield (module, call, "history", "an earlier training goes on, and its accountant's history is not loaded",
                   "what was spent before is not in the epsilon that is printed")  # fmt: skip
            return


def _called_in_a_loop(sources: Sources, name: str) -> bool:
    return any(module.loops(call) for module, call in sources.calls(name))


def _guarded(module: Module, call: ast.Call, loop: ast.AST | None) -> bool:
    """Whether a call is made only while there is none yet: `if engine is None`."""
    for above in module.around(call):
        if above is loop:
            return False
        if isinstance(above, ast.If) and re.search(
            r"is None|not .*(engine|init|attached|private)|hasattr|round.* == [01]\b", ast.unparse(above.test)
        ):
            return True
    return False


def seeds(sources: Sources) -> Iterator[Hit]:
    """Noise that whoever knows the seed can draw again."""
    secure = sources.mentions("secure_mode=true", "secure_rng=true")
    published = sources.mentions(*(f"{name}(" for name in _SENT), "torch.save(", "flwr", "nvflare")
    keyed = any(sources.calls("gaussian_noise")) and sources.mentions(
        "opake"
    )  # opake's noise has keys of its own
    if secure or keyed or not published:
        return
    for module, call in sources.calls("manual_seed", "seed_everything", "set_seed", "manual_seed_all"):
        drawn_anew = any(
            ast.unparse(other.func) == "torch.seed" and other.lineno > call.lineno for other in module.calls
        )
        if drawn_anew or not _draws_noise(module, call):
            continue
        yield (module, call, "seed", "the noise comes from a generator that was seeded here, and the "
                                     "weights are saved or sent",
               "who knows or guesses the seed draws the same noise, and takes it off")  # fmt: skip
        return


def fixed_keys(sources: Sources) -> Iterator[Hit]:
    """Noise of opake whose key stands in the script."""
    for module, call in sources.calls("gaussian_noise"):
        made = keyword(call, "key")
        if not (isinstance(made, ast.Call) and name_of(made.func) == "key" and made.args):
            continue
        if isinstance(made.args[0], ast.Constant) and sources.mentions(
            "torch.save(", "save_pretrained(", "push_to_hub"
        ):
            yield (module, call, "seed", "the key of the noise is a number in the script, and the weights are saved",
                   "who knows or guesses the number draws the same noise, and takes it off")  # fmt: skip
            return


def _draws_noise(module: Module, seeding: ast.Call) -> bool:
    """Whether what is seeded may draw the noise: torch's own generator, or one that is given to such a call."""
    held = ast.unparse(seeding.func.value).lower() if isinstance(seeding.func, ast.Attribute) else ""
    if "generator" not in held:
        return "rng" not in held
    names = {ast.unparse(target) for target in targets_of(module.statement(seeding) or seeding)} | {held}
    for call in module.calls:
        repeated = name_of(call.func) in _NORMAL and bool(module.loops(call))
        for key in ("noise_generator", *(("generator",) if repeated else ())):
            given = keyword(call, key)
            if given is not None and ast.unparse(given) in names:
                return True
    return False


def logs(sources: Sources) -> Iterator[Hit]:
    """Losses and scores on private rows that are printed, logged or sent."""
    for module in sources.modules:
        for call in module.calls:
            if name_of(call.func) not in _LOGS or not _trains_around(sources, module, call):
                continue
            given = [*call.args, *(k.value for k in call.keywords)]
            names = {word for argument in given for word in names_in(argument)}
            names = names.union(*(names_in(value) for value in _built(module, call, names)))
            scores = {name for name in names if _SCORE.search(name) and not _OF_TESTS.search(name)}
            if not _trains_here(module, call):  # what a function that trains returned, by such a name
                scores = {name for name in scores if name.startswith("tr")}
            if scores:
                yield (module, call, "beside", "losses or scores on the training rows are printed or "
                                               "logged, without noise",
                       "they are no part of epsilon: keep them where the data are, or leave them out")  # fmt: skip
                return


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
        if (
            not isinstance(node, ast.Assign | ast.AugAssign)
            or name_of(targets_of(node)[0]).lower() not in names
        ):
            continue
        if any(isinstance(part, ast.JoinedStr) for part in ast.walk(node.value)):
            yield node.value


def _trains_around(sources: Sources, module: Module, call: ast.Call) -> bool:
    """Whether a backward pass is in the function or loop of a call, or in a function that is called there."""
    if _trains_here(module, call):
        return True
    scope, loops = module.function(call), module.loops(call)
    inside: ast.AST | None = scope if scope is not None else loops[-1] if loops else None
    called = (
        {name_of(node.func) for node in ast.walk(inside) if isinstance(node, ast.Call)}
        if inside is not None
        else set[str]()
    )
    trained = {
        other.name
        for held in sources.modules
        for other in map(held.function, (c for c in held.calls if name_of(c.func) == "backward"))
        if other is not None
    }
    return bool(called & trained)


def _trains_here(module: Module, call: ast.Call) -> bool:
    scope, loops = module.function(call), module.loops(call)
    inside: ast.AST | None = scope if scope is not None else loops[-1] if loops else None
    calls = [node for node in ast.walk(inside) if isinstance(node, ast.Call)] if inside is not None else []
    # Some engines take the losses in their optimiser's step.
    return any(
        name_of(node.func) in ("backward", "manual_backward")
        or (name_of(node.func) == "step" and keyword(node, "loss"))
        for node in calls
    )


def statistics(sources: Sources) -> Iterator[Hit]:
    """Means, ranges and vocabularies of private rows."""
    for module, call in sources.calls(
        "fit_transform", "fit", "build_vocab", "build_vocab_from_iterator", "get_dummies"
    ):
        name, held = name_of(call.func), ast.unparse(call.func).lower()
        if name in ("fit", "fit_transform") and not re.search(
            r"scal|encod|normaliz|vectoriz|pca|imput|tfidf|ct\b|preproc", held
        ):
            continue
        yield (module, call, "beside", "means, ranges or a vocabulary are computed from the private rows, "
                                       "without noise",
               "they go into every row, and often into what is published: take public ones")  # fmt: skip
        return


def _ends_by_size(node: ast.AST) -> TypeGuard[ast.If]:
    """Whether a loop ends here because something is larger or smaller than something else."""
    if not isinstance(node, ast.If):
        return False
    orders = ast.Lt, ast.Gt, ast.LtE, ast.GtE
    test = [part for part in ast.walk(node.test) if isinstance(part, ast.Compare)]
    inside = [part for inner in node.body for part in ast.walk(inner)]
    return any(isinstance(part, ast.Break) for part in inside) and any(
        isinstance(t.ops[0], orders) for t in test
    )


def selections(sources: Sources) -> Iterator[Hit]:
    """The best of several, by a score on rows that are private."""
    for module in sources.modules:
        for node in ast.walk(module.tree):
            if (
                isinstance(node, ast.Compare)
                and any(isinstance(o, ast.Lt | ast.Gt | ast.LtE | ast.GtE) for o in node.ops)
                and any("best" in name for name in names_in(node))
            ):
                yield (module, node, "selection", "the best model is chosen by its score",
                       "free only if the score is of public rows: else each look costs, and the "
                       "choice tells of them")  # fmt: skip
                return
            words = names_in(node.test) if _ends_by_size(node) else set[str]()
            if any(_SCORE.search(word) or "running" in word for word in words) and not any(
                map(_OF_TESTS.search, words)
            ):
                yield (module, node, "selection", "the training ends by a score of the training rows",
                       "when it ended tells of them: end it by a released number, or after fixed steps")  # fmt: skip
                return
    for module, call in sources.calls(
        "EarlyStopping", "optimize", "GridSearchCV", "create_study", "ReduceLROnPlateau", "ModelCheckpoint"
    ):
        yield (module, call, "selection", "a model or a setting is chosen by scores",
               "free only if they are of public rows: else every trial counts")  # fmt: skip
        return


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


def units(sources: Sources) -> Iterator[Hit]:
    """Columns that say whose a row is; windows that overlap."""
    for module in sources.modules:
        for node in ast.walk(module.tree):
            if _is_window(module, node):
                yield (module, node, "unit", "rows are windows that overlap: each value is in many rows",
                       "epsilon is of one window; of a value in k windows it grows about k times: cut windows that do "
                       "not overlap")  # fmt: skip
                return
            key = node.value if isinstance(node, ast.Constant) else None
            compared = isinstance(module.parents.get(node), ast.Compare)
            if isinstance(key, str) and _PERSONS.match(key) and not compared:
                statement = module.statement(node)
                if isinstance(statement, ast.Expr) and "argument" in ast.unparse(statement):
                    continue
                yield (module, node, "unit", f"rows have a column {key!r}: one person may have many rows",
                       "epsilon is of one row; of a person with k rows it grows about k times: sample and "
                       "clip by person")  # fmt: skip
                return
