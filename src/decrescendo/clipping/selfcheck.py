"""The self-check: recorded gradients are autograd's, and no example sees another."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from decrescendo.clipping.batches import count_rows, map_rows, select_rows
from decrescendo.clipping.clipped import Batch, Loss
from decrescendo.clipping.inventory import Inventory
from decrescendo.clipping.layout import Layout
from decrescendo.clipping.means import Means
from decrescendo.clipping.memory import RandomStates
from decrescendo.clipping.passes import Forward, Pass, eager, finish, forward, output_gradients
from decrescendo.clipping.precision import exact_products, full_precision
from decrescendo.clipping.quiet import Quiet, QuietPacked
from decrescendo.clipping.recording import Decision
from decrescendo.errors import UnsupportedModel

FACTOR = 1.3
_REMEDY = (
    "Replace batch normalisation by GroupNorm, pad to a fixed length, and let row i of the losses depend "
    "on row i "
    "of the batch only"
)


def self_check(
    model: nn.Module,
    loss: Loss,
    batch: Batch,
    hints: tuple[Decision, ...],
    means: Means,
    *,
    alone: bool = True,
) -> Pass | None:
    """Refuse a model that the engine would get wrong; return the accepted pass, or ``None`` if undecided.

    ``alone`` compares the losses of some rows without the others; where the examples are in each output, and
    that the sums are autograd's, is looked at in any case.

    Undecided: some gradient is not finite, or there is one example only, so that there is nobody to mix it
    with. Buffers and random states are restored; nothing of the model is changed.

    Raises:
        UnsupportedModel: a sum that is not autograd's, or examples that see each other.
    """
    rows = count_rows(batch)
    # Compared at full precision: what coarser products (TF32) lose would look like a misread gradient.
    with restored(model), exact_products():
        seen, gradients, unseen, first = _resolved(model, loss, batch, rows, hints, means)
        done = finish(seen, rows, gradients)
        done.unseen = unseen
        with full_precision(), _blaming(first, seen.decisions):
            norms = done.squares()
        finite = torch.stack([torch.isfinite(square).cpu() for square in norms.values()]).all(0)
        if bool(finite.all()):
            # Under autocast the outputs have fewer digits than the parameters.
            known = [gradient.dtype for gradient in gradients if gradient is not None]
            loosest = max([*known, seen.losses.dtype], key=_tolerance)
            _check_sums(model, loss, batch, seen, done, norms, loosest)
            if alone and rows > 1:
                packed = any(decision.kind == "packed" for decision in seen.decisions)
                _check_alone(_Looked(model, loss, rows, means, packed), batch, seen, norms, loosest)
            return done
    # Nothing can be compared with a gradient that is not finite: the other examples are checked without it.
    if int(finite.sum()) < 2:
        return None
    kept = select_rows(batch, finite.nonzero().squeeze(1))
    return self_check(model, loss, kept, hints, means, alone=alone)


def _resolved(
    model: nn.Module, loss: Loss, batch: Batch, rows: int, hints: tuple[Decision, ...], means: Means
) -> tuple[Forward, list[Tensor | None], frozenset[int], Decision | None]:
    """A pass in which weighting the losses weights the rows of output gradients: the layouts are right.

    With its output gradients, the uses they say too little of, and the first operation whose layout was wrong.
    """
    first: Decision | None = None
    while True:
        with random_state_kept(model), _blaming(first, hints):
            seen = forward(model, loss, _copied(batch), rows, hints, means)
        plain = output_gradients(seen.losses, None, seen.uses, keep=True)
        if rows == 1:
            return seen, plain, frozenset(), None
        weights = _weights(rows, seen.losses)
        weighted = output_gradients(seen.losses, weights, seen.uses, keep=True)
        wrong = _misplaced(seen, plain, weighted, None, weights)
        if wrong:
            # What one factor for all examples leaves of a difference is rounding.
            uniform = output_gradients(seen.losses, torch.full_like(weights, FACTOR), seen.uses, keep=True)
            wrong = _misplaced(seen, plain, weighted, uniform, weights)
        if not wrong:
            return seen, plain, _unseen(seen, plain, weighted, weights), first
        # The first in forward order: what is wrong upstream may be a consequence of it only downstream.
        first = first or seen.decisions[wrong[0]]
        hints = _next(seen.decisions, wrong)


def _unseen(
    seen: Forward, plain: list[Tensor | None], weighted: list[Tensor | None], weights: Tensor
) -> frozenset[int]:
    """Uses whose gradients say too little: zero in all rows but one, or in agreement with another layout too.

    Behind a last layer that starts at zero every gradient is zero, and every layout and any mixing would pass.
    """
    found: set[int] = set()
    for decision in seen.decisions:
        if decision.use is None:
            continue
        use, first, second = seen.uses[decision.use], plain[decision.use], weighted[decision.use]
        if first is None or second is None:
            found.add(decision.use)
            continue
        rows = use.layout.split_gradient(first)
        rows = rows.reshape(rows.shape[0], -1)
        known = (use.layout.kind, "shared", "packed")
        others = [Layout(kind, use.layout.batch) for kind in decision.options if kind not in known]
        if int((rows != 0).any(1).sum()) < 2 or any(
            _scaled(layout, first, second, None, weights) for layout in others
        ):
            found.add(decision.use)
    return frozenset(found)


def _misplaced(
    seen: Forward,
    plain: list[Tensor | None],
    weighted: list[Tensor | None],
    uniform: list[Tensor | None] | None,
    weights: Tensor,
) -> list[int]:
    """The decisions whose layout does not fit: weighting the losses did not weight the rows of their outputs."""
    return [
        order
        for order, decision in enumerate(seen.decisions)
        if decision.use is not None
        and not _scaled(
            seen.uses[decision.use].layout,
            plain[decision.use],
            weighted[decision.use],
            None if uniform is None else uniform[decision.use],
            weights,
        )
    ]


def _next(decisions: tuple[Decision, ...], wrong: list[int]) -> tuple[Decision, ...]:
    """The same decisions with the next possible layout for one wrong operation."""
    for order in wrong:
        decision = decisions[order]
        if len(decision.options) > 1:
            following = decision.options[1]
            moved = Decision(decision.name, decision.roots, following, decision.options[1:], None)
            return (*decisions[:order], moved)
    raise UnsupportedModel(_interact(decisions[wrong[0]]))


@contextmanager
def _blaming(first: Decision | None, decisions: tuple[Decision, ...]) -> Generator[None]:
    """Where no place for the examples was right in ``first``, what goes wrong later is not what is wrong."""
    try:
        yield
    except UnsupportedModel as error:
        if first is None or not any(
            decision.kind == "shared" and (decision.name, decision.roots) == (first.name, first.roots)
            for decision in decisions
        ):
            raise
        raise UnsupportedModel(_interact(first)) from error


def _interact(decision: Decision) -> str:
    return (
        "no example's loss may depend on another example, got rows that interact behind "
        f"{decision.name} with {', '.join(decision.roots)}. {_REMEDY}"
    )


def _scaled(
    layout: Layout, plain: Tensor | None, weighted: Tensor | None, uniform: Tensor | None, weights: Tensor
) -> bool:
    """Whether weighting the losses weighted the rows of an output gradient, up to its own rounding."""
    if plain is None or weighted is None or plain.numel() == 0:
        return True
    first, second = layout.split(plain), layout.split(weighted)
    expected = first * weights.to(first.dtype).reshape(-1, *[1] * (first.dim() - 1))
    if not bool(torch.isfinite(second).all()):
        return True
    error = float((second - expected).abs().max())
    rounding = 0.0 if uniform is None else float((uniform - FACTOR * plain).abs().max())
    return error <= _tolerance(second.dtype) * float(expected.abs().max()) + 8 * rounding


def _check_sums(
    model: nn.Module,
    loss: Loss,
    batch: Batch,
    seen: Forward,
    done: Pass,
    norms: dict[str, Tensor],
    computed: torch.dtype,
) -> None:
    """Against a forward pass that was not recorded: some operations are replaced while recording."""
    parameters = seen.parameters
    with torch.enable_grad(), eager(), random_state_kept(model):
        losses = loss(model, _copied(batch))
    _compare_recorded(seen.losses.detach(), losses.detach(), computed)
    expected = torch.autograd.grad(
        losses, list(parameters.values()), torch.ones_like(losses), materialize_grads=True
    )
    ones = torch.ones(seen.losses.shape[0], dtype=done.measured.dtype, device=seen.losses.device)
    with full_precision():
        recorded = done.measured.weighted_sums(ones)
    everything = float(torch.stack([square.cpu() for square in norms.values()]).sum(0).sqrt().sum())
    for (name, parameter), gradient in zip(parameters.items(), expected, strict=True):
        error = float((recorded[name] - gradient).norm())
        scale = float(norms[name].sqrt().sum()) + float(gradient.norm())
        # A gradient that cancels to zero (a bias before a normalisation) is rounding of the rest.
        dtype = max((computed, parameter.dtype), key=_tolerance)
        if not error <= _tolerance(dtype) * scale + 16 * torch.finfo(dtype).eps * everything:
            raise UnsupportedModel(
                f"the recorded gradient of every parameter must equal autograd's, got {name} with a "
                "relative error of "
                f"{error / max(scale, 1e-300):.1e}. A hook on it, or an operation that the engine misreads? "
                "Freeze it, or write that part with ordinary torch operations"
            )


def _compare_recorded(
    recorded: Float[Tensor, " batch"], plain: Float[Tensor, " batch"], computed: torch.dtype
) -> None:
    scale = plain.abs() + plain.abs().mean()
    error = (recorded - plain).abs()
    if bool((error > _tolerance(max((computed, plain.dtype), key=_tolerance)) * scale).any()):
        raise UnsupportedModel(
            "recording must not change a loss, got losses that moved by "
            f"{float((error / scale.clamp(min=1e-300)).max()):.1e}. Is there randomness that torch's global generator "
            "does not give, or a model that counts its calls? Leave it out of the loss"
        )


@dataclass(frozen=True, slots=True)
class _Looked:
    """What a pass over some rows gives: losses, and norms by parameter."""

    model: nn.Module
    loss: Loss
    rows: int
    means: Means
    packed: bool

    def at(
        self, batch: Batch, decisions: tuple[Decision, ...]
    ) -> tuple[Float[Tensor, " batch"], dict[str, Tensor]]:
        loss = _quiet(self.loss) if self.packed else self.loss
        seen = forward(self.model, loss, batch, self.rows, decisions, self.means)
        done = finish(seen, self.rows, output_gradients(seen.losses, None, seen.uses))
        with full_precision():
            return done.losses, done.squares()


def _quiet(loss: Loss) -> Loss:
    """The loss without dropout in packed layers: masks fall on other rows there when other lengths change."""

    def calm(model: nn.Module, batch: Batch) -> Tensor:
        # Inside of the recorder, which replaces these layers.
        with QuietPacked():
            return loss(model, batch)

    return calm


def _check_alone(
    looked: _Looked, batch: Batch, seen: Forward, norms: dict[str, Tensor], computed: torch.dtype
) -> None:
    """Losses and gradients of some rows must not move when the other rows are exchanged, or left away.

    Gradients too: behind weights that start at zero no loss says what is mixed, but the weights' gradients do.
    """
    model, loss, rows = looked.model, looked.loss, looked.rows
    index = torch.arange(rows)
    half = (rows + 1) // 2
    drew = False
    whole = seen.losses.detach()
    if looked.packed:
        with random_state_kept(model):
            whole, norms = looked.at(_copied(batch), seen.decisions)
    for kept in (index < half, index >= half):
        chosen = index[kept]
        exchanged = torch.where(kept, index, chosen[index % len(chosen)])
        # The same random numbers for the same shapes: a model with dropout is compared with itself.
        with random_state_kept(model):
            before = RandomStates.of(Inventory.of(model))
            losses, others = looked.at(select_rows(batch, exchanged), seen.decisions)
            drew = drew or not before.are_now(Inventory.of(model))
        _compare(whole[chosen], losses[chosen], "the other rows were exchanged", computed)
        _compare_norms(norms, others, chosen, computed)
    chosen = index[:half]
    if not drew and not looked.packed:
        _compare(
            whole[chosen],
            _losses(model, loss, select_rows(batch, chosen)),
            "the other rows were left away",
            computed,
        )
        return
    with Quiet():
        calm = _losses(model, loss, batch)
        with random_state_kept(model):
            torch.manual_seed(20_260_101)
            again = _losses(model, loss, batch, keep=False)
        if not torch.equal(calm, again):
            return  # random beyond dropout: a smaller batch draws other numbers and cannot be compared
        _compare(
            calm[chosen],
            _losses(model, loss, select_rows(batch, chosen)),
            "the other rows were left away",
            computed,
        )


def _compare(
    whole: Float[Tensor, " kept"], other: Float[Tensor, " kept"], change: str, computed: torch.dtype
) -> None:
    scale = whole.abs() + whole.abs().mean()
    error = (whole - other).abs()
    both = torch.isfinite(whole) & torch.isfinite(other)
    if bool((error[both] > _tolerance(max((computed, whole.dtype), key=_tolerance)) * scale[both]).any()):
        worst = float((error[both] / scale[both].clamp(min=1e-300)).max())
        raise UnsupportedModel(
            f"no example's loss may depend on another example, got losses that moved by {worst:.1e} when "
            f"{change}. "
            f"{_REMEDY}"
        )


def _compare_norms(
    whole: dict[str, Tensor], other: dict[str, Tensor], chosen: Tensor, computed: torch.dtype
) -> None:
    """Each parameter's per-example norms, in proportion to the norm over all parameters."""
    joint = torch.stack([square.cpu() for square in whole.values()]).sum(0).sqrt()
    scale = (joint + joint.mean())[chosen].clamp(min=1e-300)
    for name, squares in whole.items():
        error = (squares.cpu().sqrt() - other[name].cpu().sqrt()).abs()[chosen] / scale
        # Norms are upper bounds: where a gradient cancels they may differ by a little more than losses do.
        if bool((error > 4 * _tolerance(max((computed, squares.dtype), key=_tolerance))).any()):
            raise UnsupportedModel(
                f"no example's gradient may depend on another example, got norms of {name} that moved by "
                f"{float(error.nan_to_num(0).max()):.1e} when the other rows were exchanged. {_REMEDY}"
            )


