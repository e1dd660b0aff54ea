"""Rules of the source about noise that can be drawn again by whoever knows a seed."""

import ast
import re
from collections.abc import Iterator

from decrescendo.doctor.flows import is_over_tensors, noises, scope_of
from decrescendo.doctor.source import MAKERS, Hit, Module, Sources, keyword, name_of, names_in, targets_of

_SENT = (
    "get_parameters", "get_weights", "send", "save_pretrained", "push_to_hub", "save_model", "save_checkpoint",
)  # fmt: skip
# Their functions seed torch's generator, too.
_LIBRARIES = ("pl", "L", "lightning", "pytorch_lightning", "transformers", "accelerate")
_SEEDING = ("manual_seed", "seed_everything", "set_seed", "manual_seed_all")
_MADE_UP = re.compile(r"synth|generated|^fake_?(data|rows|samples|images|df|table)$")
# Numbers of the operating system's.
_FRESH = re.compile(r"secrets\.|urandom|SystemRandom|\bseed\(\)")


def seeds(sources: Sources) -> Iterator[Hit]:
    """Noise that whoever knows the seed can draw again."""
    secure = sources.mentions("secure_mode=true", "secure_rng=true")
    sent = sources.mentions(*(f"{name}(" for name in _SENT), "torch.save(", "flwr", "nvflare")
    made_up = not sent and _rows_released(sources)
    # opake's noise has keys of its own.
    keyed = any(sources.calls("gaussian_noise")) and sources.mentions("opake")
    if secure or keyed or not (sent or made_up):
        return
    for module, call in sources.calls(*_SEEDING):
        if _is_forked(module, call) or _is_fresh(module, call) or _reseeded(module, call):
            continue
        if not _draws_noise(sources, module, call):
            continue
        if _in_each_step(sources, module, call):
            yield (module, call, "seed", "the generator of the noise is seeded anew in each step: the noise is the "
                   "same in all of them",
                   "it cancels in the difference of two steps: seed it once, before the first")  # fmt: skip
            return
        what = "synthetic rows are released" if made_up else "weights are saved or sent"
        yield (module, call, "seed", f"the noise comes from a generator that was seeded here, and the {what}",
               "who knows or guesses the seed draws the same noise, and takes it off")  # fmt: skip
        return


def _in_each_step(sources: Sources, module: Module, seeding: ast.Call) -> bool:
    """Whether a function, or the turn of a loop, seeds with what does not change in it, and then draws noise."""
    function, loops = module.function(seeding), module.loops(seeding)
    given = set[str]().union(*map(names_in, seeding.args))
    drawn = [call for held, call in noises(sources) if held is module]
    changing = [loop for loop in loops if isinstance(loop, ast.For) and names_in(loop.target) & given]
    if loops:
        inner = [
            part for part in ast.walk(loops[0])
            if isinstance(part, ast.For | ast.While) and part is not loops[0] and not is_over_tensors(part)
        ]  # fmt: skip
        below = any(call in ast.walk(part) for part in inner for call in drawn)  # many draws for one seeding
        return not changing and not below and any(call in ast.walk(loops[0]) for call in drawn)
    if function is None or not any(call in ast.walk(function) for call in drawn):
        return False
    called = [(held, call) for held, call in sources.calls(function.name) if held.loops(call)]
    return any(
        not any(isinstance(loop, ast.For) and names_in(loop.target) & names_in(call) for loop in held.loops(call)[:1])
        or not given
        for held, call in called
    )


def _rows_released(sources: Sources) -> bool:
    """Whether made-up rows are written or shown."""
    for _, call in sources.calls("to_csv", "to_parquet", "to_json", "savetxt", "save_image", "print"):
        held = call.func.value if isinstance(call.func, ast.Attribute) else None
        parts = [*call.args, *([held] if held is not None else [])]
        if any(_MADE_UP.search(name) for part in parts for name in names_in(part)):
            return True
    return False


def _is_forked(module: Module, call: ast.Call) -> bool:
    """Whether what is seeded is as before afterwards: `with torch.random.fork_rng():`."""
    items = [item for above in module.around(call) if isinstance(above, ast.With) for item in above.items]
    return any("fork_rng" in ast.unparse(item.context_expr) for item in items)


