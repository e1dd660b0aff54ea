"""LSTM, GRU and simple recurrent layers: one recorded use per weight matrix.

The layers of torch are one operation each. Here the same outputs come from a pass through time that keeps the state
before each step. Then every weight is that of a linear layer over positions: input to gates with the inputs, hidden to
gates with the states before each step, projection with what is projected, and one pass back through time gives the
gradients at their outputs. Their rule is that of linear layers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from decrescendo.base.storages import paused
from decrescendo.clipping.clipped import accumulator
from decrescendo.clipping.layout import Layout
from decrescendo.clipping.recurrent.packed import PackedKernel
from decrescendo.clipping.recurrent.padding import sizes_of
from decrescendo.clipping.recurrent.recurrence import Recurrence, full_precision, named_weights
from decrescendo.clipping.recurrent.scan import Mode, Steps, Weights
from decrescendo.clipping.recurrent.scan_functions import Scan, tap_of
from decrescendo.clipping.rules.linear import LinearKernel
from decrescendo.clipping.rules.rule import Kernel
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.tracing import Mixed, Owners, RowLayout, check_counted

if TYPE_CHECKING:
    from decrescendo.clipping.recording import Recorder

MODES: dict[Callable[..., Any], Mode] = {
    torch.lstm: "lstm",
    torch.gru: "gru",
    torch.rnn_tanh: "tanh",
    torch.rnn_relu: "relu",
}
_SETTINGS = ("has_biases", "num_layers", "dropout", "train", "bidirectional")
_PADDED = ("input", "hx", "params", *_SETTINGS, "batch_first")
_PACKED = ("data", "batch_sizes", "hx", "params", *_SETTINGS)


def run_recurrent(
    recorder: "Recorder", func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """The result of ``func`` (torch.lstm, ..), with the uses of its trainable weights recorded.

    Raises:
        UnsupportedModel: weights or first states from which examples cannot be told apart, or data packed unseen.
    """
    is_packed = "batch_sizes" in kwargs or (len(args) > 3 and not isinstance(args[3], bool))
    bound = dict(zip(_PACKED if is_packed else _PADDED, args, strict=False)) | dict(kwargs)
    given: Tensor = bound["data"] if is_packed else bound["input"]
    if given.dim() != (2 if is_packed else 3) or given.numel() == 0:
        return func(*args, **kwargs)  # torch raises the error
    mode, name = MODES[func], getattr(func, "__name__", "recurrent layer")
    states: tuple[Tensor, ...] = tuple(bound["hx"]) if mode == "lstm" else (bound["hx"],)
    weights = cast("Sequence[Tensor]", bound["params"])
    _check(recorder, name, states, weights)
    numbers = tuple(value for value in bound.values() if isinstance(value, (bool, int, float)))
    recorder.tracer.consume(name, given, *states, *weights, numbers=numbers)
    label = recorder.tracer.label(given)
    turned = not is_packed and not bound["batch_first"]
    if isinstance(label, Mixed) or (isinstance(label, RowLayout) and label.dim != (1 if turned else 0)):
        why = label.why if isinstance(label, Mixed) else "the steps are those of the examples"
        raise UnsupportedModel(
            f"a recurrent layer must have one sequence per example, or the same number for each, got {name} of which "
            f"{why}. Is batch_first right?"
        )
    packing = None
    if is_packed:
        if not isinstance(label, RowLayout):
            check_counted(recorder.tracer, func, args, kwargs)
            return func(*args, **kwargs)
        sizes = sizes_of(recorder.tracer, label, bound["batch_sizes"])
        with paused():
            every = torch.arange(recorder.tracer.count, device=given.device)
            owners = label.owners or Owners(torch.cat([every[:size] for size in sizes]))
        packing = recorder.layouts.packing(owners, given.device, sizes)
    elif not isinstance(label, RowLayout):
        label = RowLayout(1 if turned else 0)  # a constant beside states of the examples
    sequences = packing.sizes[0] if packing is not None else given.shape[1 if turned else 0]
    if any(state.dim() != 3 or state.shape[1] != sequences for state in states):
        return func(*args, **kwargs)
    place = label.moved(0)
    with paused():
        ranks = (
            place
            if packing is None
            else recorder.tracer.owners(0, packing.order // (sequences // recorder.tracer.count))
        )
    moved = packing if place.owners is None or is_packed else recorder.layouts.packing(place.owners, given.device)
    layout = Layout.of(place, recorder.tracer.count, moved)
    run = _Run(recorder, name, mode, layout, ranks, Steps(packing.sizes if packing else None), turned)
    dtype = _output_dtype(func, bound, is_packed)
    wide = accumulator(given.dtype)
    with full_precision(given):
        first = [state.to(wide).unbind(0) for state in states]
        outputs, last = run.layers(given.to(wide), first, weights, bound)
    if not is_packed:
        outputs = _laid(outputs, by_steps=turned)
    return (outputs.to(dtype), *(torch.stack(state).to(dtype) for state in last))


def _laid(outputs: Tensor, *, by_steps: bool) -> Tensor:
    """Outputs in the memory layout of torch's layers: step by step, whatever ``batch_first`` is."""
    return outputs.contiguous() if by_steps else outputs.transpose(0, 1).contiguous().transpose(0, 1)


