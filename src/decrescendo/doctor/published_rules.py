"""Rules of the source about accountants that forget, and what is computed of the private rows: statistics,
vocabularies, counts and means of labels."""

import ast
import re
from collections.abc import Iterator

from decrescendo.doctor.flows import PUBLIC, TESTS, comes_from, data_in, given_to, scope_of
from decrescendo.doctor.source import MAKERS, Hit, Module, Sources, assigned, keyword, name_of, names_in, targets_of

_COUNTED = re.compile(r"bincount\(|counter\(|value_counts\(|compute_class_weight\(|return_counts|class_counts|"
                      r"\b(y|labels?|targets?)\w*( == \w+\)?|\))?\.(float\(\)\.)?(sum|mean)\(")  # fmt: skip
# What is fitted to rows, by the name of a variable or of a class.
_FITTED = re.compile(r"scal|encod|normaliz|vectoriz|pca|imput|tfidf|ct\b|preproc")
_FITTED_CLASSES = re.compile(
    r"(Scaler|Vectorizer|Imputer|Normalizer|Binarizer|Discretizer|(Quantile|Power|Column)Transformer|PCA|SVD|(Label|OneHot|Ordinal|Target)Encoder)$"
)
_PRIVATE_FILE = re.compile(r"(^|[^a-z])(dp|private|eps\d*|epsilon\d*)([^a-z]|$)")
_LOSSES = (
    "CrossEntropyLoss", "NLLLoss", "BCELoss", "BCEWithLogitsLoss", "cross_entropy", "nll_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)  # fmt: skip


def histories(sources: Sources) -> Iterator[Hit]:
    """Accountants that begin anew."""
    federated = sources.mentions("flwr", "nvflare", "federated", "num_rounds", "n_rounds", "global_round", "fedavg")
    loaded = [ast.unparse(c.func).lower().removesuffix(".load_state_dict") for _, c in sources.calls("load_state_dict")]
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
    yield from _side_by_side(sources)
    engines = any(sources.calls("PrivacyEngine"))
    for module, call in sources.calls("load") if engines else ():
        asked = [ast.unparse(above.test).lower() for above in module.around(call) if isinstance(above, ast.If)]
        if ast.unparse(call.func) == "torch.load" and any("resum" in test for test in asked):
            yield (module, call, "history", "an earlier training goes on, and its accountant's history is not loaded",
                   "what was spent before is not in the epsilon that is printed")  # fmt: skip
            return
    yield from _private_weights(sources)
    for module, call in sources.calls("load_state_dict"):
        if "optim" in ast.unparse(call.func).lower():
            yield (module, call, "history", "an earlier training goes on, and its accountant's history is not loaded",
                   "what was spent before is not in the epsilon that is printed")  # fmt: skip
            return


def _private_weights(sources: Sources) -> Iterator[Hit]:
    """Weights that a private training begins with, of a file that names privacy, or that the same script writes."""
    written = {ast.unparse(a) for _, c in sources.calls("save") for a in c.args[1:2]}
    for module, load in sources.calls("load"):
        path = next((ast.unparse(a) for a in load.args), "")
        later = any(held is module and call.lineno > load.lineno and scope_of(held, call) is scope_of(module, load)
                    for held, call in sources.calls(*MAKERS))  # fmt: skip
        into = [above for above in module.around(load) if name_of(getattr(above, "func", above)) == "load_state_dict"]
        of_run = re.search(r"init|start|public|pretrain|base", path.lower())
        if later and into and not of_run and (path in written or _PRIVATE_FILE.search(path.lower())):
            yield (module, load, "history", f"the training begins with the weights in {path}, of an earlier private "
                   "training, and its accountant's history is not loaded",
                   "on the same data the epsilons of the two add up, and what is printed is the second's")  # fmt: skip
            return


def _side_by_side(sources: Sources) -> Iterator[Hit]:
    """Two engines for one loader, or for two of one data set."""
    known: dict[tuple[ast.AST, str], str] = {}
    shared = sources.mentions(".accountant =")
    for module, call in sources.calls(*MAKERS):
        given, engine = keyword(call, "data_loader"), getattr(call.func, "value", None)
        chosen = any(isinstance(above, ast.If) for above in module.around(call))
        if given is None or engine is None or chosen or shared:
            continue
        made = given_to(scope_of(module, call), ast.unparse(given).lower())
        loader = made[0].value if len(made) == 1 else given
        rows = ast.unparse(loader.args[0] if isinstance(loader, ast.Call) and loader.args else given)
        if known.setdefault((scope_of(module, call), rows), ast.unparse(engine)) != ast.unparse(engine):
            yield (module, call, "history", f"a second PrivacyEngine trains on {rows!r}",
                   "epsilon of the two adds up; each accountant knows its own steps")  # fmt: skip
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


def statistics(sources: Sources) -> Iterator[Hit]:
    """Means, ranges and vocabularies of private rows."""
    for module, call in sources.calls(
        "fit_transform", "fit", "build_vocab", "build_vocab_from_iterator", "get_dummies", "fillna"
    ):
        fits = name_of(call.func) in ("fit", "fit_transform")
        if fits and not (_FITTED.search(ast.unparse(call.func).lower()) or _is_made_to_fit(module, call.func)):
            continue
        if name_of(call.func) == "fillna" and not _fills_by_others(module, call):
            continue
        if any(PUBLIC.search(word) or TESTS.search(word) for given in call.args for word in names_in(given)):
            continue
        yield (module, call, "beside", "means, ranges or a vocabulary are computed from the private rows, "
                                       "without noise",
               "they go into every row, and often into what is published: take public ones")  # fmt: skip


def _is_made_to_fit(module: Module, method: ast.expr) -> bool:
    """Whether what a method belongs to was made, anywhere in the file, by a class that is fitted to rows."""
    held = ast.unparse(method.value) if isinstance(method, ast.Attribute) else ""
    made = [
        value for node in ast.walk(module.tree) for target, value in assigned(node) if ast.unparse(target) == held
    ]  # fmt: skip
    called = [name_of(part.func) for value in made for part in ast.walk(value) if isinstance(part, ast.Call)]
    return any(map(_FITTED_CLASSES.search, called))


def _fills_by_others(module: Module, call: ast.Call) -> bool:
    """Whether gaps are filled by a statistic of all rows, by itself or by its name."""
    filled = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "value")]
    made = [one.value for value in filled for one in given_to(scope_of(module, call), name_of(value).lower())]
    return any(re.search(r"\.(mean|median|mode|max|min)\(\)", ast.unparse(value)) for value in [*filled, *made])


