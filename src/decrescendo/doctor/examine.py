"""`examine`: runs a script with observers, and says what is wrong with its privacy."""

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from decrescendo.doctor.batch_rules import OF_A_BATCH
from decrescendo.doctor.budgets import STATED, Observed, loop_seen
from decrescendo.doctor.checkpoint import examine_checkpoint
from decrescendo.doctor.compare import NO_NOISE, buffers_moved, compared
from decrescendo.doctor.events import read_events
from decrescendo.doctor.finding import UNREACHED, Certainty, Diagnosis, Finding, ordered
from decrescendo.doctor.flows import amplifies, makers_of, makes, noises, scaled_draws
from decrescendo.doctor.folder import examine_folder
from decrescendo.doctor.moved_outputs import NOT_COMPARED, Moved, moved_outputs
from decrescendo.doctor.rules import read_source
from decrescendo.doctor.source import Module, Sources, cell_of, name_of, names_in, read, script_of
from decrescendo.doctor.verdicts import found_in
from decrescendo.errors import FileRefused

STEPS = 3
LONGEST = 180.0  # seconds
_OTHERS = {"opacus", "opake", "dptrainer"}
_TRAIN = (
    "train", "fit", "train_task", "Trainer", "PrivateTrainer", "PrivateSFTTrainer", "simulate", "Server", "Task",
)  # fmt: skip
# What a library does not see of the script around it.
_AROUND = ("beside", "selection", "unit")
_LABELS = re.compile("label|vote|target|answer|pseudo")
_FLOWS = 4  # assignments that noise may pass through, one after another


def examine(
    path: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    steps: int = STEPS,
    timeout: float = LONGEST,
) -> Diagnosis:
    """Find privacy bugs in a training script.

    Args:
        path: a script or a notebook, which is run; the folder of a run; or a checkpoint of Opacus'.
        arguments: the script's own.
        steps: of the optimiser, after which the script is stopped, >= 1.
        timeout: seconds after which it is stopped all the same.

    Raises:
        FileRefused: there is no such file, or it is none of these.
    """
    path = Path(path)
    if path.is_dir():
        return examine_folder(path)
    if not path.is_file():
        raise FileRefused(f"the doctor must be given a script, a folder or a checkpoint, got {path}: no such file")
    if path.suffix not in (".py", ".ipynb"):
        return examine_checkpoint(path)
    with tempfile.TemporaryDirectory() as kept:
        script = script_of(path, Path(kept))
        if _is_ours(script):
            return _of_ours(path, script)
        if not steps:
            return diagnosis(path, script, None)
        beside = None if script == path else path.absolute().parent
        missing = run_observed(script, arguments, steps, timeout, Path(kept), beside)
        return diagnosis(path, script, Path(kept), missing)


def diagnosis(path: Path, script: Path, kept: Path | None, missing: Sequence[str] = ()) -> Diagnosis:
    """What a script's source makes one suspect, and what observers left in a folder."""
    outputs = Moved() if kept is None else moved_outputs(kept)
    findings, unseen = read_source(script, outputs.lines, outputs.kept)
    facts: list[str] = []
    settled: set[str] = set()
    if kept is not None:
        more, facts, unknown, settled = _judge(kept)
        if "of a batch" in settled:  # what a record moves, if it is by little more than it may, does not contradict it
            findings = [
                replace(found, check="rows") if found.says.startswith(OF_A_BATCH) else found for found in findings
            ]
        bare, sources = [found for found in more if found.says == NO_NOISE], read(script)
        before = [found for found in bare if _noised_before(sources, found)]
        more = [found for found in more if found not in before]
        of_clients = [found for found in bare if _is_of_a_client(sources, found)]
        more = [found for found in more if found not in of_clients]
        if before or of_clients:
            unknown.append("the noisy release: the steps that were observed come before its noise")
        local = [found for found in bare if found not in before and _noised_elsewhere(sources, found)]
        if local:  # steps of a client, perhaps, whose update is noised
            settled -= {"noise"}
        more = [replace(found, certainty=Certainty.SUSPECTED) if found in local else found for found in more]
        if any(sources.calls("get_epsilon")):  # the script asks for it
            more = [found for found in more if not found.says.startswith(STATED)]
        if not amplifies(sources):  # nothing counts its steps as those of a sample
            more = [found for found in more if (found.check, found.certainty) != ("sampling", Certainty.SUSPECTED)]
        if "buffers" in settled:  # BatchNorm, of what is no record
            findings = [found for found in findings if not found.says.startswith("BatchNorm")]
        findings = [*findings, *more, *outputs.findings()]
        if outputs.compared:
            differ = f"{len(outputs.lines)} line{'s' * (len(outputs.lines) != 1)}"
            facts = [*facts, f"{outputs.compared} later outputs were compared with those for other private rows and "
                             f"the same noisy gradients: the outputs of {differ} changed"]  # fmt: skip
        elif outputs.compared is None and UNREACHED not in unknown:
            unknown.append(NOT_COMPARED)
        if outputs.ended:
            unknown.append(f"outputs after an error of a copy of the script: {outputs.ended}")
        unseen = [*unseen, *missing, *unknown]
    named = [_relative(finding, script, path) for finding in findings]
    return Diagnosis(str(path), ordered(named, settled), tuple(facts), tuple(unseen))