def _losses(model: nn.Module, loss: Loss, batch: Batch, *, keep: bool = True) -> Float[Tensor, " batch"]:
    with torch.no_grad(), eager():
        if not keep:
            return loss(model, _copied(batch)).detach()
        with random_state_kept(model):
            return loss(model, _copied(batch)).detach()


def _copied(batch: Batch) -> Batch:
    return map_rows(torch.clone, batch)


def _weights(rows: int, losses: Tensor) -> Float[Tensor, " batch"]:
    generator = torch.Generator().manual_seed(7)
    return (torch.rand(rows, generator=generator) + 0.5).to(losses)


def _tolerance(dtype: torch.dtype) -> float:
    wide, usual = (torch.float64, torch.complex128), (torch.float32, torch.complex64)
    return 1e-8 if dtype in wide else 2e-4 if dtype in usual else 5e-2


@contextmanager
def random_state_kept(model: nn.Module) -> Generator[None]:
    """The global random states afterwards are those from before: a check is not part of the training."""
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        yield


@contextmanager
def restored(model: nn.Module) -> Generator[None]:
    """Buffers afterwards hold what they held before, also after a refusal."""
    before = {name: (buffer, buffer.detach().clone()) for name, buffer in model.named_buffers()}
    with random_state_kept(model):
        try:
            yield
        finally:
            for buffer, value in before.values():
                if not torch.equal(buffer, value):
                    with torch.no_grad():
                        buffer.copy_(value)
