"""The judge: the slow loop over examples alone, and what an engine did beside it.

The slow loop knows autograd only. ``harm`` shows, without any engine, that a program is hostile; ``judge`` and
``exact`` look at what an engine returned.
"""

import copy
import warnings
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from corpus.program import Program

# The engine: a fresh one for a model and a loss, then the sum over a batch at a clip norm.
Sum = Callable[[Any, float], Mapping[str, Tensor]]
Opener = Callable[[nn.Module, Any], Sum]


def rows(batch: Any, which: Any) -> Any:
    """The same rows of every leaf."""
    if isinstance(batch, Tensor):
        return batch[which]
    if isinstance(batch, Mapping):
        return {key: rows(value, which) for key, value in batch.items()}
    return type(batch)(rows(value, which) for value in batch)


def count(batch: Any) -> int:
    if isinstance(batch, Tensor):
        return len(batch)
    return count(next(iter(batch.values() if isinstance(batch, Mapping) else batch)))


def _copied(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.detach().clone()
    if isinstance(batch, Mapping):
        return {key: _copied(value) for key, value in batch.items()}
    return type(batch)(_copied(value) for value in batch)


@contextmanager
def quiet() -> Any:
    """No warnings of the programs, and torch's generators as they were afterwards."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(7)  # `torch.manual_seed` writes down the stack, for CUDA
        yield


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def gradient(model: nn.Module, losses: Tensor, keep: bool = False) -> Tensor:
    """The gradient of the sum of ``losses`` as ``backward`` leaves it: one vector in float64."""
    trained = _trained(model)
    for p in trained.values():
        p.grad = None
    losses.sum().backward(retain_graph=keep)
    found = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in trained.items()}
    for p in trained.values():
        p.grad = None
    return vector(found)


def vector(gradients: Mapping[str, Tensor]) -> Tensor:
    """All of them in the order of their names."""
    flat = [(g.to_dense() if g.is_sparse else g).detach().flatten() for _, g in sorted(gradients.items())]
    return torch.cat(flat).to(torch.float64) if flat else torch.zeros(0, dtype=torch.float64)


def clipped(parts: Tensor, limit: float) -> Tensor:
    """The sum of the rows, each of norm at most ``limit``."""
    norms = parts.norm(dim=1, keepdim=True)
    return (parts * (limit / norms.clamp(min=1e-300)).clamp(max=1.0)).sum(0)


def fresh(program: Program, later: bool) -> tuple[nn.Module, Any]:
    model, loss = program.build()
    if later and program.late is not None:
        program.late(model, loss)
    return model, loss


class Truth:
    """Of every batch the gradient of each example alone, one a row, found when it is asked for.

    A hostile program's model is made afresh for each example, so that none sees what another left behind.
    """

    def __init__(self, program: Program, afresh: bool) -> None:
        self._program, self._afresh = program, afresh
        self._found: dict[int, Tensor | None] = {}

    def __getitem__(self, k: int) -> Tensor | None:
        """None where an example's gradient is not finite or cannot be computed."""
        if k not in self._found:
            with quiet():
                self._found[k] = self._alone(k)
        return self._found[k]

    def _alone(self, k: int) -> Tensor | None:
        batch, parts = self._program.batches()[k], []
        model, loss = fresh(self._program, later=k > 0)
        for i in range(count(batch)):
            if self._afresh and i:
                model, loss = fresh(self._program, later=k > 0)
            try:
                parts.append(gradient(model, loss(model, _copied(rows(batch, slice(i, i + 1))))))
            except Exception:  # whatever a program does with one row: then there is no truth
                return None
        found = torch.stack(parts)
        return found if bool(found.isfinite().all()) else None

    @property
    def clip_norm(self) -> float:
        """So that about half of the first batch's examples are clipped."""
        parts = self[0]
        return 1.0 if parts is None else max(float(parts.norm(dim=1).median()), 1e-3)


def portrait(model: nn.Module) -> dict[str, Any]:
    """Every value that training could publish."""
    found: dict[str, Any] = {}
    for name, p in [*model.named_parameters(), *model.named_buffers()]:
        found[name] = p.detach().clone()
        found[f"gradient of {name}"] = None if p.grad is None else p.grad.clone()
    for name, value in model.state_dict().items():
        if name not in found:
            found[f"{name} in the state"] = copy.deepcopy(value)
    return found


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other) or torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
    return repr(one) == repr(other)


def changed(model: nn.Module, before: Mapping[str, Any]) -> list[str]:
    """What is not as in ``before``."""
    after = portrait(model)
    return sorted(
        name
        for name in after.keys() | before.keys()
        if name not in after or name not in before or not _same(after[name], before[name])
    )


