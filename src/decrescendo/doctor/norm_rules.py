"""Rules of the source about clipping tensor by tensor, or of a sum."""

import ast
import re
from collections.abc import Iterator

from decrescendo.doctor.flows import data_in, engines, given_to, noises, scope_of
from decrescendo.doctor.source import Hit, Module, Sources, name_of, names_in, targets_of

_TENSORS = re.compile(r"parameters\(\)|params|\.items\(\)|\.values\(\)|grads|state_dict")
_SEVERAL = re.compile(r"sample|example|record|row|client|user|updates")
_CLIP = re.compile(r"^c$|clip|max_(grad_)?norm|threshold|bound")
_OF_NORMS = re.compile(
    r"(quantile|median|percentile)\([^)]*norm|norms?\b[^=]*\.(quantile|median|mean)\(|"
    r"(quantile|median|percentile|mean)\(\w*norms"
)
_NOISY = re.compile(r"nois[ey]|randn|normal|laplace|public|param")
_ADVICE = (
    "with k tensors one record moves the sum by up to sqrt(k) C: take the norm over all of them, or noise for sqrt(k) C"
)


def follows_the_norms(sources: Sources) -> Iterator[Hit]:
    """A clip norm that is set to a quantile or a mean of the examples' norms, without noise."""
    for module in sources.modules:
        for node in ast.walk(module.tree):
            target = next((name_of(t).lower() for t in targets_of(node)), "")
            if not isinstance(node, ast.Assign | ast.AugAssign) or not _CLIP.search(target):
                continue
            compares = any(isinstance(part, ast.Compare) for part in ast.walk(node.value))
            if compares or re.search(r"share|frac|ratio|clipped|count|num|was|_at", target):
                continue
            texts = [ast.unparse(node.value).lower()]
            for name in data_in(node.value):
                texts += [ast.unparse(made.value).lower() for made in given_to(scope_of(module, node), name)]
            if any(_OF_NORMS.search(text) for text in texts) and not any(_NOISY.search(text) for text in texts):
                yield (module, node, "beside", "the clip norm follows the examples' norms, without noise",
                       "one record moves it, and with it all that the others add: take a constant, a public schedule, "
                       "or a quantile with noise that is accounted")  # fmt: skip
                return


def sums_clipped(sources: Sources) -> Iterator[Hit]:
    """A clip factor that is computed of what a loop over examples has added up, after that loop."""
    if engines(sources) or not noises(sources):
        return
    for module, call in sources.calls("backward", "grad"):
        loop = next(iter(module.loops(call)), None)
        if not isinstance(loop, ast.For):
            continue
        sums = {name for part in ast.walk(loop) for name in _added_to(part)} - {""}
        function = module.function(call) or module.tree
        later = [
            node for node in ast.walk(function)
            if isinstance(node, ast.Assign) and node.lineno > (loop.end_lineno or 0)
            and module.loops(node) == module.loops(loop)
        ]  # fmt: skip
        norms = {name_of(n.targets[0]) for n in later if "norm" in name_of(n.targets[0]) and names_in(n.value) & sums}
        for node in later:
            clips = re.search(r"\bmin\(|clamp\(|minimum\(", ast.unparse(node.value))
            if clips and names_in(node.value) & norms and any(map(_CLIP.search, names_in(node.value))):
                yield (module, node, "sensitivity", "the sum over the examples is clipped, not each example's gradient",
                       "one record moves the clipped sum by up to 2 C, and all others' shares: clip each example's "
                       "gradient inside the loop")  # fmt: skip
                return


def _added_to(node: ast.AST) -> set[str]:
    """What gradients are added to: of `for t, p in zip(total, params): t += p.grad` the total."""
    if isinstance(node, ast.For) and isinstance(node.iter, ast.Call) and name_of(node.iter.func) == "zip":
        turned = node.target.elts if isinstance(node.target, ast.Tuple) else []
        pairs = dict(zip(map(name_of, turned), map(name_of, node.iter.args), strict=False))
        added = {name_of(part.target) for part in ast.walk(node) if isinstance(part, ast.AugAssign)}
        return {pairs[name].lower() for name in added & pairs.keys()}
    return {name_of(node.target).lower()} if isinstance(node, ast.AugAssign) else set()