def _is_fresh(module: Module, call: ast.Call) -> bool:
    """Whether a seed is drawn from the system: `manual_seed(secrets.randbits(62))`, `torch.seed()`."""
    if name_of(call.func) == "seed" and not call.args and not call.keywords:
        return True
    texts = [ast.unparse(argument) for argument in call.args]
    names = {argument.id for argument in call.args if isinstance(argument, ast.Name)}
    texts += [
        ast.unparse(node.value)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign) and names & set(map(name_of, node.targets))
    ]
    return name_of(call.func) in _SEEDING and any(map(_FRESH.search, texts))


def _reseeded(module: Module, seeding: ast.Call) -> bool:
    """Whether the same generator is seeded anew, from the system, later in the file or by a call later in it."""
    held = _held(module, seeding)
    for other in module.calls:
        if other is seeding or not _is_fresh(module, other) or not held & _held(module, other):
            continue
        function = module.function(other)
        at = [other.lineno]
        if function is not None:
            at += [c.lineno for c in module.calls if name_of(c.func) == function.name]
        if max(at) >= seeding.lineno:
            return True
    return False


def _held(module: Module, seeding: ast.Call) -> set[str]:
    """What a call seeds, by its names; torch's own generator is `torch`."""
    held = ast.unparse(seeding.func.value) if isinstance(seeding.func, ast.Attribute) else "torch"
    if "Generator" in held:
        statement = module.statement(seeding)
        return {ast.unparse(target) for target in targets_of(statement or seeding)} | {held}
    root = held.partition(".")[0]
    return {"torch"} if root == "torch" or (root in _LIBRARIES and name_of(seeding.func) != "seed") else {held}


def _draws_noise(sources: Sources, module: Module, seeding: ast.Call) -> bool:
    """Whether what is seeded may draw the noise: torch's own generator, or one that is given to such a call."""
    held = _held(module, seeding)
    drawn = noises(sources)
    for where, call in drawn:
        given = keyword(call, "generator")
        if given is not None and (ast.unparse(given) in held or _passed(sources, where, given, held)):
            return True
    makers = list(sources.calls(*MAKERS))
    own = [
        given
        for where, call in makers
        if (given := keyword(call, "noise_generator")) is not None and not _is_handed_on(where, given)
    ]
    if any(ast.unparse(given) in held for given in own):
        return True
    if held != {"torch"}:
        return "rng" not in "".join(held).lower() and not _is_generator(module, held)
    if makers and len(own) == len(makers):
        return False
    by_hand = [call for where, call in drawn if not _of_its_own(where, call)]
    return bool(by_hand) or not drawn or bool(makers)


def _is_handed_on(module: Module, given: ast.expr) -> bool:
    """Whether a function gives an argument of its own on, which may be `None`."""
    function = module.function(given)
    named = list[ast.arg]() if function is None else [*function.args.args, *function.args.kwonlyargs]
    return ast.unparse(given) in {argument.arg for argument in named}


def _is_generator(module: Module, held: set[str]) -> bool:
    """Whether names are those of a generator that is no default."""
    made = [
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign) and any(ast.unparse(target) in held for target in node.targets)
    ]
    return any("generator" in name.lower() for name in held) or any(
        "Generator(" in ast.unparse(node.value) for node in made
    )


def _passed(sources: Sources, where: Module, given: ast.expr, held: set[str]) -> bool:
    """Whether a generator comes into a function as an argument, and the seeded one is given for it."""
    function = where.function(given)
    if function is None or ast.unparse(given) not in {a.arg for a in function.args.args}:
        return False
    calls = sources.calls(function.name)
    return any(
        ast.unparse(part) in held for _, call in calls for part in [*call.args, *(k.value for k in call.keywords)]
    )  # fmt: skip


def _of_its_own(module: Module, call: ast.Call) -> bool:
    """Whether noise comes from a generator that is not the default one: `generator=g`, `rng.normal(..)`."""
    if keyword(call, "generator") is not None:
        return True
    if not isinstance(call.func, ast.Attribute) or name_of(call.func) == "normal_":
        return False
    held = ast.unparse(call.func.value)
    scopes = [scope_of(module, call), module.tree]
    made = [
        ast.unparse(node.value)
        for scope in scopes
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and held in map(ast.unparse, node.targets)
    ]
    return any(re.search(r"default_rng\(|SystemRandom\(|RandomState\(\)", text) for text in made)


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
