"""Rules of the source about losses and scores of private rows that are logged, saved or sent."""

import ast
import functools
import re
from collections.abc import Iterator

from decrescendo.doctor.flows import PUBLIC, SCORE, given_to, scope_of
from decrescendo.doctor.score_flows import ScoreFlows
from decrescendo.doctor.source import TRAINERS, Hit, Sources, keyword, name_of, names_in

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
_KEEP = "they are no part of epsilon: keep them where the data are, or leave them out"
_SAVED = "beside", "losses or scores on the training rows, or a choice by them, are saved, without noise", _KEEP
_LOGGED = "beside", "losses or scores on the training rows are printed or logged, without noise", _KEEP


def logs(sources: Sources) -> Iterator[Hit]:
    """Losses and scores on private rows that are printed, logged or sent."""
    flows = ScoreFlows(sources)
    for module in sources.modules:
        for call in module.calls:
            if name_of(call.func) not in _LOGS:
                continue
            function = module.function(call)
            if function is not None and PUBLIC.search(function.name):
                continue
            given = [*call.args, *(k.value for k in call.keywords)]
            if any(flows.has(module, argument) for argument in given):
                yield module, call, *_LOGGED


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


@functools.lru_cache(maxsize=4096)
def _has_numbers_of_gradients(node: ast.expr) -> bool:
    """Whether an expression has norms or entries of records' gradients, not their shapes alone."""
    shapes = re.search(
        r"\.(shape|size\(|numel\(|dtype|device|dim\()|\blen\(|\bhasattr\(|is (not )?None", ast.unparse(node)
    )
    return "grad_sample" in names_in(node) and shapes is None


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


def saved_scores(sources: Sources) -> Iterator[Hit]:
    """Losses and scores of private rows that are saved."""
    flows = ScoreFlows(sources)
    for module, save in sources.calls(*_SAVES):
        parts = [*save.args, *(k.value for k in save.keywords)]
        parts += [save.func.value] if isinstance(save.func, ast.Attribute) else []
        if any(flows.has(module, part) for part in parts):
            yield module, save, *_SAVED
            return