def target_encodings(sources: Sources) -> Iterator[Hit]:
    """Means of the private labels by group, put into the rows."""
    for module, call in sources.calls("mean", "transform", "agg"):
        text = ast.unparse(call).lower()
        if (
            "groupby(" in text
            and re.search(r"label|target(?!_(eps|delta|acc|noise))|\['y'\]|\boutcome", text)
            and not re.search(r"result|score|metric|\bruns\b", text)
            and not PUBLIC.search(text)
        ):
            yield (module, call, "beside", "means of the private labels by group become numbers of the rows",
                   "each is released without noise, and a group of one row tells its label: take public ones, or add "
                   "noise and account for it")  # fmt: skip
            return


def label_counts(sources: Sources) -> Iterator[Hit]:
    """Weights of classes, or a bias to begin with, that are counted on the private labels."""
    for module in sources.modules:
        for node in ast.walk(module.tree):
            value: ast.expr | None = None
            if isinstance(node, ast.Call) and name_of(node.func) in _LOSSES:
                # As a first argument for a module, after outputs and targets for a function.
                place = 0 if name_of(node.func)[0].isupper() else 2
                value = (keyword(node, "weight") or keyword(node, "pos_weight")
                         or next(iter(node.args[place : place + 1]), None))  # fmt: skip
            elif isinstance(node, ast.Call) and name_of(node.func) in ("constant_", "copy_", "fill_"):
                value = node.args[-1] if node.args and "bias" in ast.unparse(node).lower() else None
            elif any(isinstance(t, ast.Attribute) and "bias" in ast.unparse(t).lower() for t in targets_of(node)):
                value = node.value if isinstance(node, ast.Assign) else None
            if value is not None and _is_counted(sources, module, node, value):
                what = "weights of classes are" if isinstance(node, ast.Call) and name_of(node.func) in _LOSSES else (
                    "a bias to begin with is")  # fmt: skip
                yield (module, node, "beside", f"{what} counted on the private labels, without noise",
                       "each step goes by these numbers, and so do the weights: take public ones, or add noise to the "
                       "counts and account for it")  # fmt: skip
                return


def _is_counted(sources: Sources, module: Module, node: ast.AST, value: ast.expr, deep: int = 4) -> bool:
    """Whether a value, or what its names are given, counts labels."""
    text = ast.unparse(value).lower()
    if _COUNTED.search(text):
        public = any(comes_from(sources, module, node, name, PUBLIC) for name in data_in(value))
        return not (
            public or re.search(r"noise|laplace|normal|public|\blen\((collections\.)?counter", text)
        ) and not any(map(TESTS.search, names_in(value)))
    for name in data_in(value) if deep else ():
        for scope in {scope_of(module, node), module.tree}:
            if any(made.value is not value and _is_counted(sources, module, made, made.value, deep - 1)
                   for made in given_to(scope, name)):  # fmt: skip
                return True
    return False
