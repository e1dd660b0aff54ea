"""Reads the schemas of torch operations: which arguments are tensors, which are written to, which are sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from decrescendo.row_independence.basic_rules import drawn, pointwise
from decrescendo.row_independence.library_rules import RULES as LIBRARIES
from decrescendo.row_independence.rule_signatures import Rule
from decrescendo.row_independence.rules import BY_VALUE, DECLARED, RULES

# They return what is no tensor, but nothing of the values in their arguments.
_SILENT = frozenset(
    {"_fused_sdp_choice", "is_same_size", "sym_size", "sym_numel", "sym_stride", "dim", "is_pinned"}
)
# Those that return numbers of the data beside tensors (other such numbers are sizes).
_MEASURES = frozenset({"fbgemm_linear_quantize_weight", "qlinear_unpack"})
REJECTING = frozenset({
    "poisson", "binomial", "_standard_gamma", "_sample_dirichlet", "rrelu_with_noise", "rrelu_with_noise_functional",
})  # fmt: skip
# Arguments that are sizes, which the shape of the result shows, and nothing else of it: for another number of examples
# they may be others, in proportion. All other numbers have to be the same (`linspace` hides its length in its entries).
_SIZES = frozenset({"size", "sizes", "input_size", "input_sizes", "bias_sizes"})
_SIZES_OF: dict[str, tuple[str, ...]] = {
    "repeat": ("repeats",), "eye": ("n", "m"), "multinomial": ("num_samples",), "randperm": ("n",), "arange": ("end",),
    "slice": ("start", "end"), "slice_backward": ("start", "end"), "split": ("split_size", "split_sizes"),
    "split_with_sizes": ("split_sizes",), "unsafe_split": ("split_size",), "native_group_norm": ("N",),
    "native_group_norm_backward": ("N",), "convolution": ("groups",), "convolution_backward": ("groups",),
    "empty_strided": ("stride",), "new_empty_strided": ("stride",),
}  # fmt: skip
# Their numbers were read from lengths that are looked at elsewhere.
_UNREAD = frozenset({"_ctc_loss", "_ctc_loss_backward"})
_STRIDED = frozenset({"as_strided", "_reshape_alias"})
_LIFTS = frozenset({"lift_fresh", "lift"})
_EMPTIES = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
)
_MOVES = frozenset({"set_", "requires_grad_", "detach_"})
_HIDES = frozenset({
    "batch_norm_update_stats", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "batch_norm_with_update",
})  # fmt: skip
_SELECTS = frozenset({"index", "nonzero", "masked_select"})


@dataclass(frozen=True, slots=True)
class Operation:
    """One overload of one operation."""

    namespace: str
    name: str
    # "namespace::name.overload(arguments) -> outputs", as torch has it.
    form: str
    rule: Rule | None
    arguments: tuple[str, ...]
    defaults: dict[str, Any]
    # Those that hold tensors, in order, but what is only written to.
    tensors: tuple[tuple[int, str], ...]
    written: tuple[str, ...]
    # Written to, with nothing left of what they were.
    overwritten: frozenset[str]
    moves: bool
    reads: bool
    # The positions of the arguments that are sizes.
    sized: frozenset[int]
    seeded: bool
    # Draws again where a number does not suit it: the number of random numbers depends on its arguments.
    rejecting: bool
    # The argument that is the probability of drawing anything, where it has one.
    chance: int
    unread: bool
    lifts: bool
    empties: bool
    foreach: bool
    # Writes to arguments of which its schema does not say so.
    hides: bool
    # Sends tensors to other processes, or receives them: into memory, while nothing is seen.
    talks: bool
    # As many rows as a mask selects.
    selects: bool
    # The shape of its output depends on values.
    grows: bool
    # Whether any of those above, or `declared`, holds.
    special: bool
    # All it returns are views of arguments.
    views: bool
    # Made of others, which autograd takes apart; where it is off (inference mode) they come as they are.
    composite: bool
    # A view by strides (and an offset), which count numbers of memory.
    strided: bool
    # Where the examples come to lie follows from where they lie in the arguments: no value is looked at for it.
    structural: bool
    # "namespace::name" where what it does was declared by the user.
    declared: str

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call, by name."""
        return dict(zip(self.arguments, args, strict=False)) | dict(kwargs)