@dataclass(frozen=True, slots=True)
class _Run:
    """One call of a recurrent operation. ``turned``: the length comes before the sequences."""

    recorder: "Recorder"
    name: str
    mode: Mode
    layout: Layout
    ranks: RowLayout
    steps: Steps
    turned: bool

    def layers(
        self,
        inputs: Tensor,
        first: Sequence[Sequence[Tensor]],
        weights: Sequence[Tensor],
        bound: Mapping[str, Any],
    ) -> tuple[Tensor, list[list[Tensor]]]:
        """Run all layers; returns the outputs, and the last states of each layer and direction."""
        directions, layers = 1 + bool(bound["bidirectional"]), bound["num_layers"]
        each = len(weights) // (layers * directions)
        last: list[list[Tensor]] = [[] for _ in first]
        for layer in range(layers):
            outputs: list[Tensor] = []
            for direction in range(directions):
                at = layer * directions + direction
                output, *ends = self.direction(
                    inputs,
                    [state[at] for state in first],
                    named_weights(weights[at * each : (at + 1) * each], biases=bound["has_biases"]),
                    reverse=direction == 1,
                )
                outputs.append(output)
                for states, end in zip(last, ends, strict=True):
                    states.append(end)
            inputs = outputs[0] if directions == 1 else torch.cat(outputs, -1)
            if bound["dropout"] and bound["train"] and layer < layers - 1:
                inputs = self.dropped(inputs, bound["dropout"])
        return inputs, last

    def dropped(self, outputs: Tensor, probability: float) -> Tensor:
        """Dropout between layers, with the mask that torch's own layer draws: it goes by steps, then sequences."""
        if self.turned or self.steps.packed is not None:
            return functional.dropout(outputs.contiguous(), probability, training=True)
        by_steps = outputs.transpose(0, 1).contiguous()
        return functional.dropout(by_steps, probability, training=True).transpose(0, 1).contiguous()

    def view(self, tensor: Tensor) -> Tensor:
        """A tensor in the layout of the user's inputs as (sequences, length, ...); packed data as it is."""
        return tensor.transpose(0, 1) if self.turned else tensor

    def direction(
        self, inputs: Tensor, first: list[Tensor], weights: Mapping[str, Tensor], *, reverse: bool
    ) -> tuple[Tensor, ...]:
        """Run one layer in one direction; returns the outputs, and the last states."""
        plain = {role: weight.detach().to(inputs.dtype) for role, weight in weights.items()}
        bias, back_bias = plain.get("bias"), plain.get("back bias")
        if self.mode != "gru" and bias is not None and back_bias is not None:
            bias = bias + back_bias
        gates = self.view(functional.linear(inputs, plain["weight"], bias))
        fed_back = Weights(plain["back weight"], back_bias, plain.get("projection"))
        layer = Recurrence(
            self.mode, fed_back, self.steps, reverse, self.recorder.tracer, self.layout.place, self.ranks
        )
        # Weights whose other factor is the inputs, the state before each step, the unprojected output.
        groups: list[tuple[str, ...]] = [("weight", "bias"), ("back weight", "back bias"), ("projection",)]
        if self.mode != "gru":
            groups = [("weight", "bias", "back bias"), ("back weight",), ("projection",)]
        on = torch.is_grad_enabled()
        used = [
            {
                role: weights[role]
                for role in roles
                if on and role in weights and weights[role] in self.recorder.tracking
            }
            for roles in groups
        ]
        width = gates.shape[-1]
        if self.mode == "gru":
            taps = [tap_of(gates, width, used[0]), tap_of(gates, width, used[1])]
        else:
            taps = [tap_of(gates, width, {**used[0], **used[1]}), None]
        taps.append(tap_of(gates, fed_back.hidden.shape[1], used[2]))
        made = cast("tuple[Tensor, ...]", Scan.apply(layer, gates, *taps, *first, *[None] * (2 - len(first))))
        trace = layer.trace
        assert trace is not None
        factors = (self.view(inputs).detach(), trace.before, trace.unprojected)
        at = (taps[0], taps[1] if self.mode == "gru" else taps[0], taps[2])
        for number, (slots, factor, tap) in enumerate(zip(used, factors, at, strict=True)):
            if slots and factor is not None and tap is not None:
                # A program can write to the inputs, but not to these copies of states.
                saved = (inputs,) if number == 0 and "weight" in slots else ()
                self.attach(slots, factor, tap, saved)
        return (self.view(made[0]), *made[1:])

    def attach(
        self,
        slots: Mapping[str, Tensor],
        factor: Tensor,
        tap: Tensor,
        saved: tuple[Tensor, ...],
    ) -> None:
        """Note that ``slots`` are the weights and biases of a linear layer from ``factor`` to ``tap``."""
        roles = tuple("bias" if role.endswith("bias") else "weight" for role in slots)
        parameters = tuple(slots.values())

        packing, workspace = self.layout.packing, self.recorder.workspace
        if packing is not None and packing.sizes[:1] == (self.layout.batch,):
            kernel: Kernel = PackedKernel(roles, parameters, saved, factor, packing, workspace)
        else:
            with paused():
                split = self.layout.split(factor)
                positions = split.reshape(split.shape[0], -1, split.shape[-1])
            kernel = LinearKernel(roles, parameters, saved, positions, transposed=False, workspace=workspace)
        self.recorder.attach(self.name, tap, parameters, self.layout, kernel)


