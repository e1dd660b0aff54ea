"""What the source of a training makes one suspect: a rule a fault, each with the line that it is about.

Longer than most files: a catalogue of rules, each a few lines that stand alone.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from decrescendo.doctor.finding import Certainty, Finding
from decrescendo.doctor.source import Module, Sources, keyword, name_of, names_in, read

# A module, the node, the check, what is wrong, what it costs.
Hit = tuple[Module, ast.AST, str, str, str]

MAKERS = ("make_private", "make_private_with_epsilon")
_DRAWS = (
    "normal",
    "randn",
    "randn_like",
    "normal_",
    "laplace",
    "standard_normal",
    "Normal",
    "Laplace",
    "sample",
)
_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clamp", "clip", "clamp_", "clip_")
# `len(x) == 0`, `x.shape[0] < 2`, `x.numel() == 0` and the like.
_SIZE = r"(len\([\w.\[\]]+\)|shape\[0\]|size\(0\)|numel\(\)|nelement\(\))"
_EMPTY = re.compile(rf"{_SIZE} (==|<=) 0|{_SIZE} < [12]\b|^not len\(")
_PER_EXAMPLE = (
    "vmap", "grad_sample", "per_sample", "per_example", "microbatch", "backpack", "persample", "sample_grad", "jacrev",
)  # fmt: skip
_SENT = (
    "get_parameters",
    "get_weights",
    "send",
    "save_pretrained",
    "push_to_hub",
    "save_model",
    "save_checkpoint",
)
_LOGS = (
    "print",
    "info",
    "debug",
    "log",
    "add_scalar",
    "add_scalars",
    "set_postfix",
    "set_description",
    "log_metric",
    "write",
)
_SCORE, _OF_TESTS = re.compile(r"loss|^err[dg]|^acc|_acc|top1|correct"), re.compile(r"test|val|eval")
_PERSONS = re.compile(
    r"^(user|patient|subject|speaker|author|person|customer|client|member|account|participant|writer)_?ids?$",
    re.IGNORECASE,
)


def read_source(script: Path) -> tuple[list[Finding], list[str]]:
    """What is suspected of a script, and a word if nothing in it is private.

    Raises:
        FileRefused: the script is no Python.
    """
    sources = read(script)
    if not is_private(sources):
        return [], [
            "privacy: nothing in the source clips gradients and adds noise, or calls a library that does"
        ]
    findings = []
    for rule in RULES:
        for module, node, check, says, costs in rule(sources):
            line = getattr(node, "lineno", 0)
            findings.append(Finding(check, Certainty.SUSPECTED, says, costs, module.file, line))
    return findings, []


def _engines(sources: Sources) -> bool:
    """Whether Opacus, 1.0 or later, makes the loader: then batches are Poisson batches."""
    return any(True for _ in sources.calls(*MAKERS))


def _noises(sources: Sources) -> list[tuple[Module, ast.Call]]:
    """Noise that is drawn for a gradient or for weights, by hand."""
    found = []
    for module, call in sources.calls(*_DRAWS):
        statement = module.statement(call)
        if name_of(call.func) == "sample" and "normal" not in ast.unparse(call).lower():
            continue
        function = module.function(call)
        words = names_in(statement) if statement is not None else set()
        words |= {function.name.lower()} if function is not None else set()
        if (
            any(re.search(r"grad|noise|dp_|_dp|privat|sigma|perturb", word) for word in words)
            and "forward" not in words
        ):
            found.append((module, call))
    return found


def is_private(sources: Sources) -> bool:
    """Whether a training claims to be private."""
    attached = any("privacy" in ast.unparse(call.func).lower() for _, call in sources.calls("attach"))
    made = any(
        True
        for _ in sources.calls("PrivacyEngine", "DPSGD", "DPAdam", "DPOptimizer", "OpacusDPTrainer", *MAKERS)
    )
    clipped = sources.mentions("clip", "max_norm", "sensitivity", "epsilon", "noise_multiplier")
    return attached or made or (bool(_noises(sources)) and clipped)


def _by_hand(sources: Sources) -> bool:
    return not _engines(sources)


def poisson_off(sources: Sources) -> Iterator[Hit]:
    """Opacus told to leave the loader as it is."""
    for module, call in ((m, c) for m in sources.modules for c in m.calls):
        given = keyword(call, "poisson_sampling")
        if isinstance(given, ast.Constant) and given.value is False:
            yield (module, call, "sampling",
                   "poisson_sampling=False: batches are shuffled, the accountant counts them as Poisson batches",
                   "amplification by sampling is not proven for such batches")  # fmt: skip


def shuffled(sources: Sources) -> Iterator[Hit]:
    """Accountants of DP-SGD beside loaders that cut a list into batches."""
    if _engines(sources) or sources.mentions("poisson", "uniformwithreplacement", "bernoulli", "iidbatch"):
        return
    for module, call in sources.calls("DataLoader"):
        shuffle, text = keyword(call, "shuffle"), ast.unparse(module.statement(call) or call).lower()
        trains = isinstance(shuffle, ast.Constant) and shuffle.value is True
        if trains or ("train" in text and keyword(call, "batch_sampler") is None):
            yield (module, call, "sampling",
                   "batches are cut from a list: accountants of DP-SGD assume that each record is drawn "
                   "by itself (Poisson)",
                   "amplification by sampling is not proven for such batches")  # fmt: skip
            return


def unused_loader(sources: Sources) -> Iterator[Hit]:
    """What make_private returned, and the loop does not use."""
    for module, call in sources.calls(*MAKERS):
        statement = module.statement(call)
        if isinstance(statement, ast.Expr):
            yield (module, call, "bypass", "what make_private returns is thrown away: the loop has the "
                                           "old optimiser and loader",
                   "gradients are neither clipped nor noised: no privacy")  # fmt: skip
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Tuple):
            continue
        last, poisson = statement.targets[0].elts[-1], keyword(call, "poisson_sampling")
        if poisson is not None and not (isinstance(poisson, ast.Constant) and poisson.value):
            continue  # the old loader, by arrangement
        if isinstance(last, ast.Name) and not _read_later(module, statement, last.id):
            yield (module, call, "sampling", "the loader that make_private returns is not used: batches "
                                             "come from the old one",
                   "batches are not drawn as the accountant counts them")  # fmt: skip


def _read_later(module: Module, statement: ast.stmt, name: str) -> bool:
    if name.startswith("_"):
        return False
    scope = module.function(statement) or module.tree
    reads = [
        n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
    ]
    loops = module.loops(statement)
    begins = loops[-1].lineno if loops else statement.end_lineno or 0
    inside = {id(n) for n in ast.walk(statement)}
    named_outside = any(isinstance(n, ast.Global | ast.Nonlocal) and name in n.names for n in ast.walk(scope))
    return named_outside or any(n.lineno >= begins and id(n) not in inside for n in reads)


def weighted(sources: Sources) -> Iterator[Hit]:
    """Weights that a sampler has, and no accountant knows."""
    for module, call in sources.calls("WeightedRandomSampler"):
        yield (module, call, "sampling", "records are drawn with weights, accountants count one rate for all",
               "make_private replaces the sampler by a uniform one; without it, the heaviest record's "
               "rate is in force")  # fmt: skip
        return


def schedule(sources: Sources) -> Iterator[Hit]:
    """Noise that moves after it was calibrated."""
    if not any(True for _ in sources.calls("make_private_with_epsilon", "get_noise_multiplier")):
        return
    for module, call in sources.calls("ExponentialNoise", "StepNoise", "LambdaNoise"):
        yield (
            module,
            call,
            "schedule",
            "a scheduler moves the noise after it was calibrated as a constant",
            "more is spent than was asked for",
        )
    for module in sources.modules:
        for node in ast.walk(module.tree):
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AugAssign)
                else []
            )
            for target in targets:
                held = isinstance(target, ast.Attribute) and target.attr == "noise_multiplier"
                if held and "optim" in ast.unparse(target).lower():
                    yield (
                        module,
                        node,
                        "schedule",
                        "the noise multiplier is set after it was calibrated",
                        "more may be spent than was asked for",
                    )


def rows_together(sources: Sources) -> Iterator[Hit]:
    """Layers, losses and collate functions that look at several rows."""
    if _by_hand(sources) and not sources.mentions("groupnorm", "validator"):
        for module, call in sources.calls("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"):
            yield (module, call, "rows", "BatchNorm normalises each row by the others, and keeps "
                                         "statistics without noise",
                   "clipping does not bound what one record moves")  # fmt: skip
            break
    for module, call in sources.calls("pad_sequence", "tokenizer", "pad"):
        function = module.function(call)
        padding = keyword(call, "padding")
        longest = isinstance(padding, ast.Constant) and padding.value in (True, "longest")
        collates = function is not None and "collate" in function.name.lower()
        if (name_of(call.func) == "pad_sequence" and collates) or (longest and collates):
            yield (module, call, "rows", "rows are padded to the longest of their batch, so that each "
                                         "row's length depends on the others",
                   "where padding enters a loss or a recurrent layer, one record moves the gradients of "
                   "others")  # fmt: skip
    for module in sources.modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and re.search(
                r"ntxent|infonce|supcon|contrastive|nt_xent|info_nce", name_of(node.func).lower()
            ):
                yield (
                    module,
                    node,
                    "rows",
                    "a contrastive loss compares the rows of a batch",
                    "clipping does not bound what one record moves",
                )
                return


def clip_of_batches(sources: Sources) -> Iterator[Hit]:
    """A clip of the batch's gradient where each example's should be clipped; tensors clipped one by one."""
    noises = _noises(sources)
    if _engines(sources) or not noises or sources.mentions(*_PER_EXAMPLE):
        return
    clips = [(m, c) for m, c in sources.calls(*_CLIPS)
             if "grad" in ast.unparse(m.statement(c) or c).lower()]  # fmt: skip
    if not clips:
        module, call = noises[0]
        if not sources.mentions("clip", "norm(", "max_norm", "grad_norm", "sensitivity"):
            yield (
                module,
                call,
                "sensitivity",
                "noise is added to what is clipped nowhere",
                "no noise is large enough for an unbounded sum",
            )
        return
    for module, call in clips:
        loops = [loop for loop in module.loops(call) if isinstance(loop, ast.For)]
        if loops and re.search(
            r"sample|example|microbatch|range\((len|batch|.*size|.*shape)|zip\(",
            ast.unparse(loops[0].iter).lower(),
        ):
            return
        if any(re.search(r"sample|example|micro", ast.unparse(loop.iter).lower()) for loop in loops[1:]):
            return
    module, call = clips[0]
    yield (module, call, "sensitivity", "the gradient of a whole batch is clipped, not each example's",
           "one record moves the clipped sum by up to 2 C, whatever the size of the batch: divided noise "
           "is too small for it")  # fmt: skip


def denominators(sources: Sources) -> Iterator[Hit]:
    """Gradients divided by the number of rows that happened to be drawn."""
    if _engines(sources):
        return
    for module in sources.modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                left, right = node.left, node.right
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
                left, right = node.target, node.value
            else:
                continue
            if "grad" not in ast.unparse(left).lower():
                continue
            if re.fullmatch(
                r"(len\(\w*(batch|x|data|input|target|label|y|image)\w*\)|\w+\.(size\(0\)|shape\[0\]))",
                ast.unparse(right),
            ):
                yield (module, node, "denominator", "the sum is divided by the number of rows that were drawn",
                       "that number is private under Poisson batches: divide by the expected one")  # fmt: skip
                return


def empty_batches(sources: Sources) -> Iterator[Hit]:
    """Batches that are skipped because nobody is in them."""
    for module in sources.modules:
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.If) or not any(isinstance(part, ast.Continue) for part in node.body):
                continue
            test = ast.unparse(node.test)
            if _EMPTY.search(test):
                yield (module, node, "empty batch", "an empty batch is skipped: no noise is added, and no "
                                                    "step is counted",
                       "whether anybody was drawn can be seen: an empty batch is a step of noise alone")  # fmt: skip
                return


def histories(sources: Sources) -> Iterator[Hit]:
    """Accountants that begin anew."""
    federated = sources.mentions(
        "flwr", "nvflare", "federated", "num_rounds", "n_rounds", "global_round", "fedavg"
    )
    restores = sources.mentions("load_checkpoint", "accountant_state", "privacy_accountant") or any(
        re.search(
            "engine|accountant|privacy", ast.unparse(call.func).lower().removesuffix(".load_state_dict")
        )
        for _, call in sources.calls("load_state_dict")
    )
    if restores:
        return
    for module, call in sources.calls("PrivacyEngine"):
        function = module.function(call)
        turning = [loop for loop in module.loops(call) if not _guarded(module, call, loop)]
        rounds = (
            federated
            and function is not None
            and re.search(r"fit|train|update|round|local", function.name.lower())
        )
        # A client that is made anew for each round, by client_fn.
        made = function is not None and function.name == "__init__" and sources.mentions("def client_fn")
        repeated = function is not None and _called_in_a_loop(sources, function.name)
        if turning or ((rounds or made or repeated) and not _guarded(module, call, function)):
            yield (module, call, "history", "a PrivacyEngine, with an empty history, is made anew each time",
                   "epsilon of all adds up on the same data; each accountant knows its own steps")  # fmt: skip
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
    if secure or not published:
        return
    for module, call in sources.calls("manual_seed", "seed_everything", "set_seed", "manual_seed_all"):
        if isinstance(call.func, ast.Attribute) and "rng" in ast.unparse(call.func.value).lower():
            continue
        yield (module, call, "seed", "the noise comes from a generator that was seeded here, and the "
                                     "weights are saved or sent",
               "who knows or guesses the seed draws the same noise, and takes it off")  # fmt: skip
        return


def logs(sources: Sources) -> Iterator[Hit]:
    """Losses and scores on private rows that are printed, logged or sent."""
    for module in sources.modules:
        for call in module.calls:
            if name_of(call.func) not in _LOGS or not _trains_around(module, call):
                continue
            given = [*call.args, *(k.value for k in call.keywords)]
            names = {word for argument in given for word in names_in(argument)}
            names = names.union(*(names_in(value) for value in _built(module, call, names)))
            if any(_SCORE.search(name) and not _OF_TESTS.search(name) for name in names):
                yield (module, call, "beside", "losses or scores on the training rows are printed or "
                                               "logged, without noise",
                       "they are no part of epsilon: keep them where the data are, or leave them out")  # fmt: skip
                return


def _built(module: Module, call: ast.Call, names: set[str]) -> Iterator[ast.expr]:
    """What was put, in the same function, into names that are printed."""
    scope = module.function(call) or module.tree
    for node in ast.walk(scope):
        target = (
            node.targets[0]
            if isinstance(node, ast.Assign)
            else node.target
            if isinstance(node, ast.AugAssign)
            else None
        )
        if (
            target is not None
            and name_of(target).lower() in names
            and isinstance(node, ast.Assign | ast.AugAssign)
        ):
            if any(isinstance(part, ast.JoinedStr) for part in ast.walk(node.value)):
                yield node.value


def _trains_around(module: Module, call: ast.Call) -> bool:
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


def selections(sources: Sources) -> Iterator[Hit]:
    """The best of several, by a score on rows that are private."""
    for module in sources.modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Compare) and any(
                isinstance(o, ast.Lt | ast.Gt | ast.LtE | ast.GtE) for o in node.ops
            ):
                if any("best" in name for name in names_in(node)):
                    yield (module, node, "selection", "the best model is chosen by its score",
                           "free only if the score is of public rows: else each look costs, and the "
                           "choice tells of them")  # fmt: skip
                    return
    for module, call in sources.calls(
        "EarlyStopping", "optimize", "GridSearchCV", "create_study", "ReduceLROnPlateau", "ModelCheckpoint"
    ):
        yield (module, call, "selection", "a model or a setting is chosen by scores",
               "free only if they are of public rows: else every trial counts")  # fmt: skip
        return


def units(sources: Sources) -> Iterator[Hit]:
    """Columns that say whose a row is."""
    for module in sources.modules:
        for node in ast.walk(module.tree):
            key = node.value if isinstance(node, ast.Constant) else None
            if (
                isinstance(key, str)
                and _PERSONS.match(key)
                and not isinstance(module.parents.get(node), ast.Compare)
            ):
                if isinstance(module.statement(node), ast.Expr) and "argument" in ast.unparse(
                    module.statement(node) or node
                ):
                    continue
                yield (module, node, "unit", f"rows have a column {key!r}: one person may have many rows",
                       "epsilon is of one row; of a person with k rows it grows about k times: sample and "
                       "clip by person")  # fmt: skip
                return


def small_noise(sources: Sources) -> Iterator[Hit]:
    """Budgets and noise, written as constants, that promise nothing."""
    seen = False
    for module, call in sources.calls(*MAKERS, "PrivacyEngine"):
        noise, epsilon = (
            sources.number(keyword(call, "noise_multiplier")),
            sources.number(keyword(call, "target_epsilon")),
        )
        if noise == 0 and name_of(call.func) != "make_private_with_epsilon":
            yield module, call, "noise", "the noise multiplier is 0", "no privacy: epsilon is infinite"
        if epsilon is not None and epsilon > 20:
            yield (
                module,
                call,
                "noise",
                f"the target is epsilon {epsilon:g}",
                "such a guarantee bounds nothing that an attacker would want to know",
            )
        delta = keyword(call, "target_delta")
        expression = ast.unparse(delta) if delta is not None else ""
        if isinstance(delta, ast.Name):
            expression = next((ast.unparse(n.value) for n in ast.walk(module.tree) if isinstance(n, ast.Assign)
                               and name_of(n.targets[0]) == delta.id), "")  # fmt: skip
        if not seen and re.fullmatch(r"1(\.0)? / len\(.*\)", expression):
            seen = True
            yield (
                module,
                call,
                "delta",
                "delta is 1/n",
                "publishing one record in n in the clear would be within it: take much less",
            )
    for module, call in sources.calls("PrivacyEngine"):
        given = keyword(call, "accountant")
        if isinstance(given, ast.Constant) and given.value == "gdp":
            yield (
                module,
                call,
                "budget",
                "the accountant is a central limit theorem (gdp), an estimate",
                "the true epsilon may be larger",
            )


RULES = (
    poisson_off, shuffled, unused_loader, weighted, schedule, rows_together, clip_of_batches, denominators,
    empty_batches, histories, seeds, logs, statistics, selections, units, small_noise,
)  # fmt: skip
