"""Reads the schemas of torch operations: which arguments are tensors, which are written to, which are sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from decrescendo.row_independence.basic_rules import drawn, pointwise
from decrescendo.row_independence.library_rules import RULES as LIBRARIES
from decrescendo.row_independence.rule_signatures import Rule
from decrescendo.row_independence.rules import BY_VALUE, DECLARED, RULES

# Operations that return no tensor, and nothing that depends on the values in their arguments.
_SILENT = frozenset({"_fused_sdp_choice", "is_same_size", "sym_size", "sym_numel", "sym_stride", "dim", "is_pinned"})
# Operations that return numbers computed from the data beside tensors (other operations' numbers are sizes).
_MEASURES = frozenset({"fbgemm_linear_quantize_weight", "qlinear_unpack"})
REJECTING = frozenset({
    "poisson", "binomial", "_standard_gamma", "_sample_dirichlet", "rrelu_with_noise", "rrelu_with_noise_functional",
})  # fmt: skip
# Arguments that are sizes, shown by the result's shape and nothing else of it: they may grow in proportion to the
# number of examples. All other numbers must be equal in all passes (`linspace` hides its length in its entries).
_SIZES = frozenset({"size", "sizes", "input_size", "input_sizes", "bias_sizes"})
_SIZES_OF: dict[str, tuple[str, ...]] = {
    "repeat": ("repeats",), "eye": ("n", "m"), "multinomial": ("num_samples",), "randperm": ("n",), "arange": ("end",),
    "slice": ("start", "end"), "slice_backward": ("start", "end"), "split": ("split_size", "split_sizes"),
    "split_with_sizes": ("split_sizes",), "unsafe_split": ("split_size",), "native_group_norm": ("N",),
    "native_group_norm_backward": ("N",), "convolution": ("groups",), "convolution_backward": ("groups",),
    "empty_strided": ("stride",), "new_empty_strided": ("stride",),
}  # fmt: skip
# Operations whose integers were read from sequence lengths, which `DataReads.check_lists` checks.
_UNREAD = frozenset({"_ctc_loss", "_ctc_loss_backward"})
_STRIDED = frozenset({"as_strided", "_reshape_alias"})
_LIFTS = frozenset({"lift_fresh", "lift"})
_EMPTIES = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"})
_MOVES = frozenset({"set_", "requires_grad_", "detach_"})
_WRITES_HIDDEN = frozenset({
    "batch_norm_update_stats", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "batch_norm_with_update",
})  # fmt: skip
_SELECTS = frozenset({"index", "nonzero", "masked_select"})


@dataclass(frozen=True, slots=True)
class Operation:
    """The facts that the tracer uses about one overload of a torch operation."""

    namespace: str
    name: str
    # torch's signature, "namespace::name.overload(arguments) -> outputs".
    form: str
    rule: Rule | None
    arguments: tuple[str, ...]
    defaults: dict[str, Any]
    # Position and name of the arguments that hold tensors, without those that are only written to.
    tensors: tuple[tuple[int, str], ...]
    written: tuple[str, ...]
    # Arguments that are written to and keep nothing of their old values.
    overwritten: frozenset[str]
    moves: bool
    reads: bool
    # The positions of the arguments that are sizes.
    sized: frozenset[int]
    seeded: bool
    # Rejection sampling: how many random numbers are drawn depends on the arguments' values.
    rejecting: bool
    # Position of the dropout probability among the arguments; -1 if there is none.
    dropout_at: int
    unread: bool
    lifts: bool
    empties: bool
    foreach: bool
    # Writes to arguments that its schema does not mark as written.
    writes_hidden: bool
    # Communicates with other processes: writes to memory unseen by the dispatcher.
    communicates: bool
    # The result has as many rows as its argument selects.
    selects: bool
    # The shape of the output depends on values in another way.
    dynamic_shape: bool
    # Whether one of the flags in `_describe`'s ``known`` is set, or `declared`.
    special: bool
    # All outputs are views of arguments.
    views: bool
    # Composite: autograd decomposes it into others; in inference mode it reaches the tracer whole.
    composite: bool
    # A view given by strides (and an offset) in memory.
    strided: bool
    # The outputs' row layouts follow from the arguments' alone: the rule reads no values.
    structural: bool
    # "namespace::name" if the user declared its rule (`register_rule`), else empty.
    declared: str

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call, by name."""
        return dict(zip(self.arguments, args, strict=False)) | dict(kwargs)


# By the ``id`` of the overload, which hashes faster than the overload.
_KNOWN: dict[int, Operation] = {}


def operation(func: Any) -> Operation:
    """The `Operation` of an overload, from a cache."""
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
        "writes_hidden": name in _WRITES_HIDDEN,
        "communicates": "c10d" in namespace or namespace == "symm_mem",
    }
    dynamic_shape = torch.Tag.dynamic_output_shape in func.tags and name not in _SELECTS
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
        dropout_at=next((at for at, a in enumerate(schema.arguments) if a.name == "dropout_p"), -1),
        selects=name in _SELECTS,
        dynamic_shape=dynamic_shape,
        special=special,
        views=bool(schema.returns)
        and all(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns),
        strided=name in _STRIDED,
        structural=not (written or dynamic_shape or special or name in _STRIDED) and rule not in BY_VALUE,
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