def tensors_apart(sources: Sources) -> Iterator[Hit]:
    """Each tensor of an example's gradient clipped by its own norm, and noise for one clip norm."""
    # A clip norm that is divided by the root of the number of tensors is right.
    if engines(sources) or not noises(sources) or sources.mentions("/ math.sqrt(", "/ np.sqrt(", "** 0.5", "** -0.5"):
        return
    for module in sources.modules:
        for loop in (node for node in ast.walk(module.tree) if isinstance(node, ast.For)):
            over = ast.unparse(loop.iter).lower()
            of_tensors = re.search(r"parameters\(\)|params|\.items\(\)|\.values\(\)|grads", over)
            if not of_tensors or re.search(r"sample|example|record|row", over):
                continue
            if any(isinstance(node, ast.For) for part in loop.body for node in ast.walk(part)):
                continue
            body = [ast.unparse(part).lower() for part in loop.body]
            norms = {found[1] for part in body if (found := re.match(r"(\w+) = .*norm\(", part))}
            one = loop.target.elts[-1] if isinstance(loop.target, ast.Tuple) else loop.target
            # (Weights may be kept short, each by its own norm.)
            itself = any(re.search("grad|update", part) for part in body) and any(
                _clips_itself(part, name_of(one)) for part in loop.body
            )
            if not itself and not any(
                re.search(rf"\b{norm}\b", part) and re.search(r"clamp|\bmin|clip\w*\(", part)
                for norm in norms
                for part in body
            ):
                continue
            yield (module, loop, "joint norm", "each tensor of a gradient is clipped by its own norm, in a loop over "
                                                "tensors", _ADVICE)  # fmt: skip
            return
        for node in ast.walk(module.tree):
            if _is_comprehension_of_clips(sources, module, node):
                yield (
                    module,
                    node,
                    "joint norm",
                    "each tensor of an update is clipped by its own norm",
                    _ADVICE,
                )
                return


def _is_comprehension_of_clips(sources: Sources, module: Module, node: ast.AST) -> bool:
    """Whether a comprehension over tensors clips each: `[u * min(1, C / u.norm()) for u in update]`."""
    if not isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp) or len(node.generators) != 1:
        return False
    target, over = node.generators[0].target, node.generators[0].iter
    key = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else None
    one = target.elts[-1] if isinstance(target, ast.Tuple) and target.elts else target
    element = node.value if isinstance(node, ast.DictComp) else node.elt
    if not _clips_itself(element, name_of(one)) and not _is_clipped_by(sources, element, name_of(one)):
        return False
    if key is not None and not re.fullmatch(r"k|key|n|name|_|layer|p|param\w*", name_of(key)):
        return False  # a client's number, not a tensor's name
    text = ast.unparse(over)
    base = over.func.value if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) else over
    made = [ast.unparse(given.value) for given in given_to(scope_of(module, node), name_of(base).lower())]
    # Of the made, `update = [.. for p in model.parameters()]` is one tensor each.
    return not _SEVERAL.search(text.lower()) and any(map(_TENSORS.search, [text.lower(), *map(str.lower, made)]))


def _clips_itself(node: ast.AST, name: str) -> bool:
    """Whether an expression divides by the norm of what has a name, and takes no more than one."""
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
    bounded = any(name_of(call.func) in ("min", "minimum", "clamp", "clip", "max", "maximum") for call in calls)
    own = [
        call
        for call in calls
        if name_of(call.func) in ("norm", "vector_norm")
        and name in {name_of(part) for part in ast.walk(call) if isinstance(part, ast.Name)}
    ]
    divides = any(isinstance(part, ast.Div) for part in ast.walk(node))
    return bool(own) and bounded and divides


def _is_clipped_by(sources: Sources, element: ast.AST, name: str) -> bool:
    """Whether a function that is called with a tensor clips it by its own norm."""
    if not isinstance(element, ast.Call) or name not in map(name_of, element.args):
        return False
    for held in sources.modules:
        for function in ast.walk(held.tree):
            if isinstance(function, ast.FunctionDef) and function.name == name_of(element.func):
                own = [argument.arg for argument in function.args.args if argument.arg != "self"]
                inside = ast.Module(body=function.body, type_ignores=[])
                looped = any(isinstance(part, ast.For | ast.comprehension) for part in ast.walk(inside))
                return bool(own) and not looped and _clips_itself(inside, own[0])
    return False