def _loop_of(sources: Sources, found: Finding) -> tuple[Module, ast.For | ast.While] | None:
    """The innermost loop around the line of a step."""
    loops = [
        (module, node) for module in sources.modules[:1] for node in ast.walk(module.tree)
        if isinstance(node, ast.For | ast.While) and node.lineno <= found.line <= (node.end_lineno or 0)
    ]  # fmt: skip
    return min(loops, key=lambda one: (one[1].end_lineno or 0) - one[1].lineno, default=None)


def _noised_before(sources: Sources, found: Finding) -> bool:
    """Whether labels that a step's loop reads are made of noisy numbers, as those of teachers' votes are."""
    place = _loop_of(sources, found)
    if place is None:
        return False
    module, loop = place
    inside = set(ast.walk(loop))
    drawn = [call for held, call in noises(sources) if held is module and call not in inside]
    makers = makers_of(sources, [(module, call) for call in drawn])
    statements = [node for node in ast.walk(module.tree) if isinstance(node, ast.Assign) and node not in inside]
    known: set[str] = set()
    for _ in range(_FLOWS):
        for node in statements:
            if makes(node, drawn, makers) or known & names_in(node.value):
                known |= {name_of(part).lower() for target in node.targets for part in ast.walk(target)} - {""}
    return any(_LABELS.search(name) for name in known & names_in(loop))


def _is_of_a_client(sources: Sources, found: Finding) -> bool:
    """Whether a step is one of a client's, whose function gives the change of the weights to a loop with noise."""
    place = _loop_of(sources, found)
    function = None if place is None else place[0].function(place[1])
    if place is None or function is None:
        return False
    after = (node for node in ast.walk(function) if getattr(node, "lineno", 0) > (place[1].end_lineno or 0))
    moved = any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) for node in after)
    drawn = {call for _, call in [*noises(sources), *scaled_draws(sources)]}
    rounds = [loop for module, call in sources.calls(function.name) for loop in module.loops(call)]
    return moved and any(makes(loop, drawn, ()) for loop in rounds)


def _noised_elsewhere(sources: Sources, found: Finding) -> bool:
    """Whether noise is drawn outside of a step's loop, or in another function, which the step's does not call."""
    place = _loop_of(sources, found)
    for module, call in [*noises(sources), *scaled_draws(sources)]:
        function = module.function(call)
        if place is not None and place[0] is module and call not in ast.walk(place[1]):
            near = module.function(place[1])
            if function is near or function is None:
                return True
        if function is None:
            continue
        callers = [where.function(one) for where, one in sources.calls(function.name)]
        near = [
            one for one in (function, *callers) if one is not None and one.lineno <= found.line <= (one.end_lineno or 0)
        ]
        if callers and not near:
            return True
    return False


