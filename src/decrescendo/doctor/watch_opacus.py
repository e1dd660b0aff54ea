"""Observes Opacus: what was asked for, what each step did, and what its accountants wrote down."""

import copy
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from decrescendo.doctor.data_sets import facts_of, same_rows
from decrescendo.doctor.events import user_frame, user_place, wrap
from decrescendo.doctor.loops import epochs_asked, named_numbers
from decrescendo.doctor.watch_torch import TorchWatch

_DIGEST = 8  # projections of each record's gradient
_LONG = 1000.0  # of each number of a long gradient
_LONGEST = 20_000  # steps of a schedule that are played ahead


class OpacusWatch:
    """What Opacus does for the user's training.

    Args:
        torch_watch: which is told that a step is Opacus'.
    """

    def __init__(self, torch_watch: TorchWatch) -> None:
        self._torch, self._events, self._neighbours = torch_watch, torch_watch.events, torch_watch.neighbours
        self._schedulers: list[tuple[Any, str, int]] = []
        self._ghosts: dict[int, Any] = {}
        self._nested = False
        self._looked = False

    def start(self) -> None:
        """Put the observers in; nothing if Opacus is not installed."""
        engine = importlib.import_module("opacus").PrivacyEngine
        for name in ("make_private", "make_private_with_epsilon"):
            wrap(engine, name, self._made)
        optimizer = importlib.import_module("opacus.optimizers").DPOptimizer
        _wrap_own(optimizer, add_noise=self._noised, clip_and_accumulate=self._clipped, step=self._stepped)
        accountant = importlib.import_module("opacus.accountants.accountant").IAccountant
        _wrap_own(accountant, step=self._counted, get_epsilon=self._asked, load_state_dict=self._restored)
        wrap(importlib.import_module("opacus.accountants.utils"), "get_noise_multiplier", self._calibrated)
        schedulers = importlib.import_module("opacus.schedulers")
        modules = (schedulers, *map(importlib.import_module, _modules_of(schedulers)))
        kind = next(filter(None, (vars(module).get("_NoiseScheduler") for module in modules)), None)
        if kind is not None:
            wrap(kind, "__init__", self._scheduled)

    def _made(self, make: Callable[..., Any], engine: Any, *args: Any, **kwargs: Any) -> Any:
        if self._nested:
            return make(engine, *args, **kwargs)
        self._nested = True
        try:
            result = make(engine, *args, **kwargs)
        finally:
            self._nested = False
        self._torch.private += 1
        optimizer = result[1]
        if "ghost" in kwargs.get("grad_sample_mode", ""):
            self._ghosts[id(optimizer)] = result[0]
        plain = {key: value for key, value in kwargs.items() if isinstance(value, str | bool | int | float)}
        rows = kwargs["data_loader"].dataset
        # As the last step without privacy left them, and two or more of its batches are of the private rows.
        trained = {id(p) for p, version in self._torch.early_weights.items() if p._version == version}
        kept = trained & set(map(id, result[0].parameters()))
        again = sum(same_rows(rows, data) for data in self._torch.early_data) > 1
        self._events.write("private", {
            "pretrained": bool(kept) and again, "names": named_numbers(user_frame()),
            "asked": plain, "given": facts_of(kwargs["data_loader"]), "made": facts_of(result[-1]),
            "optimizer": id(optimizer), "noise": optimizer.noise_multiplier, "accountant": id(engine.accountant),
            "history": list(engine.accountant.history),
        })  # fmt: skip
        return result

    def _calibrated(self, search: Callable[..., Any], **kwargs: Any) -> Any:
        noise = search(**kwargs)
        self._events.write("calibrated", {
            "noise": float(noise), "target_epsilon": float(kwargs["target_epsilon"]),
            "target_delta": float(kwargs["target_delta"]), "rate": float(kwargs["sample_rate"]),
            "epochs": kwargs.get("epochs"),
            "steps": kwargs.get("steps") or int(kwargs["epochs"] / kwargs["sample_rate"]),
        })  # fmt: skip
        return noise

    def _stepped(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._torch.inside = True
        try:
            return step(*args, **kwargs)
        finally:
            self._torch.inside = False

    def _clipped(self, clip: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if self._neighbours.waiting and not hasattr(optimizer, "doctor_rows"):  # the first part of the batch
            optimizer.doctor_rows = _digest(optimizer)
            if self._neighbours.role == "large":
                _lengthen_first(optimizer)
        return clip(optimizer, *args, **kwargs)

    def _noised(self, noise: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        clip = optimizer.max_grad_norm
        self._events.write("noise", {
            "noise": optimizer.noise_multiplier, "clip": clip, "optimizer": id(optimizer),
            "ghost_clip": getattr(self._ghosts.get(id(optimizer)), "max_grad_norm", None),
            **({} if self._looked else {"epochs": epochs_asked(user_frame())}),
        })  # fmt: skip
        self._looked = True
        sums = [p.summed_grad if p.summed_grad is not None else p.grad for p in optimizer.params]
        multiplier = float(optimizer.noise_multiplier)
        std = float(multiplier * (clip if isinstance(clip, float | int) else 1.0))  # (NumPy's floats are floats)
        facts: dict[str, Any] = {
            "kind": "sum",
            "std": std,
            "noise": multiplier,
            "beside": self._torch.unclipped.gradients(),
        }
        rows = getattr(optimizer, "doctor_rows", None)
        if rows is not None:
            facts["rows"] = rows
        self._neighbours.release(lambda: torch.cat([s.detach().flatten() for s in sums if s is not None]), facts)
        made = noise(optimizer, *args, **kwargs)
        self._torch.twins.release([p.grad for p in optimizer.params if p.grad is not None])
        return made

    def _counted(self, step: Callable[..., Any], accountant: Any, *args: Any, **kwargs: Any) -> Any:
        done = step(accountant, *args, **kwargs)
        self._events.write("account", kwargs)
        return done

    def _asked(self, ask: Callable[..., Any], accountant: Any, delta: Any, *args: Any, **kwargs: Any) -> Any:
        epsilon = ask(accountant, delta, *args, **kwargs)
        if user_frame() is not None and not self._nested:
            self._events.write("epsilon", {
                "epsilon": float(epsilon), "delta": float(delta), "history": list(accountant.history),
                "mechanism": accountant.mechanism(),
            })  # fmt: skip
        return epsilon

    def _restored(self, load: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._events.write("restored", {})
        return load(*args, **kwargs)

    def _scheduled(self, init: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        self._schedulers.append((scheduler, *user_place()))
        return init(scheduler, *args, **kwargs)

    def finish(self) -> None:
        """What is known at the end: how schedulers would go on."""
        for scheduler, file, line in self._schedulers:
            self._events.write("scheduler", {
                "steps": scheduler.last_epoch, "at": file, "at_line": line, "ahead": _ahead(scheduler),
            })  # fmt: skip


def _ahead(scheduler: Any) -> list[float]:
    """The noise multipliers from now on, a call of its `step` each."""
    played = copy.copy(scheduler)
    played.optimizer = SimpleNamespace(
        noise_multiplier=scheduler.optimizer.noise_multiplier, max_grad_norm=scheduler.optimizer.max_grad_norm
    )
    values = [float(played.optimizer.noise_multiplier)]
    for _ in range(_LONGEST):
        played.step()
        values.append(float(played.optimizer.noise_multiplier))
    return values


def _digest(optimizer: Any) -> Tensor | None:
    """A few projections of each record's gradient before clipping, or nothing where Opacus keeps none."""
    samples = []
    for parameter in optimizer.params:
        held = getattr(parameter, "grad_sample", None)
        if isinstance(held, list):
            held = torch.cat(held)
        if not isinstance(held, Tensor) or not len(held):
            return None
        samples.append(held.detach().reshape(len(held), -1).to(torch.float64))
    if not samples:
        return None
    random = torch.Generator().manual_seed(0)
    total = torch.zeros(len(samples[0]), _DIGEST, dtype=torch.float64)
    for sample in samples:
        signs = torch.randint(2, (sample.shape[1], _DIGEST), generator=random).to(torch.float64) * 2 - 1
        total += sample @ signs
    return total


def _lengthen_first(optimizer: Any) -> None:
    """Give the first record a long gradient: a large record may be one that the model already gets right."""
    for parameter in optimizer.params:
        held = getattr(parameter, "grad_sample", None)
        first = held[0] if isinstance(held, list) and held else held
        if isinstance(first, Tensor) and len(first):
            first[0] = _LONG


def _wrap_own(kind: type, **around: Callable[..., Any]) -> None:
    """Observers round the methods of these names that a class and those below it define."""
    for name in around.keys() & vars(kind).keys():
        wrap(kind, name, around[name])
    for below in kind.__subclasses__():
        _wrap_own(below, **around)


def _modules_of(package: Any) -> list[str]:
    return [vars(package)[name].__module__ for name in vars(package) if isinstance(vars(package)[name], type)]
