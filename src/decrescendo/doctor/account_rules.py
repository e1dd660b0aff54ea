"""Rules of the source about accountants that are told by hand: how many steps, and of what noise."""

import ast
import re
from collections.abc import Iterator

from decrescendo.doctor.flows import (
    engines,
    functions,
    given_to,
    is_over_tensors,
    makers_of,
    makes,
    noises,
    scope_of,
)
from decrescendo.doctor.source import Hit, Module, Sources, keyword, name_of, names_in, targets_of

_COUNTS_STEPS = re.compile(r"step|epoch|round|iter|\bt\b|\bk\b")
_STEPS = re.compile(r"^((num|n)_)?(steps|iterations|iters|compositions)$")
_EPOCHS = ("epochs", "n_epochs", "num_epochs", "epoch_count")
_NOISE = re.compile(r"sigma|noise|multiplier|std")
_EPSILON = re.compile(
    r"epsilon|get_privacy|_eps\b|\beps_|\beps\b|compute_mu|save_checkpoint|accountant\.(history|state_dict)|accountant\.save"
)
_ACCOUNTS = re.compile(
    r"epsilon|\beps\b(?!=\d)|_eps\b|\beps_|\bdelta\b|_delta\b|accountant|account\(|\brdp|r[eé]nyi|\bpld|\bprv\b|\bgdp\b|"
    r"zcdp|privacy_budget|noise_multiplier\(|privacy_engine|calibrate\(|budget\("
)


def counted_less_often(sources: Sources) -> Iterator[Hit]:
    """An accountant that is stepped by hand, outside of the loop of the steps."""
    drawn = [] if engines(sources) else noises(sources)
    calls, noisy = {call for _, call in drawn}, makers_of(sources, drawn)
    for module, call in sources.calls("step"):
        if keyword(call, "noise_multiplier") is None or _is_of_an_engine(sources, call):
            continue
        scope = scope_of(module, call)
        if _is_now_and_then(module, call, calls, noisy):
            yield (module, call, "history", "the accountant is told of one step now and then, of those of its loop",
                   "epsilon is that of the steps that are counted: count each of them")  # fmt: skip
            return
        steps = [(m, c) for m, c in sources.calls("step") if c is not call and keyword(c, "noise_multiplier") is None]
        # Local steps of clients, whose update has noise later, are none.
        steps = [(m, c) for m, c in steps if not drawn or not m.loops(c) or makes(m.loops(c)[0], calls, noisy)]
        stepping = {
            found.name for held, step in steps if (found := held.function(step)) is not None and found is not scope
        }
        released = {step for _, step in steps}
        own = module.loops(call)
        for loop in (node for node in ast.walk(scope) if isinstance(node, ast.For | ast.While)):
            turned = name_of(loop.target) if isinstance(loop, ast.For) else ""
            # One of several optimisers, in a loop over them, is no step of its own.
            each = {
                step for step in released
                if isinstance(step.func, ast.Attribute) and turned and name_of(step.func.value) == turned
            }  # fmt: skip
            # (Of batches that are apart each row is in one, of an accountant that is told a rate of 1.)
            apart = isinstance(loop, ast.For) and "range(" not in ast.unparse(loop.iter)
            if apart and sources.number(keyword(call, "sample_rate")) == 1:
                continue
            taken = makes(loop, released - each, stepping) and (not drawn or makes(loop, calls, noisy))
            if taken and call not in ast.walk(loop) and (not own or loop in ast.walk(own[0])):
                yield (module, call, "history", "the accountant is told of one step where a loop takes several",
                       "epsilon is that of the steps that are counted: count inside of the loop")  # fmt: skip
                return


def _is_of_an_engine(sources: Sources, call: ast.Call) -> bool:
    """Whether an accountant is Opacus' engine's, which counts its steps itself: what is told it is something else."""
    return engines(sources) and re.search(r"engine\w*\.accountant\.step$", ast.unparse(call.func)) is not None


def _is_now_and_then(module: Module, call: ast.Call, calls: set[ast.Call], noisy: set[str]) -> bool:
    """Whether an accountant is told of one step in every so many turns of its loop, and the optimiser's steps, or the
    noise, are not made then alone."""
    loops, told = module.loops(call), keyword(call, "steps") or keyword(call, "num_steps")
    for above in module.around(call) if loops and told is None else ():
        if above is loops[0]:
            return False
        if isinstance(above, ast.If) and any(isinstance(part, ast.Mod) for part in ast.walk(above.test)):
            steps = [part for part in ast.walk(above) if isinstance(part, ast.Call) and name_of(part.func) == "step"]
            return steps == [call] and not makes(above, calls, noisy)
    return False


