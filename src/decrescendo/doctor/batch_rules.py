"""Rules of the source about what a step does: which rows it draws, how they are clipped, divided and noised."""

import ast
import re
from collections.abc import Iterator

from decrescendo.doctor.flows import data_in, engines, given_to, makers_of, makes, noises, scaled_draws, used_code
from decrescendo.doctor.source import (
    MAKERS,
    TRAINERS,
    Hit,
    Module,
    Sources,
    keyword,
    name_of,
    names_in,
    targets_of,
)

_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clamp", "clip", "clamp_", "clip_")
# `len(x) == 0`, `x.shape[0] < 2`, `x.numel() == 0` and the like.
_SIZE = r"(len\([\w.\[\]]+\)|shape\[0\]|size\(0\)|numel\(\)|nelement\(\))"
_EMPTY = re.compile(
    rf"{_SIZE} (==|<=) 0|{_SIZE} < [12]\b|^not len\(|^not (drawn|picked|chosen|sampled|batch|idx|indices|rows|lot)$"
)
# Noise that is added to what clients send, not to the gradient of a step.
_UPDATES = re.compile(r"(^|_)updates?(_|$)|client|server|aggreg|global_(model|weight|param|state)|fedavg")
# The number of rows of a batch.
_COUNTS = re.compile(
    r"(len\(\w*(batch|x|data|input|target|label|y|image|ids|indices)\w*(\[\w+\])?\)|\w+\.(size\(0\)|shape\[0\]))"
)
_SHAPES = re.compile(r"\bndim\b|\.dim\(\)|['\"](\.?weight|\.?bias)['\"]")
_SKIPPED = (
    "empty batch",
    "an empty batch is skipped: no noise is added, and no step is counted",
    "whether anybody was drawn can be seen: an empty batch is a step of noise alone",
)
OF_A_BATCH = "the gradient of a whole batch is clipped, not each example's"
_PER_EXAMPLE = (
    "vmap", "grad_sample", "per_sample", "per_example", "microbatch", "backpack", "persample", "sample_grad", "jacrev",
)  # fmt: skip


def is_private(sources: Sources) -> bool:
    """Whether a training claims to be private."""
    attached = any("privacy" in ast.unparse(call.func).lower() for _, call in sources.calls("attach"))
    made = any(sources.calls("PrivacyEngine", "DPSGD", "DPAdam", "DPOptimizer", *TRAINERS, *MAKERS))
    made = made or (sources.mentions("opake") and any(sources.calls("clipped_grad", "gaussian_noise")))
    clipped = sources.mentions("clip", "max_norm", "sensitivity", "epsilon", "noise_multiplier")
    counted = sources.mentions("epsilon", "accountant") and bool(scaled_draws(sources))
    return attached or made or counted or (bool(noises(sources)) and clipped)


def noise_on_some(sources: Sources) -> Iterator[Hit]:
    """Noise for the tensors of some shape or name only."""
    for module, call in [] if engines(sources) else noises(sources):
        for above in module.around(call):
            if isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef):
                break
            if not isinstance(above, ast.If | ast.IfExp) or not _SHAPES.search(ast.unparse(above.test)):
                continue
            others = above.orelse if isinstance(above.orelse, list) else [above.orelse]
            whole = [part for other in others for part in ast.walk(other)]
            sets = above.body if isinstance(above.body, list) else []
            given = [t for one in sets for part in ast.walk(one) for t in targets_of(part)]
            # (Of others an error, or no gradient at all.)
            if any(isinstance(part, ast.Raise) for part in whole) or any(name_of(t) == "grad" for t in given):
                continue
            if not any(other in ast.walk(part) for part in others for _, other in noises(sources)):
                yield (module, call, "noise", "noise is added to tensors of some shape or name only",
                       "whoever sees the others sees the records: add noise to every tensor that a record "
                       "moves")  # fmt: skip
                return


