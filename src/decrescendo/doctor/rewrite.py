"""`rewrite`: a training with Opacus, over `decrescendo.integrations.opacus`: imports and calls changed, faults with one
right repair repaired, the rest said in comments."""

import ast
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from decrescendo.doctor.batch_rules import empty_batches, unused_loader, weighted
from decrescendo.doctor.source import MAKERS, Module, Sources, keyword, name_of, read, script_of
from decrescendo.errors import InvalidValue

BRIDGE = "decrescendo.integrations.opacus"
_NAMES = {
    "PrivacyEngine": BRIDGE, "BatchMemoryManager": BRIDGE, "ExponentialNoise": f"{BRIDGE}.schedulers",
    "StepNoise": f"{BRIDGE}.schedulers", "LambdaNoise": f"{BRIDGE}.schedulers",
    "ExponentialGradClip": f"{BRIDGE}.schedulers", "StepGradClip": f"{BRIDGE}.schedulers",
    "LambdaGradClip": f"{BRIDGE}.schedulers",
}  # fmt: skip
# Layers that Opacus had to write again: torch's own are clipped here.
_LAYERS = {"DPLSTM": "LSTM", "DPGRU": "GRU", "DPRNN": "RNN", "DPMultiheadAttention": "MultiheadAttention"}
# Arguments with one value here, and what becomes of another one.
_DROPPED = {
    "poisson_sampling": "batches are Poisson batches, as the accountant counts them",
    "clipping": "each example is clipped by the norm of all its gradients together",
    "noise_generator": "noise has a stream of its own: take PrivacyEngine(secure_mode=True) for weights "
    "that are published",
    "wrap_model": "the loop calls the model that is returned",
    "rand_on_empty": "a batch of no rows is a step of noise alone",
    "batch_first": "dimension 0 of every tensor counts the examples",
    "loss_reduction": "the noisy sum is divided by the expected batch size: change the learning rate if it was 'sum'",
}
# Attributes of Opacus' tensors that a loop may read.
_ATTRIBUTES = {
    "grad_sample": "has no counterpart: gradients of examples are not kept. A clip norm that follows them is a "
    "ClipController's, by released numbers (docs: Telemetry)",
    "summed_grad": "has no counterpart: the sum before the noise is not kept",
}
_SCHEDULERS = ("ExponentialNoise", "StepNoise", "LambdaNoise")
_MODES = ("hooks", "ghost")


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A training for this library.

    Args:
        text: its source.
        left: what could not be carried over, a sentence each; the same stand in it as comments.
    """

    text: str
    left: tuple[str, ...]


def rewrite(path: str | os.PathLike[str]) -> Rewritten:
    """Rewrite a training script, or the code cells of a notebook, from Opacus for this library, with the same schedule.

    Raises:
        InvalidValue: no script with Opacus' `make_private`; a loop with clipping of its own is no change of names.
        FileRefused: no Python.
    """
    path = Path(path)
    if path.suffix not in (".py", ".ipynb"):
        raise InvalidValue(f"a training can be rewritten from a script or a notebook, got {path}. Give one")
    with tempfile.TemporaryDirectory() as folder:
        sources = read(script_of(path, Path(folder)))
    module = sources.modules[0]
    alone = Sources([module])
    if not any(alone.calls(*MAKERS)):
        raise InvalidValue(
            f"{path} must call PrivacyEngine.make_private to be rewritten, got no such call in it. If another file "
            "makes it, rewrite that one; a loop with clipping and noise of its own is replaced as a whole, by "
            "decrescendo.train (docs: Move from Opacus)"
        )
    return _Writer(alone, module).written()


class _Writer:
    """Collects changes of one file, then makes them from the end to the beginning."""

    def __init__(self, sources: Sources, module: Module) -> None:
        self._sources, self._module = sources, module
        self._changes: list[tuple[int, int, str]] = []
        self._notes: dict[int, list[str]] = {}
        self._takes_loader = False
        self._starts = [0]
        for line in module.text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line.encode()))

    def written(self) -> Rewritten:
        """The text, and the notes."""
        for node in ast.walk(self._module.tree):
            if isinstance(node, ast.ImportFrom | ast.Import):
                self._import(node)
        scheduled = self._schedulers()
        for call in self._module.calls:
            self._call(call, scheduled)
        for node in ast.walk(self._module.tree):
            if isinstance(node, ast.Attribute) and node.attr in _ATTRIBUTES:
                self._note(node, f".{node.attr} {_ATTRIBUTES[node.attr]}")
        for rule in (weighted, empty_batches, unused_loader):
            for _, node, check, says, costs in rule(self._sources):
                repaired = check == "bypass" or (rule is unused_loader and self._takes_loader)  # by `_maker`
                if not repaired:
                    self._note(node, f"{says}: {costs}")
        return self._applied()

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _replace(self, node: ast.stmt | ast.expr, text: str) -> None:
        end = self._offset(node.end_lineno or node.lineno, node.end_col_offset or 0)
        self._changes.append((self._offset(node.lineno, node.col_offset), end, text))

    def _note(self, node: ast.AST, reason: str) -> None:
        statement = self._module.statement(node)
        self._notes.setdefault(getattr(statement, "lineno", 1), []).append(reason)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            if any(alias.name.split(".")[0] == "opacus" for alias in node.names):
                self._replace(node, "; ".join(self._plain(alias) for alias in node.names))
            return
        if node.level or (node.module or "").split(".")[0] != "opacus":
            return
        lines = []
        for alias in node.names:
            known = alias.asname or alias.name
            if alias.name in _NAMES:
                lines.append(f"from {_NAMES[alias.name]} import {ast.unparse(alias)}")
            elif alias.name in _LAYERS:
                lines.append(f"from torch.nn import {_LAYERS[alias.name]} as {known}")
            elif alias.name == "schedulers":
                lines.append(f"from {BRIDGE} import {ast.unparse(alias)}")
            elif alias.name == "ModuleValidator":
                lines.append("from decrescendo.training import without_batch_norm")
            else:
                self._note(node, f"{alias.name} of {node.module} has no counterpart")
        self._replace(node, "; ".join(lines) or "pass")

    def _plain(self, alias: ast.alias) -> str:
        if alias.name == "opacus":
            return f"import {BRIDGE} as {alias.asname or 'opacus'}"
        return f"import {ast.unparse(alias)}"

    def _schedulers(self) -> str | None:
        """The schedule of a noise that was calibrated as a constant, as `privacy=`; its scheduler is taken out."""
        makes = next((c for _, c in self._sources.calls("make_private_with_epsilon")), None)
        made = next((c for _, c in self._sources.calls(*_SCHEDULERS)), None)
        statement = self._module.statement(made) if made is not None else None
        if makes is None or made is None or not isinstance(statement, ast.Assign):
            return None
        name = name_of(statement.targets[0])
        steps = [c for c in self._module.calls if name_of(c.func) == "step" and isinstance(c.func, ast.Attribute)]
        own = [c for c in steps if isinstance(c.func, ast.Attribute) and name_of(c.func.value) == name]
        trains = max((len(self._module.loops(c)) for c in steps if c not in own), default=0)
        loader, epochs = keyword(makes, "data_loader"), keyword(makes, "epochs")
        if loader is None or epochs is None or not own:
            return None
        batches = f"len({ast.unparse(loader)})"
        turn = "t" if len(self._module.loops(own[0])) >= trains else f"(t // {batches})"
        factor = self._factor(made, turn)
        if factor is None:
            return None
        self._replace(statement, "pass  # the schedule is calibrated: see privacy=")
        for call in own:
            self._replace(call, "None")
        return f"[1 / ({factor}) for t in range({ast.unparse(epochs)} * {batches})]"

    def _factor(self, made: ast.Call, turn: str) -> str | None:
        gamma, size, function = (keyword(made, name) for name in ("gamma", "step_size", "noise_lambda"))
        name = name_of(made.func)
        if name == "ExponentialNoise" and gamma is not None:
            return f"({ast.unparse(gamma)}) ** {turn}"
        if name == "StepNoise" and gamma is not None and size is not None:
            return f"({ast.unparse(gamma)}) ** ({turn} // ({ast.unparse(size)}))"
        return f"({ast.unparse(function)})({turn})" if function is not None else None

    def _call(self, call: ast.Call, scheduled: str | None) -> None:
        name = name_of(call.func)
        if name in MAKERS:
            self._maker(call, scheduled if name == "make_private_with_epsilon" else None)
        elif name in ("save_checkpoint", "load_checkpoint"):
            self._checkpoint(call, scheduled)
        elif name == "signal_skip_step":
            self._note(call, "signal_skip_step has no counterpart: take BatchMemoryManager, or the whole batch")
        elif name == "PrivacyEngine":
            given = keyword(call, "accountant")
            if isinstance(given, ast.Constant) and given.value not in ("prv", "rdp"):
                self._replace(given, "'prv'")
                self._note(call, f"accountant={given.value!r} is an estimate: 'prv' is a certified upper bound here")
        elif isinstance(call.func, ast.Attribute) and name_of(call.func.value) == "ModuleValidator":
            if name in ("fix", "fix_and_validate"):
                self._replace(call, f"without_batch_norm({ast.unparse(call.args[0])})")
            else:  # a model is checked at every pass
                self._replace(call, "True" if name == "is_valid" else "[]")

    def _checkpoint(self, call: ast.Call, scheduled: str | None) -> None:
        """The scheduler that was taken out is in no checkpoint; what is loaded must come before the training."""
        if scheduled is not None and keyword(call, "noise_scheduler") is not None:
            kept = [given for given in call.keywords if given.arg != "noise_scheduler"]
            self._replace(call, ast.unparse(ast.Call(call.func, call.args, kept)))
        steps = [one.lineno for _, one in self._sources.calls("step")]
        if name_of(call.func) == "load_checkpoint" and any(line < call.lineno for line in steps):
            self._note(call, "load_checkpoint comes before the first batch; to go back to weights of this training, "
                             "take model.load_state_dict(torch.load(path)['module_state_dict'])")  # fmt: skip

    def _maker(self, call: ast.Call, scheduled: str | None) -> None:
        mode = keyword(call, "grad_sample_mode")
        if mode is not None and not (isinstance(mode, ast.Constant) and mode.value in _MODES):
            self._note(
                call,
                f"grad_sample_mode={ast.unparse(mode)}: the engine chooses the method for each operation",
            )
        kept = []
        for given in call.keywords:
            plain = isinstance(given.value, ast.Constant)
            if given.arg in _DROPPED:
                same = plain and given.value.value in (True, "flat", "mean")  # type: ignore[attr-defined]
                if not same and not (given.arg == "rand_on_empty" and plain):
                    self._note(call, f"{given.arg}={ast.unparse(given.value)}: {_DROPPED[given.arg]}")
            elif given.arg == "max_grad_norm" and any(isinstance(part, ast.List) for part in ast.walk(given.value)):
                joint = f"sum(c ** 2 for c in {ast.unparse(given.value)}) ** 0.5"  # of the layers' clip norms
                kept.append(ast.keyword(given.arg, ast.parse(joint, mode="eval").body))
            elif given.arg != "grad_sample_mode" or (plain and given.value.value in _MODES):  # type: ignore[attr-defined]
                kept.append(given)
        if scheduled is not None:
            kept.append(ast.keyword("privacy", ast.parse(scheduled, mode="eval").body))
        inside = ", ".join(ast.unparse(given) for given in kept)
        text = f"{ast.unparse(call.func)}({inside})"
        statement = self._module.statement(call)
        names = [ast.unparse(given) if given is not None else "_" for given in
                 (keyword(call, part) for part in ("module", "optimizer", "data_loader"))]  # fmt: skip
        if isinstance(statement, ast.Expr):
            text = f"{', '.join(names)} = {text}"
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple):
            last = statement.targets[0].elts[-1]
            if isinstance(last, ast.Name) and last.id.startswith("_"):
                self._replace(last, names[-1])
                self._takes_loader = True
        self._replace(call, text)

    def _applied(self) -> Rewritten:
        lines = self._module.text.encode()
        inserted = []
        for line, reasons in self._notes.items():
            start = self._starts[line - 1]
            text = lines[start:].split(b"\n", 1)[0]
            indent = text[: len(text) - len(text.lstrip())].decode()
            inserted.append((start, start, "".join(f"{indent}# TODO: {reason}\n" for reason in reasons)))
        begin: int | None = None
        for start, end, text in sorted([*self._changes, *inserted], key=lambda c: (c[0], c[1]), reverse=True):
            if begin is not None and end > begin:
                continue  # inside of what was replaced as a whole
            lines, begin = lines[:start] + text.encode() + lines[end:], start
        left = [reason for _, reasons in sorted(self._notes.items()) for reason in reasons]
        return Rewritten(lines.decode(), tuple(left))