def told_of_epochs(sources: Sources) -> Iterator[Hit]:
    """An accountant that is given the number of epochs for that of steps, of which a loop takes several in each."""
    over_epochs = [
        loop for module in sources.modules for loop in ast.walk(module.tree)
        if isinstance(loop, ast.For) and names_in(loop.iter) & set(_EPOCHS)
        and (makes(loop, (), ("backward", "grad", "zero_grad")) or makes(loop, [c for _, c in noises(sources)], ()))
    ]  # fmt: skip
    inner = [
        part for loop in over_epochs for part in ast.walk(loop)
        if isinstance(part, ast.For | ast.While) and part is not loop and not is_over_tensors(part)
    ]  # fmt: skip
    if over_epochs and not inner:  # full batches, perhaps
        return
    for function in functions(sources, {name_of(call.func) for _, call in sources.calls(*_named(sources))}):
        places = [i for i, argument in enumerate(function.args.args) if _STEPS.search(argument.arg.lower())]
        about = _ACCOUNTS.search(ast.unparse(function).lower())
        for module, call in sources.calls(function.name) if about else ():
            given = [call.args[i] for i in places if i < len(call.args)]
            given += [k.value for k in call.keywords if k.arg and _STEPS.search(k.arg.lower())]
            if any(name_of(one).lower() in _EPOCHS for one in given):
                yield (module, call, "history", f"{function.name} is told the number of epochs as that of the steps",
                       "epsilon is that of so few steps: give it all of them")  # fmt: skip
                return
    for module, call in sources.calls("step"):
        loops = module.loops(call)
        if keyword(call, "noise_multiplier") is None or not loops or not isinstance(loops[0], ast.For):
            continue
        body = [part for part in ast.walk(loops[0]) if isinstance(part, ast.For | ast.Call)]
        alone = len(loops) == 1 and {type(part) for part in body[1:]} <= {ast.Call} and not makes(
            loops[0], (), ("backward", "zero_grad", "grad"))  # fmt: skip
        if alone and names_in(loops[0].iter) & set(_EPOCHS):
            yield (module, call, "history", "the accountant is told of one step for each epoch",
                   "epsilon is that of so few steps: tell it of all of them")  # fmt: skip
            return


def _named(sources: Sources) -> set[str]:
    """The functions of the script that take a number of steps."""
    return {
        node.name
        for module in sources.modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef) and any(_STEPS.search(a.arg.lower()) for a in node.args.args)
    }


def never_counted(sources: Sources) -> Iterator[Hit]:
    """Noise by hand, and nothing that says what it is worth."""
    drawn = [] if engines(sources) or sources.matches(_ACCOUNTS) else noises(sources)
    for module, call in drawn[:1]:
        yield (module, call, "budget", "noise is added, and nothing computes an epsilon for it",
               "nobody knows what is promised: noise that looks large may have an epsilon in the hundreds")  # fmt: skip


def never_asked(sources: Sources) -> Iterator[Hit]:
    """Noise that is chosen for Opacus, and no epsilon anywhere."""
    if sources.matches(_EPSILON):
        return
    for module, call in sources.calls("make_private", "RDPAccountant", "PRVAccountant", "GaussianAccountant"):
        yield (module, call, "budget", "noise is added, and the accountant is never asked for an epsilon",
               "nobody knows what is promised: noise that looks large may have an epsilon in the hundreds")  # fmt: skip
        return


def by_formula(sources: Sources) -> Iterator[Hit]:
    """A noise multiplier for Opacus that is computed from an epsilon, and no accountant that is asked."""
    if any(sources.calls("get_epsilon", "get_noise_multiplier", "make_private_with_epsilon", "get_privacy_spent")):
        return
    for module, call in sources.calls("make_private"):
        given = keyword(call, "noise_multiplier")
        made = [one.value for one in given_to(scope_of(module, call), name_of(given).lower())] if given else []
        if any(map(_is_formula, filter(None, (given, *made)))):
            yield (module, call, "budget", "the noise multiplier is computed from epsilon by a formula, and no "
                   "accountant is asked", "such a formula knows neither steps nor sample rate: let "
                   "make_private_with_epsilon find the noise, and state what get_epsilon says")  # fmt: skip
            return
    for module, call in [] if engines(sources) else noises(sources):
        statement = module.statement(call)
        if statement is None or not (module.loops(call) or module.function(call)):
            continue
        for name in names_in(statement):
            made = [one.value for one in (*given_to(scope_of(module, call), name), *given_to(module.tree, name))]
            if any(_is_formula(value) and not _COUNTS_STEPS.search(ast.unparse(value).lower()) for value in made):
                yield (module, call, "budget", "the noise is that of one release, by a formula of epsilon, and each "
                       "step is one", "epsilon is larger by about the root of the number of steps, at least: let an "
                       "accountant find the noise for all of them")  # fmt: skip
                return