def harm(program: Program, known: Truth) -> str | None:
    """Why the program is hostile in plain PyTorch: None if it is not seen to be.

    Losses with weights drawn at random show a row whose gradient is not what it is alone, and the plain sum what
    a backward pass does beyond that.
    """
    with quiet():
        model, loss = program.build()
        for k, batch in enumerate(program.batches()):
            parts, n = known[k], count(batch)
            if parts is None:
                return "an example alone has no gradient"
            before = portrait(model)
            try:
                losses = loss(model, _copied(batch))
                if losses.shape != (n,):
                    return f"losses of shape {tuple(losses.shape)}"
                if moved := changed(model, before):
                    return f"{moved[0]} changed"
                scale = max(float(parts.norm(dim=1).max()), 1e-6) * max(1e-3, program.tolerance)
                if not (gradient(model, losses, keep=True) - parts.sum(0)).norm() <= scale:
                    return f"not the sum of its {n} rows"
                draws = torch.rand(n, generator=torch.Generator().manual_seed(n)) + 0.5
                drawn = gradient(model, losses * draws, keep=True)
                if not (drawn - draws.double() @ parts).norm() <= scale:
                    for i in range(n):  # a hook may be no linear map and yet keep the rows apart
                        if not (gradient(model, losses[i], keep=True) - parts[i]).norm() <= scale:
                            return f"row {i} of {n} is not what it is alone"
            except Exception as error:  # whatever a program raises by itself
                return f"{type(error).__name__} in plain PyTorch"
            if moved := changed(model, before):
                return f"{moved[0]} changed"
            if k == 0 and program.late is not None:
                program.late(model, loss)
    return None


def _raises_by_itself(program: Program, error: Exception) -> bool:
    with quiet():
        try:
            model, loss = program.build()
            for k, batch in enumerate(program.batches()):
                gradient(model, loss(model, _copied(batch)))
                if k == 0 and program.late is not None:
                    program.late(model, loss)
        except Exception as own:
            return type(own) is type(error)
    return False


def _error(got: Tensor, parts: Tensor, limit: float, tolerance: float) -> float | None:
    """The error, relative to the sum of the clipped norms, if it is too great."""
    if got.shape != parts.shape[1:]:
        return float("inf")
    scale = float(parts.norm(dim=1).clamp(max=limit).sum())
    error = float((got - clipped(parts, limit)).norm())
    return None if error <= tolerance * scale else error / max(scale, 1e-12)


def judge(program: Program, known: Truth, opener: Opener, refusal: type[Exception]) -> tuple[bool, str]:
    """Whether a hostile program got nothing past the engine, and what happened."""
    limit = known.clip_norm
    with quiet():
        model, loss = program.build()
        before = portrait(model)
        try:
            run = opener(model, loss)
            for k, batch in enumerate(program.batches()):
                got, parts, n = vector(run(_copied(batch), limit)), known[k], count(batch)
                if parts is None:
                    return False, f"accepted {n} rows though an example alone has no gradient"
                error = _error(got, parts, limit, program.tolerance)
                if error is not None:
                    return False, f"wrong by {error:.1e} at {n} rows"
                if moved := changed(model, before):
                    return False, f"{moved[0]} changed"
                if k == 0 and program.late is not None:
                    program.late(model, loss)
                    before = portrait(model)
            for i in (n // 2,):
                fewer = [j for j in range(n) if j != i]
                less = vector(run(_copied(rows(batch, torch.tensor(fewer))), limit))
                if (moved_by := float((got - less).norm())) > 1.001 * limit:
                    return False, f"row {i} moves the sum by {moved_by / limit:.3f} C"
                if _error(less, parts[fewer], limit, program.tolerance) is not None:
                    return False, f"wrong without row {i}"
        except refusal as error:
            left = [name for name in changed(model, before) if name in before and "in the state" not in name]
            if left:  # what Python keeps elsewhere, no engine can put back
                return False, f"refused, but {left[0]} changed: {error}"
            return True, f"refused: {error}"
        except Exception as error:
            if _raises_by_itself(program, error):
                return True, f"raises by itself: {type(error).__name__}"
            return False, f"foreign {type(error).__name__}: {error}"
    return True, "exact"


def exact(program: Program, known: Truth, opener: Opener) -> tuple[bool, str]:
    """Whether the engine takes a benign program at every size and is right."""
    limit = known.clip_norm
    with quiet():
        try:
            model, loss = program.build()
            before, run = portrait(model), opener(model, loss)
            for k, batch in enumerate(program.batches()):
                parts = known[k]
                assert parts is not None, "no gradient alone"
                got = vector(run(_copied(batch), limit))
                error = _error(got, parts, limit, program.tolerance)
                if error is not None:
                    return False, f"wrong by {error:.1e} at {count(batch)} rows"
                if moved := changed(model, before):
                    return False, f"{moved[0]} changed"
        except Exception as error:
            return False, f"{type(error).__name__}: {error}"
    return True, "exact"