# By the overload's address, which hashes faster than it.
_KNOWN: dict[int, Operation] = {}


def operation(func: Any) -> Operation:
    """The facts about an overload, from a cache."""
    found = _KNOWN.get(id(func))
    if found is None or (
        (found.rule is None or found.declared)
        and DECLARED.get(f"{func.namespace}::{found.name}", found.rule) is not found.rule
    ):
        found = _KNOWN[id(func)] = _describe(func)
    return found


def _describe(func: Any) -> Operation:
    schema, full = func._schema, str(func._schema.name)
    namespace, _, name = full.partition("::")
    written = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    rule: Rule | None = None
    if namespace == "aten":
        rule = RULES.get(name) or RULES.get(name.removesuffix("_") if name.endswith("_") else name)
        if rule is None and (torch.Tag.pointwise in func.tags or _is_pointwise(name)):
            rule = pointwise
    rule = DECLARED.get(full) or LIBRARIES.get(full, rule)
    overwritten = frozenset(a.name for a in schema.arguments if a.kwarg_only and a.name in written)
    if name in ("copy_", "fill_", "zero_") or rule is drawn:
        overwritten |= frozenset(written)
    tensors = [(at, a.name) for at, a in enumerate(schema.arguments) if "Tensor" in str(a.type)]
    tells = name in _MEASURES or not any("Tensor" in str(r.type) for r in schema.returns)
    known = {
        "reads": bool(schema.returns) and tells and name not in _SILENT,
        "seeded": torch.Tag.nondeterministic_seeded in func.tags,
        "rejecting": name.removesuffix("_") in REJECTING,
        "unread": name in _UNREAD,
        "lifts": name in _LIFTS or schema.overload_name.startswith("source_Storage"),
        "empties": name in _EMPTIES,
        "foreach": name.startswith("_foreach"),
        "hides": name in _HIDES,
        "talks": "c10d" in namespace or namespace == "symm_mem",
    }
    grows = torch.Tag.dynamic_output_shape in func.tags and name not in _SELECTS
    sizes = _SIZES.union(_SIZES_OF.get(name, ()))
    special = any(known.values()) or full in DECLARED
    return Operation(
        namespace=namespace,
        name=name,
        form=f"{full}.{schema.overload_name or 'default'}({str(schema).partition('(')[2]}",
        rule=rule,
        arguments=tuple(a.name for a in schema.arguments),
        defaults={a.name: a.default_value for a in schema.arguments if a.has_default_value()},
        tensors=tuple((at, argument) for at, argument in tensors if argument not in overwritten),
        written=written,
        overwritten=overwritten,
        moves=not name.startswith("resize") and (torch.Tag.inplace_view in func.tags or name in _MOVES),
        sized=frozenset(at for at, a in enumerate(schema.arguments) if a.name in sizes),
        chance=next((at for at, a in enumerate(schema.arguments) if a.name == "dropout_p"), -1),
        selects=name in _SELECTS,
        grows=grows,
        special=special,
        views=bool(schema.returns)
        and all(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns),
        strided=name in _STRIDED,
        structural=not (written or grows or special or name in _STRIDED) and rule not in BY_VALUE,
        declared=full if full in DECLARED else "",
        composite=full not in DECLARED and func._can_decompose(),
        **known,
    )


def _is_pointwise(name: str) -> bool:
    """Whether the out-of-place form of an operation is tagged pointwise."""
    packet = getattr(torch.ops.aten, name.removesuffix("_").removeprefix("_foreach_"), None)
    return packet is not None and any(
        torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads()
    )