def asymptotic(sources: Sources) -> Iterator[Hit]:
    """An epsilon by a formula that multiplies a sampling rate by a root: the moments accountant's rate of growth, or
    advanced composition of amplified steps."""
    if engines(sources) or any(sources.calls("get_epsilon", "get_privacy_spent", "compute_rdp", "get_eps_rdp")):
        return
    for module in sources.modules:
        for node in ast.walk(module.tree):
            value = node.value if isinstance(node, ast.Return | ast.Assign) else None
            if value is None or not _is_amplified_root(value):
                continue
            function = module.function(node)
            names = [name_of(t) for t in targets_of(node)] + ([function.name] if function is not None else [])
            if any(re.search(r"eps|privacy|budget|spent", name.lower()) for name in names):
                yield (module, node, "budget", "epsilon is computed by a formula of its order of growth, without its "
                       "constant, not by an accountant", "the true epsilon is larger by an unknown factor: ask an "
                       "accountant of this mechanism")  # fmt: skip
                return


def _is_amplified_root(value: ast.expr) -> bool:
    """Whether a product has a sampling rate, and a root of a logarithm."""
    for part in ast.walk(value):
        if not isinstance(part, ast.BinOp) or not isinstance(part.op, ast.Mult):
            continue
        text = ast.unparse(part).lower()
        rate = any(re.search(r"^q$|rate$|^(sampl|subsampl)", name) for name in names_in(part))
        if rate and re.search(r"sqrt\([^\n]*log\(|log\([^\n]*\*\* 0\.5", text):
            return True
    return False


def _is_formula(value: ast.expr) -> bool:
    """Whether a number is computed from an epsilon without an accountant's function."""
    called = {name_of(part.func) for part in ast.walk(value) if isinstance(part, ast.Call)}
    computed = (isinstance(value, ast.BinOp) or bool(called)) and called <= {"sqrt", "log", "pow", "float", "max"}
    return computed and any(re.search(r"^eps(ilon)?s?$|_eps(ilon)?$", name) for name in names_in(value))


def told_the_first_noise(sources: Sources) -> Iterator[Hit]:
    """An accountant that is told a constant where the noise that is drawn moves in the loop."""
    drawn = noises(sources)
    if engines(sources) or not drawn:
        return
    calls, noisy = {call for _, call in drawn}, makers_of(sources, drawn)
    told = [
        (module, call, given)
        for module, call in sources.calls("step", "GaussianDpEvent", "compute_rdp")
        if (given := keyword(call, "noise_multiplier") or (call.args[:1] or [None])[0]) is not None
        and (name_of(call.func) == "GaussianDpEvent" or keyword(call, "noise_multiplier") is not None)
    ]  # fmt: skip
    for module in sources.modules:
        for name, loop in _moving(module, calls, noisy):
            if any(name in names_in(given) and loop in held.loops(call) for held, call, given in told):
                continue
            for held, call, given in told:
                again = any(isinstance(a, ast.ListComp | ast.GeneratorExp) for a in held.around(call))
                turned = [one for one in held.loops(call) if names_in(given) & _changed(one)]
                if isinstance(given, ast.Name | ast.Attribute) and not again and not turned:
                    yield (held, call, "schedule", f"the noise moves in the loop, by {name!r}, and the accountant is "
                                                   "told one constant",
                           "epsilon is that of the constant: tell it the noise of each step")  # fmt: skip
                    return


def _moving(module: Module, calls: set[ast.Call], noisy: set[str]) -> Iterator[tuple[str, ast.For | ast.While]]:
    """Names of noise that change from step to step of a loop with noise, and the loop."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Assign | ast.AugAssign):
            continue
        name, loops = name_of(targets_of(node)[0]).lower(), module.loops(node)
        words = names_in(node.value)
        if not loops or not _NOISE.search(name) or any("clip" in w or "norm" in w for w in words):
            continue
        turned = names_in(loops[0].target) if isinstance(loops[0], ast.For) else set[str]()
        changes = isinstance(node, ast.AugAssign) or name in words or words & turned
        given = [node, *given_to(scope_of(module, node), name)]
        is_number = not any(makes(made, calls, noisy) for made in given)  # and not the noise itself
        if changes and is_number and _reaches_noise(module, loops[-1], name, calls, noisy):
            yield name, loops[0]


def _reaches_noise(module: Module, loop: ast.AST, name: str, calls: set[ast.Call], noisy: set[str]) -> bool:
    """Whether a name is in the statement of some noise in a loop, or given to a function that draws noise."""
    for call in (part for part in ast.walk(loop) if isinstance(part, ast.Call)):
        given = {word for part in [*call.args, *(k.value for k in call.keywords)] for word in names_in(part)}
        if name_of(call.func) in noisy and name in given:
            return True
        statement = module.statement(call)
        if call in calls and statement is not None and name in names_in(statement):
            return True
    return False


def _changed(loop: ast.For | ast.While) -> set[str]:
    """Names that a loop assigns to, in lower case."""
    found = names_in(loop.target) if isinstance(loop, ast.For) else set[str]()
    for node in ast.walk(loop):
        found |= {name_of(target).lower() for target in targets_of(node)}
    return found
