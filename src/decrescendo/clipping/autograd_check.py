"""Compares the engine's losses, gradients and norms of a few examples with autograd's own."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from decrescendo.base.batches import Batch, map_rows
from decrescendo.base.precision import exact_products, full_precision
from decrescendo.clipping.clipped import Loss, split, trainable_of
from decrescendo.clipping.comparing import compare_losses, norm_of, steered, tolerance_of
from decrescendo.clipping.inventory import Inventory
from decrescendo.clipping.measured import Measured
from decrescendo.clipping.passes import Pass, eager
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.tracing import (
    Memory,
    Tracer,
    drawing,
    draws,
    labelled_rows,
    reads_a_number,
    rejects,
)

# Number of perturbed re-evaluations that estimate the rounding error where terms cancel.
_SHAKES = 3
# Examples that are also passed alone where Python asks for truth values of the data (``if x > 0``).
_ALONE = 8


@dataclass(slots=True)
class AutogradCheck:
    """Passes of one model and loss by plain autograd, which are compared with the engine's."""

    model: nn.Module
    loss: Loss
    memory: Memory
    held: Inventory
    # By the truth values that a pass was given: on how many examples alone they made no difference.
    idle: dict[tuple[bool, ...], int] = field(default_factory=dict[tuple[bool, ...], int])

    def compare_answers(self, batch: Batch, rows: int, done: Pass, seed: int) -> None:
        """Compare examples alone, which get their own truth values, with the batch, which gets others; or raise.

        This is about training the program's own loss: truth values that depend on no data reveal none.
        """
        tracer = done.tracer
        truths = tuple(tracer.reads.truths)
        if not tracer.reads.asked or self.idle.get(truths, 0) >= min(rows, _ALONE):
            return
        if rejects(tracer.trace):
            return  # an example alone draws other numbers
        squares = torch.stack([square.cpu() for square in done.squares().values()]).sum(0).sqrt()
        parameters = trainable_of(self.held)
        # Where numbers are drawn, a row of copies of the example draws what its row in the batch drew.
        copies = tracer.count if draws(tracer.trace) else 1
        for row in range(min(rows, _ALONE)):
            at = min(row, copies - 1)
            one = map_rows(lambda tensor: tensor[row : row + 1], batch)  # noqa: B023
            with torch.enable_grad():
                losses, scores = self._both(one, 1, copies, seed, tracer, exact=False)
                with tracer.stream.restored():
                    found = torch.autograd.grad(losses[at], list(parameters.values()), allow_unused=True)
            gradients = dict(zip(parameters, found, strict=True))
            norm = torch.stack([norm_of(one) for one in gradients.values() if one is not None]).norm()
            compare_losses(done.losses[row : row + 1], losses[at : at + 1].detach(), tracer.reads.asked)
            if done.scores is not None:
                own, alone = done.scores[row : row + 1].float(), cast("Tensor", scores)[at : at + 1].float()
                compare_losses(own, alone, tracer.reads.asked)
            if bool(torch.isfinite(norm)) and abs(float(squares[row] - norm)) > 0.01 * float(norm) + 1e-12:
                # A measured norm is an upper bound, far above the norm where the terms of a sum cancel.
                allowed = 0.01 * float(norm) + 2 * tolerance_of(tracer.coarsest) * float(squares[row])
                if not _distance(done, row, gradients) <= allowed:
                    raise UnsupportedModel(steered(tracer.reads.asked))
        self.idle[truths] = min(rows, _ALONE)

    def _plain(
        self, batch: Batch, rows: int, count: int, seed: int, recorded: Tracer, *, natural: bool = True
    ) -> Tensor:
        """The losses by plain autograd, without the recorder."""
        return self._both(batch, rows, count, seed, recorded, natural=natural)[0]

    def _both(
        self, batch: Batch, rows: int, count: int, seed: int, recorded: Tracer, *, natural: bool = True,
        exact: bool = True,
    ) -> tuple[Tensor, object]:  # fmt: skip
        """Losses, and perhaps scores, by plain autograd. Later passes must not read what the program keeps of this
        one, either."""
        tracer = Tracer(count, self.memory, seed, natural=natural, replays=recorded.trace)
        # ``h[mask] = weight`` selects rows here, and is `torch.where` where it is recorded: the same numbers are drawn.
        tracer.stream.reseeded = dict(recorded.stream.reseeded)
        try:
            with (
                drawing({p.device for p in self.held.parameters.values()}, seed),
                eager(),
                exact_products() if exact else nullcontext(),
                tracer,
            ):
                losses, scores = split(self.loss(self.model, labelled_rows(batch, rows, tracer)))
                return cast("Tensor", losses), scores
        finally:
            tracer.end()

    def compare(self, batch: Batch, rows: int, done: Pass, seed: int) -> None:
        """The engine's losses, gradients and norms of a few examples against autograd's own.

        Raises:
            UnsupportedModel: they are not the same.
        """
        parameters = trainable_of(self.held)
        # A program that reads numbers in Python gets no true ones here either: it could keep them.
        natural = not done.tracer.reads.poisoned

        def plain() -> tuple[Tensor, ...]:
            with torch.enable_grad():
                return self._plain(batch, rows, done.tracer.count, seed, done.tracer, natural=natural).unbind()

        each = plain()
        losses = torch.stack(each).detach()
        if done.tracer.reads.asked:
            return  # `compare_answers` compares examples alone
        self._compare_losses(losses, batch, rows, done, seed)
        dtypes = [losses.dtype, done.tracer.coarsest, *(p.dtype for p in parameters.values())]
        tolerance = 2 * max(map(tolerance_of, dtypes))
        with full_precision():
            squares = {name: found.sqrt() for name, found in done.squares().items()}
        for row in range(len(each)):
            try:
                found = _norms_and_errors(each[row], parameters, done, row)
            except RuntimeError:  # of a graph that allows one backward pass only (selective checkpoints)
                each = plain()
                found = _norms_and_errors(each[row], parameters, done, row)
            whole = math.hypot(*(norm for norm, _ in found.values()))
            if not math.isfinite(whole) or not all(torch.isfinite(norms[row]) for norms in squares.values()):
                continue  # such an example contributes zero
            for name, (norm, error) in found.items():
                # A gradient that cancels to zero (a bias before a normalisation) is rounding of the rest.
                # The measured norm is an upper bound, far above the norm where the terms of a sum cancel.
                measured = float(squares[name][row])
                allowed = tolerance * (max(norm, measured) + 0.02 * whole) + 1e-15
                if done.tracer.reads.poisoned and not error <= allowed:
                    raise UnsupportedModel(reads_a_number(done.tracer.reads.poisoned))
                if not error <= allowed or measured < norm - allowed:
                    allowed += self._moved_by_rounding(name, batch, rows, done, seed, row)
                if not error <= allowed or measured < norm - allowed:
                    raise UnsupportedModel(
                        f"an example's gradient must be autograd's, got {name} with an error of {error:.1e} and a "
                        f"norm of {measured:.6g} for {norm:.6g}. A hook on it, or an operation that the engine "
                        "misreads? Freeze it, or write that part with ordinary torch operations"
                    )

    def _compare_losses(self, losses: Tensor, batch: Batch, rows: int, done: Pass, seed: int) -> None:
        """Compare the recorded losses with plain ones; where terms cancel (a student equal to its teacher)
        differences are rounding."""
        try:
            compare_losses(done.losses, losses, [], done.tracer.coarsest)
        except UnsupportedModel:
            once, again, *others = self._with_rounding(lambda plain: plain, batch, rows, done, seed)
            moved = torch.stack([(other - once).abs() for other in others]).amax(0)
            error = (done.losses - losses).abs()
            if not torch.equal(once, again) or not bool((error <= 4 * moved).all()):
                raise

    def _moved_by_rounding(self, name: str, batch: Batch, rows: int, done: Pass, seed: int, row: int) -> float:
        """How far autograd's gradient of one parameter moves where data and weights move by a few rounding units.

        Where gradients of positions cancel, rounding is left, on which no two orders of a sum agree. A gradient that
        differs for the same data is no matter of rounding: then 0.
        """
        parameter = trainable_of(self.held)[name]

        def gradient(losses: Tensor) -> Tensor:
            with done.tracer.stream.restored():
                (found,) = torch.autograd.grad(losses[row], [parameter], allow_unused=True, materialize_grads=True)
            return found

        once, again, *others = self._with_rounding(gradient, batch, rows, done, seed)
        return 4 * max(float(norm_of(moved - once)) for moved in others) if torch.equal(once, again) else 0.0

    def _with_rounding(
        self, result_of: Callable[[Tensor], Tensor], batch: Batch, rows: int, done: Pass, seed: int
    ) -> list[Tensor]:
        """``look`` of the plain losses: twice unchanged, then with data and weights moved by a few rounding units (a
        student that is a copy of its teacher moves away from it by weights alone)."""
        dice = torch.Generator().manual_seed(0)
        held = trainable_of(self.held).values()
        parameters = [parameter for parameter in held if type(parameter) is nn.Parameter]  # not sharded

        def move(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor
            roundings = torch.randn(tensor.shape, generator=dice, device="cpu").to(tensor.device, tensor.dtype)
            return tensor + 4 * torch.finfo(tensor.dtype).eps * tensor * roundings

        def passed(given_rows: Batch) -> Tensor:
            with torch.enable_grad():
                return result_of(self._plain(given_rows, rows, done.tracer.count, seed, done.tracer)).detach()

        found = [passed(batch), passed(batch)]
        before = [parameter.detach().clone() for parameter in parameters]
        try:
            for _ in range(_SHAKES):
                for parameter, own in zip(parameters, before, strict=True):
                    parameter.data.copy_(move(own))  # unseen by autograd: earlier graphs are still used
                found.append(passed(map_rows(move, batch)))
        finally:
            for parameter, own in zip(parameters, before, strict=True):
                parameter.data.copy_(own)
        return found


def _distance(done: Pass, row: int, gradients: Mapping[str, Tensor | None]) -> float:
    """Of an example's gradient in a pass from these; ``None`` is 0."""
    one = torch.zeros_like(done.losses, dtype=done.measured.dtype)
    one[row] = 1
    measured, squares = _finite(done), list[float]()
    with full_precision(), torch.no_grad():
        for name, gradient in gradients.items():
            own = measured.scaled_sum(name, one)
            squares.append(float(norm_of(own if gradient is None else own - gradient)))
    return math.hypot(*squares)


def _finite(done: Pass) -> Measured:
    """What was measured, without examples that are not finite: 0 times infinity is NaN, and would spoil the others."""
    bad = ~torch.isfinite(torch.stack([square.cpu() for square in done.squares().values()]).sum(0))
    return done.measured.without_rows(bad) if bool(bad.any()) else done.measured


def _drop_empty_hooks(parameters: Iterable[nn.Parameter]) -> None:
    """Remove empty dicts of hooks: after `swap_tensors` torch does not call hooks that are added to such a dict."""
    for parameter in parameters:
        if not parameter._backward_hooks:
            parameter._backward_hooks = None


def _norms_and_errors(
    loss: Tensor, parameters: Mapping[str, nn.Parameter], done: Pass, row: int
) -> dict[str, tuple[float, float]]:
    """For each parameter: the norm of autograd's gradient of one loss, and the engine's distance from that gradient.

    Gradients are compared one by one, so that they are never all in memory.
    """
    one = torch.zeros_like(done.losses, dtype=done.measured.dtype)
    one[row] = 1
    measured = _finite(done)
    found: dict[str, tuple[float, float]] = {}

    def compare(name: str, gradient: Tensor) -> Tensor:
        with full_precision(), torch.no_grad():
            error = (measured.scaled_sum(name, one) - gradient).norm()
            found[name] = float(norm_of(gradient)), float(error)
        # Stands for the gradient in the rest of the backward pass, without memory of its own.
        return gradient if gradient.is_sparse else gradient.new_zeros(()).expand_as(gradient)

    _drop_empty_hooks(parameters.values())
    handles = [p.register_hook(functools.partial(compare, name)) for name, p in parameters.items()]
    try:
        with torch.enable_grad(), done.tracer.stream.restored():
            torch.autograd.grad(loss, list(parameters.values()), retain_graph=True, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
        _drop_empty_hooks(parameters.values())
    for name in parameters.keys() - found.keys():  # the loss does not depend on it
        found[name] = 0.0, float(measured.scaled_sum(name, one).norm())
    return found