def _check(recorder: "Recorder", name: str, states: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    if any(state in recorder.tracking for state in states):
        raise UnsupportedModel(
            f"a trainable first state must have one copy an example, got {name} with a parameter itself as a state. "
            "Expand it to the batch: state.expand(-1, batch, -1)"
        )
    if any(weight.requires_grad and weight not in recorder.tracking for weight in weights):
        raise UnsupportedModel(
            f"the weights of a recurrent layer must be made from parameters alone, got {name} with weights that depend "
            "on data. Detach them, or write the layer with ordinary torch operations"
        )


def _output_dtype(func: Callable[..., Any], bound: Mapping[str, Any], is_packed: bool) -> torch.dtype:
    """What torch's own layer returns; under autocast that depends on its kernels, so one step of it is run."""
    given: Tensor = bound["data"] if is_packed else bound["input"]
    if not torch.is_autocast_enabled(given.device.type):
        return given.dtype
    states = bound["hx"]
    one = tuple(s[:, :1] for s in states) if isinstance(states, (tuple, list)) else states[:, :1]
    settings = [bound[key] for key in ("params", "has_biases", "num_layers")]
    with torch.no_grad():
        if is_packed:
            first = (given[:1], torch.ones(1, dtype=torch.long, device="cpu"), one)
            return func(*first, *settings, 0.0, False, bound["bidirectional"])[0].dtype
        return func(given[:1, :1], one, *settings, 0.0, False, bound["bidirectional"], True)[0].dtype