def _is_ours(script: Path) -> bool:
    """Whether this library trains here, and no other that is observed: by a name that is imported from it."""
    sources, imported, ours = read(script), set[str](), set[str]()
    for module in sources.modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
                ours |= {alias.asname or "decrescendo" for alias in node.names if alias.name.startswith("decrescendo")}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.split(".")[0])
                if node.module.startswith("decrescendo"):
                    ours |= {alias.asname or alias.name for alias in node.names}
    makers = [ast.unparse(call.func).split(".")[0] for _, call in sources.calls("PrivacyEngine")]
    trains = any(ast.unparse(call.func).split(".")[0] in ours for _, call in sources.calls(*_TRAIN))
    return bool(ours) and not imported & _OTHERS and (trains or any(name in ours for name in makers))


def _of_ours(path: Path, script: Path) -> Diagnosis:
    """A training by this library is not run: its engine checks each pass, and takes observers for a part of it."""
    findings, _ = read_source(script)
    around = [
        _relative(found, script, path)
        for found in findings
        if found.check in _AROUND and not found.says.startswith("the whole private module")  # it is refused
    ]
    fact = (
        "the training is by decrescendo, which checks sampling, clipping, noise and history itself: the folder of its "
        "run says what it found and what it assumes (decrescendo doctor RUN_FOLDER)"
    )
    return Diagnosis(str(path), ordered(around), (fact,))


def run_observed(
    script: Path, arguments: Sequence[str], steps: int, timeout: float, kept: Path, beside: Path | None = None
) -> list[str]:
    """Run a script under observers, which write into the folder ``kept``; what went wrong, if anything did. Modules
    of a notebook are found ``beside`` it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "CUDA_VISIBLE_DEVICES": ""}
    if beside is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(beside), environment.get("PYTHONPATH", "")]))
    runner = ["-m", "decrescendo.doctor.runner", str(kept), str(steps), str(script)]
    command = [sys.executable, *runner, *arguments]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return [f"all that comes after {timeout:g} seconds, when the script was stopped"]
    if not any(event["kind"] == "end" for event in read_events(kept)):
        return [f"the run, which ended by itself: {(done.stderr.strip().splitlines() or [''])[-1]}"]
    return []


def _judge(kept: Path) -> tuple[list[Finding], list[str], list[str], set[str]]:
    """Findings of a run, facts, what it could not show, and the checks that need no suspicion any more."""
    seen, moving = Observed(read_events(kept)), buffers_moved(kept)
    findings, facts = found_in(seen, buffers_moved=moving)
    unseen = [f"all after the script's error: {end['error']}" for end in seen.of("end") if end["how"] == "error"]
    open_ended = any("total" not in event for event in seen.of("private"))
    if open_ended and seen.of("noise") and not loop_seen(seen):
        unseen.append("how many epochs the loop makes")
    if not seen.of("step") and not seen.of("bypass"):
        early = [event["steps"] for event in seen.of("early")]
        unseen.append(f"a private step: the {early[0]} of this run had no privacy" if early else UNREACHED)
        return findings, [], unseen, set()
    moved, said, missing, ran = compared(kept, seen)
    settled = {"sensitivity"} if ran else set[str]()
    if any(event["of_a_batch"] and not event["private"] for event in seen.of("step")):
        settled |= {"of a batch"}
    if not moving and (seen.of("buffers") or seen.of("frozen")):
        settled |= {"buffers"}
    if any(event["private"] for event in seen.of("step")):
        settled |= {"bypass", "noise"} | ({"sampling", "delta"} if seen.of("private") else set())
    return [*findings, *moved], [*facts, *said], [*unseen, *missing], settled


def _relative(finding: Finding, script: Path, path: Path) -> Finding:
    """Files below the script's folder by their short names, and a notebook by its own."""
    own = not finding.file or Path(finding.file).resolve() == script.resolve()
    if own and path.suffix == ".ipynb" and finding.line:
        cell, line = cell_of(path, finding.line)
        return replace(finding, file=f"{path.name}, cell {cell}", line=line)
    return replace(finding, file=path.name if own else os.path.relpath(finding.file, path.parent))