def poisson_off(sources: Sources) -> Iterator[Hit]:
    """Opacus told to leave the loader as it is."""
    for module, call in ((m, c) for m in sources.modules for c in m.calls):
        given = keyword(call, "poisson_sampling")
        if isinstance(given, ast.Constant) and given.value is False:
            yield (module, call, "sampling",
                   "poisson_sampling=False: batches are shuffled, the accountant counts them as Poisson batches",
                   "amplification by sampling is not proven for such batches")  # fmt: skip


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
    reads = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
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


def rows_together(sources: Sources) -> Iterator[Hit]:
    """Layers, losses and collate functions that look at several rows."""
    if not engines(sources) and not sources.mentions("groupnorm", "validator"):
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
            name = name_of(node.func).lower() if isinstance(node, ast.Call) else ""
            if re.search(r"ntxent|infonce|supcon|contrastive|nt_xent|info_nce", name):
                yield (module, node, "rows", "a contrastive loss compares the rows of a batch",
                       "clipping does not bound what one record moves")  # fmt: skip
                return


def clip_of_batches(sources: Sources) -> Iterator[Hit]:
    """A clip of the batch's gradient where each example's should be clipped; tensors clipped one by one."""
    drawn = noises(sources)
    if engines(sources) or not drawn or sources.mentions(*_PER_EXAMPLE):
        return
    clips = [(m, c) for m, c in sources.calls(*_CLIPS)
             if "grad" in ast.unparse(m.statement(c) or c).lower()]  # fmt: skip
    if not clips:
        module, call = drawn[0]
        if not re.search(r"clip|norm\(|max_norm|grad_norm|sensitivity|clamp|normalize\(", used_code(sources)):
            yield (module, call, "sensitivity", "noise is added to what is clipped nowhere",
                   "no noise is large enough for an unbounded sum")  # fmt: skip
        return
    for module, call in clips:
        over = [ast.unparse(loop.iter).lower() for loop in module.loops(call) if isinstance(loop, ast.For)]
        if over and re.search(
            r"sample|example|microbatch|range\((len|batch|.*size|.*shape)|zip\(|^(batch|lot|rows)$", over[0]
        ):
            return
        if any(isinstance(loop, ast.For) and _picks(loop) for loop in module.loops(call)):
            return
        if any(re.search(r"sample|example|micro", loop) for loop in over[1:]):
            return
    clips = [] if _of_updates(sources, drawn, clips) else clips
    for module, call in clips[:1]:
        yield (module, call, "sensitivity", OF_A_BATCH,
               "one record moves the clipped sum by up to 2 C, whatever the size of the batch: divided noise "
               "is too small for it")  # fmt: skip


def _of_updates(sources: Sources, drawn: list[tuple[Module, ast.Call]], clips: list[tuple[Module, ast.Call]]) -> bool:
    """Whether these clips are of local steps only, and the noise is added to clients' updates afterwards."""
    around = [module.function(call) or (module.loops(call) or [call])[-1] for module, call in drawn]
    about = {word for place in around for word in names_in(place)}
    if not any(map(_UPDATES.search, about)):
        return False
    calls, functions = {call for _, call in drawn}, makers_of(sources, drawn)
    places = [next(iter(module.loops(call)), None) or module.function(call) for module, call in clips]
    steps = [place for place in places if place is not None and makes(place, (), ("step",))]
    inside = {part for place in steps for part in ast.walk(place)}
    # The update itself must be clipped, too.
    again = any(
        re.search(r"^(vector_)?norm$|clip|clamp", name_of(call.func)) and call not in inside
        for module in sources.modules for call in module.calls
    )  # fmt: skip
    local = len(steps) == len(clips) and not any(makes(place, calls, functions) for place in steps)
    return local and again


