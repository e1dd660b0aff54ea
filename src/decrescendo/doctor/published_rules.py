"""Rules of the source about accountants that forget, and statistics of private rows."""

import ast
import re
from collections.abc import Iterator

from decrescendo.doctor.source import Hit, Module, Sources, name_of


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