def _picks(loop: ast.For) -> bool:
    """Whether a loop picks one row by each of its numbers: `x[i]` of a range, `x[i : i + 1]` of what was drawn."""
    at = re.escape(ast.unparse(loop.target))
    one = rf"\[{at}:{at} \+ 1\]|\[{at}\](\[None\]|\.unsqueeze\(0\))"
    counts = ast.unparse(loop.iter).startswith("range(")
    return any(re.search(rf"{one}|\[{at}\]" if counts else one, ast.unparse(part)) for part in loop.body)


def denominators(sources: Sources) -> Iterator[Hit]:
    """Gradients divided by the number of rows that happened to be drawn."""
    if engines(sources):
        return
    for module in sources.modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                left, right = node.left, node.right
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
                left, right = node.target, node.value
            else:
                continue
            into = [ast.unparse(target) for target in targets_of(module.statement(node) or node)]
            summed = re.search(r"grads?\b|gradients?\b|nois[ey]", ast.unparse(left).lower())
            if not summed and not any(t.endswith(".grad") for t in into):
                continue
            number = _number_of(module, sources, right)
            counted = re.fullmatch(r"len\((\w+)\)|(\w+)\.sum\(\)(\.item\(\))?", number)
            if _COUNTS.fullmatch(number) or (
                counted and _is_drawn((module.loops(node) or [module.tree])[-1], (counted[1] or counted[2]).lower())
            ):
                yield (module, node, "denominator", "the sum is divided by the number of rows that were drawn",
                       "that number is private under Poisson batches: divide by the expected one")  # fmt: skip
                return


def _is_drawn(loop: ast.AST, name: str, deep: int = 3) -> bool:
    """Whether a name is of rows, or of numbers of rows, that coins draw within a loop."""
    made = [one.value for one in given_to(loop, name)]
    coins = any(re.search(r"\b(rand|random|bernoulli)\([^\n]*<|bernoulli\(", ast.unparse(value)) for value in made)
    others = {other for value in made for other in data_in(value)} - {name} if deep else set[str]()
    return coins or any(_is_drawn(loop, other, deep - 1) for other in sorted(others))


def _number_of(module: Module, sources: Sources, node: ast.expr) -> str:
    """An expression without what keeps it from zero; a name that is assigned once in its function, by its value."""
    while isinstance(node, ast.Call) and name_of(node.func) in ("max", "float", "int") and node.args:
        node = next((given for given in node.args if not isinstance(given, ast.Constant)), node.args[0])
    if isinstance(node, ast.Name) and not sources.mentions("drop_last=true"):
        scope = module.function(node) or module.tree
        given = [
            part
            for part in ast.walk(scope)
            if isinstance(part, ast.Assign) and any(name_of(target) == node.id for target in part.targets)
        ]
        # (A number that stays the same in a loop over steps is that of all rows.)
        steps = [loop for made in given for loop in module.loops(node) if loop not in module.loops(made)]
        over = [ast.unparse(loop.iter) if isinstance(loop, ast.For) else "" for loop in steps]
        if len(given) == 1 and all(re.search(r"param|grad|zip|items|values", one) for one in over):
            node = given[0].value
    return ast.unparse(node)


def empty_batches(sources: Sources) -> Iterator[Hit]:
    """Batches that are skipped because nobody is in them."""
    drawn = noises(sources)
    released = [*drawn, *sources.calls("step")]
    calls, functions = {call for _, call in released}, {"step"} | makers_of(sources, released)
    for module in sources.modules:
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.If):
                continue
            function = module.function(node)
            if (
                any(isinstance(part, ast.Return) and part.value is None for part in node.body)
                and _EMPTY.search(ast.unparse(node.test)) and function is not None
                and not module.loops(node) and any(call in calls for call in ast.walk(function))
            ):  # fmt: skip
                yield module, node, *_SKIPPED
                return
            if not any(isinstance(part, ast.Continue) for part in node.body):
                continue
            # A part of a batch may be skipped, where the noise comes after the loop over parts.
            loops = module.loops(node)
            if _EMPTY.search(ast.unparse(node.test)) and loops and makes(loops[0], calls, functions):
                yield module, node, *_SKIPPED
                return
