"""What a loop reads or writes of a batch may not come back into its loss or model; honest loops are taken."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from often import some
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from decrescendo.errors import DecrescendoError, PlanViolation, UnsupportedModel
from decrescendo.integrations.opacus import BatchMemoryManager, PrivacyEngine, schedulers
from decrescendo.integrations.opacus.loop import MODES, READ
from decrescendo.integrations.opacus.recorded import chooses

F: Any = torch.nn.functional
ROWS, CLASSES, C = 24, 3, 0.5
# (private model, the user's model, inputs, labels, what the loop keeps, number of the step)
Make = Callable[[Any, Any, Tensor, Tensor, dict[str, Any], int], Tensor]


class Scaled(nn.Module):
    """A model with a buffer, attributes of several kinds, and a cache of what it computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, CLASSES)
        self.register_buffer("c", torch.ones(CLASSES))
        self.k, self.settings = 1.0, {"k": 1.0}
        self.mode, self.act = "", torch.relu
        self.aux: Any = None
        self.calls = 0

    def forward(self, x: Tensor, settings: Any = None) -> Tensor:
        found = self.layer(x)
        self.aux = found.square().mean()
        self.calls += 1
        return found * self.c * self.k * self.settings["k"] * (1.0 if settings is None else settings.k)


def loop(
    make: Make, steps: int = 3, *, before: Callable[[Any], dict[str, Any]] | None = None, batch: int = ROWS,
    outlier: float = 0.0, parts: int | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """The weights after a training without noise whose every batch, as a rule, is the whole data set."""
    torch.manual_seed(0)
    rows, labels = torch.randn(ROWS, 4), torch.randint(CLASSES, (ROWS,))
    rows[0] += outlier
    module = Scaled()
    model, optimizer, loader = PrivacyEngine(secure_mode=True).make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=float(ROWS)),
        data_loader=DataLoader(TensorDataset(rows, labels), batch_size=batch), noise_multiplier=0.0, max_grad_norm=C,
    )  # fmt: skip
    kept = {} if before is None else before(module)
    if parts is not None:
        loader = loader.in_parts(parts)
    step = 0
    while step < steps:
        for x, y in loader:
            optimizer.zero_grad()
            make(model, module, x, y, kept, step).backward()
            optimizer.step()
            step += 1
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def plain(model: Any, x: Tensor, y: Tensor, weight: Any = 1.0) -> Tensor:
    return (F.cross_entropy(model(x), y, reduction="none") * weight).mean()


def hooked(module: Any) -> dict[str, Any]:
    """Features that a hook keeps."""
    kept: dict[str, Any] = {}
    module.layer.register_forward_hook(lambda layer, given, found: kept.update(f=found))
    return kept


LEAKS: dict[str, Make] = {}


def leak(make: Make) -> Make:
    LEAKS[getattr(make, "__name__", "")] = make
    return make


@leak
def data_set_by_item(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    weight = kept.setdefault("c", torch.ones(4))
    loss = plain(m, x, y, weight.sum())
    weight.data[:] = x.mean(0)
    return loss


@leak
def array_of_a_tensor(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    weight = kept.setdefault("c", torch.ones(4))
    array = kept.setdefault("array", weight.numpy())
    loss = plain(m, x, y, weight.sum())
    array[:] = x.numpy().mean(0)
    return loss


@leak
def copied_past_torch(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    with pytest.warns(UserWarning, match="copy construct"):
        weight = torch.tensor(x.abs().max())
    return plain(m, x, y, weight)


@leak
def tensor_of_numbers(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    return plain(m, x, y, torch.tensor([1.0, float(x.abs().max())]).sum())


@leak
def written_view(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    bank, found = kept.setdefault("bank", torch.zeros(60, CLASSES)), m(x)
    bank[: len(found)].copy_(found.detach())
    return (found - bank.mean(0)).square().mean(1).mean()


@leak
def class_means(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    found, means = m(x), torch.zeros(CLASSES, CLASSES)
    for label in range(CLASSES):
        means[label] = found[y == label].mean(0).detach()
    return (found - means[y]).square().mean(1).mean()


@leak
def moving(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    centre, found = kept.setdefault("q", torch.zeros(CLASSES)), m(x)
    loss = (found - centre).square().mean(1).mean()
    centre.mul_(0.9).add_(found.detach().mean(0))
    return loss


@leak
def into(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    means = torch.zeros(4)
    torch.mean(x, 0, out=means)
    return plain(m, x, y, means.sum())


@leak
def data_assigned(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    weight = kept.setdefault("c", torch.ones(CLASSES))
    loss = (m(x) * weight).square().mean(1).mean()
    weight.data = x.mean(0)[:CLASSES]
    return loss


@leak
def counted_classes(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    weight = torch.from_numpy(np.bincount(y.numpy(), minlength=CLASSES)).float()
    return plain(m, x, y, weight[y])


@leak
def buffer_filled(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    own.c.fill_(float(x.mean()))
    return F.cross_entropy(m(x), y)


@leak
def buffer_added_to(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    loss = F.cross_entropy(m(x), y)
    own.c.add_(x.mean(0)[:CLASSES])
    return loss


@leak
def buffer_assigned(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    loss = F.cross_entropy(m(x), y)
    own.c.data = x.mean(0)[:CLASSES]
    return loss


@leak
def buffer_replaced(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    loss = F.cross_entropy(m(x), y)
    own.c = x.mean(0)[:CLASSES]
    return loss


@leak
def attribute(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    loss = F.cross_entropy(m(x), y)
    own.k = float(x.mean())
    return loss


@leak
def entry_of_an_attribute(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    loss = F.cross_entropy(m(x), y)
    own.settings["k"] = float(x.mean())
    return loss


@leak
def text_of_an_attribute(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    loss = F.cross_entropy(m(x), y)
    own.mode = "sharp" if loss.item() > 0 else ""
    return loss


@leak
def function_of_an_attribute(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    loss = F.cross_entropy(m(x), y)
    own.act = torch.tanh if loss.item() > 0 else torch.relu
    return loss


@leak
def kept_by_the_forward(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    found = m(x)
    return (F.cross_entropy(found, y, reduction="none") * own.aux).mean()


@leak
def kept_by_a_hook(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    hooks = kept if "f" in kept else hooked(own)
    found = m(x)
    return (F.cross_entropy(found, y, reduction="none") * hooks["f"].abs().max()).mean()


@leak
def number(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    factor = 2 * x.max().item()
    return F.cross_entropy(m(x), y) * factor


@leak
def number_of_before(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    loss = F.cross_entropy(m(x), y) * kept.get("k", 1.0)
    kept["k"] = 2 * loss.item()
    return loss


@leak
def branch(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    loss = F.cross_entropy(m(x), y)
    return loss * 0.5 if loss.item() > 0.1 else loss


@leak
def choice(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    found = m(x)
    loss = F.mse_loss(found, F.one_hot(y, CLASSES).float()) if "p" in kept else F.cross_entropy(found, y)
    kept["p"] = loss.item()
    return loss


@leak
def text(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    return F.cross_entropy(m(x), y) * float(str(x.max())[7:11])


@leak
def entry_by_what_was_read(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    table, place = kept.setdefault("w", torch.linspace(1, 2, 50)), kept.get("place", 0)
    loss = F.cross_entropy(m(x), y) * table[place]
    kept["place"] = 7 + int(loss.item() > 0)
    return loss


@leak
def rows_of_the_batch(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    first = next(iter(x)) if len(x) else 1.0
    return plain(m, x, y, torch.as_tensor(first).sum())


@leak
def array_of_the_labels(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    labels = y.numpy()
    labels[:] = (labels + 1) % CLASSES
    return F.cross_entropy(m(x), y)


@leak
def weights_written(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    with torch.no_grad():
        own.layer.bias.sub_(own.layer(x).mean(0))
    return F.cross_entropy(m(x), y)


@leak
def unfrozen_by_the_loss(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    loss = F.cross_entropy(m(x), y)
    own.layer.bias.requires_grad_(loss.item() < 0)
    return loss


@leak
def classes_by_iteration(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    return F.cross_entropy(m(x), y) * (sum(1 for _ in y.unique()) - 0.9)


@leak
def columns_by_a_mask(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    return F.cross_entropy(m(x), y) * x[:, (x > 1.5).any(0)].shape[1] * 2.5


@leak
def one_of_two_earlier(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    loss = F.cross_entropy(m(x), y) * (0.01 if t == 0 or kept.get("bad") else 1.0)
    if t:
        kept["bad"] = loss.item() > 0
    return loss


@leak
def penalty_of_its_own(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    sum(one.square().sum() for one in own.parameters()).backward()
    return F.cross_entropy(m(x), y)


@leak
def counter_of_the_passes(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    loss = F.cross_entropy(m(x), y)
    if loss.item() > 0:
        own.calls = 0
    return loss


@leak
def object_given_to_the_model(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    settings = kept.setdefault("s", SimpleNamespace(k=1.0))
    loss = F.cross_entropy(m(x, settings), y)
    settings.k = 0.5 if loss.item() > 0 else 1.0
    return loss


# What a loop does with the batch of the step before, whose step is taken.
def afterwards(make: Make) -> Make:
    def both(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
        if "x" in kept:
            make(m, own, kept["x"], kept["y"], kept, t)
        kept.update(x=x, y=y)
        return plain(m, x, y, 1 + kept["k"].sum() if "k" in kept else 1.0)

    LEAKS[getattr(make, "__name__", "")] = both
    return make


@afterwards
def another_model_trained(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Any:
    aux = kept.setdefault("aux", nn.Linear(4, CLASSES))
    F.cross_entropy(aux(x), y).backward()
    kept["k"] = aux.weight.grad


@afterwards
def another_model_trained_by_the_other_name(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Any:
    aux = kept.setdefault("aux", nn.Linear(4, CLASSES))
    torch.autograd.backward([F.cross_entropy(aux(x), y)])
    kept["k"] = aux.weight.grad


@afterwards
def norms_of_gradients(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Any:
    plain(m, x, y).backward()
    kept["k"] = torch.tensor(sum(float(one.grad.norm()) for one in own.parameters()))
    own.zero_grad()


@afterwards
def gradients_of_a_transform(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Any:
    kept["k"] = torch.func.grad(lambda k: (x * k).sum())(torch.ones(4))


@afterwards
def running_statistics(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Any:
    norm = kept.setdefault("norm", nn.BatchNorm1d(4, affine=False))
    norm(x)
    kept["k"] = norm.running_mean


@afterwards
def running_statistics_by_a_function(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Any:
    kept["k"], spread = torch.zeros(4), torch.ones(4)
    torch.ops.aten._native_batch_norm_legit(x, None, None, kept["k"], spread, True, 0.1, 1e-5)


@afterwards
def size_after_the_step(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Any:
    kept["k"] = torch.tensor(float(x.size(0)))


@afterwards
def classes_after_the_step(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Any:
    kept["k"] = torch.tensor(float(F.one_hot(y).shape[1]))


@afterwards
def statistics_of_the_model_itself(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Any:
    F.batch_norm(m(x), own.c, torch.ones(CLASSES), training=True)


@pytest.mark.parametrize("name", LEAKS)
def test_what_was_made_of_a_batch_does_not_come_back(name: str) -> None:
    with pytest.raises((UnsupportedModel, PlanViolation)):
        loop(LEAKS[name])


def test_a_model_must_not_be_changed_by_what_was_read_before_the_first_step() -> None:
    engine, model, optimizer, loader, module = _small()
    with torch.no_grad():
        share = sum(y.float().mean().item() for _, y in loader)
        module.layer.bias.fill_(share)
    with pytest.raises(UnsupportedModel, match=r"got layer\.bias, which the loop set after it had read"):
        _steps(model, optimizer, loader)
    assert engine.get_epsilon(1e-5) == 0.0


def test_epochs_that_a_loop_leaves_are_not_public() -> None:
    """``taus[epoch]`` after an epoch that was left when the loss was low."""
    _, model, optimizer, loader, _ = _small(batch=8)
    taus = torch.tensor([1.0, 0.9, 0.1, 0.1])

    def epoch(number: int, *, leaves: bool) -> None:
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x) * taus[number], y)
            loss.backward()
            optimizer.step()
            if leaves and loss.item() > 0:
                return

    epoch(0, leaves=False)
    for (x, y), _ in zip(loader, range(len(loader)), strict=False):  # all batches, and no more is asked for
        optimizer.zero_grad()
        F.cross_entropy(model(x) * taus[1], y).backward()
        optimizer.step()
    epoch(2, leaves=True)
    with pytest.raises(UnsupportedModel, match="another tensor in mul"):
        epoch(3, leaves=False)


def test_modes_that_a_loop_sets_after_it_has_read_are_listed() -> None:
    engine, model, optimizer, loader, module = _small()
    _steps(model, optimizer, loader)
    before = engine.assumptions
    module.layer.eval()
    _steps(model, optimizer, loader)
    assert [one for one in engine.assumptions if one not in before] == [str(MODES)]


def test_what_another_training_of_the_engine_read_is_listed() -> None:
    engine, *first, _ = _small()
    _steps(*first)
    only = engine.accountant.loops[0]
    assert READ not in only.assumptions
    _, *second, _ = _small(engine=engine)
    assert READ not in only.assumptions  # nothing was read there yet
    _steps(*second)
    assert all(READ in loop.assumptions for loop in engine.accountant.loops)


class Lazy(nn.Module):
    """Its temperature is set by the first pass, and it counts passes if it has a counter."""

    def __init__(self, counter: list[int] | None = None) -> None:
        super().__init__()
        self.layer, self.temperature, self.calls = nn.Linear(4, CLASSES), None, counter

    def forward(self, x: Tensor, settings: Any = None) -> Tensor:
        if self.temperature is None:
            self.temperature = 1.0
        if self.calls is not None:
            self.calls[0] += 1
        return self.layer(x) * self.temperature * (1.0 if settings is None else settings.k)


def test_passes_of_the_model_itself_move_its_counters() -> None:
    _, model, optimizer, loader, module = _small(module=Lazy([0]))
    for _ in range(3):
        _steps(model, optimizer, loader)
        with torch.no_grad():
            module(torch.ones(5, 4))
            model(torch.ones(5, 4))


def test_a_count_that_the_loop_sets_back_between_two_passes_is_refused() -> None:
    _, model, optimizer, loader, module = _small(module=Lazy([0]))
    _steps(model, optimizer, loader)
    module.calls[0] = 0
    with torch.no_grad():
        model(torch.ones(5, 4))
    with pytest.raises(UnsupportedModel, match=r"got Lazy\.calls\.0, which the loop set"):
        _steps(model, optimizer, loader)


def test_an_attribute_that_a_pass_sets_first_may_not_be_set_by_the_loop() -> None:
    _, model, optimizer, loader, module = _small(module=Lazy())
    _steps(model, optimizer, loader)
    _steps(model, optimizer, loader)
    module.temperature = 0.5
    with pytest.raises(UnsupportedModel, match=r"got Lazy\.temperature, which the loop set"):
        _steps(model, optimizer, loader)


def test_an_object_for_the_model_may_hold_the_loop_and_may_not_change() -> None:
    held = SimpleNamespace(k=1.0)
    _, model, optimizer, loader, _ = _small(module=Lazy())
    held.owner = (model, optimizer, loader)

    def step() -> None:
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x, held), y)
            loss.backward()
            optimizer.step()
            assert loss.item() > 0

    step()
    step()
    held.k = 0.5
    with pytest.raises(UnsupportedModel, match=r"an object that the model is given \(.*k\)"):
        step()


@pytest.mark.parametrize(("given", "chosen"), [({}, True), ({"num_classes": 3}, False), ({"num_classes": -1}, True)])
def test_one_hot_rows_are_as_wide_as_the_labels_say(given: dict[str, int], *, chosen: bool) -> None:
    assert chooses("one_hot", (torch.ones(1),), given) == chosen
    assert chooses("one_hot", (torch.ones(1), *given.values()), {}) == chosen


def _small(
    *, engine: PrivacyEngine | None = None, batch: int = ROWS, module: Any = None
) -> tuple[PrivacyEngine, Any, Any, Any, Any]:
    torch.manual_seed(0)
    engine, module = engine or PrivacyEngine(secure_mode=True), module or Scaled()
    data = TensorDataset(torch.randn(ROWS, 4), torch.randint(CLASSES, (ROWS,)))
    made = engine.make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), max_grad_norm=C,
        data_loader=DataLoader(data, batch_size=batch), noise_multiplier=1.0,
    )  # fmt: skip
    return engine, *made, module


def _steps(model: Any, optimizer: Any, loader: Any) -> None:
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        assert loss.item() > 0


@pytest.mark.parametrize(
    "size",
    [
        lambda x: len(x), lambda x: x.size(0) / 2, lambda x: x.shape[0] + 1.0, lambda x: torch.tensor(x.size(0)),
        lambda x: abs(x.size(0)), lambda x: float(f"{x.size(0)}"), lambda x: sum(1 for _ in x),
        lambda x: len(x.split(1)), lambda x: x.numel(), lambda x: torch.ones(x.size(0)).sum(),
    ],
)  # fmt: skip
def test_the_number_of_rows_is_no_weight(size: Callable[[Tensor], float]) -> None:
    with pytest.raises(UnsupportedModel, match="the number of rows"):
        loop(lambda m, own, x, y, kept, t: F.cross_entropy(m(x), y) * size(x), steps=30, batch=6)


HONEST: dict[str, Make] = {}


def honest(make: Make) -> Make:
    HONEST[getattr(make, "__name__", "")] = make
    return make


@honest
def metrics_before(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    found = m(x)
    kept["correct"] = kept.get("correct", 0) + (found.argmax(1) == y).sum().item()
    return nn.CrossEntropyLoss()(found, y)


@honest
def metrics_in_tensors(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    found, total = m(x), kept.setdefault("total", torch.zeros(()))
    total += (found.argmax(1) == y).sum()
    kept.setdefault("of", torch.zeros(CLASSES)).index_add_(0, y, torch.ones(len(y)))
    return 0.5 * F.cross_entropy(found, y) + 0.1 * found.square().mean()


@honest
def logged(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    found = m(x)
    loss = F.cross_entropy(found, y, label_smoothing=0.1)
    array = found.detach().numpy()
    array[array < 0] = 0
    kept.setdefault("losses", []).append(loss.detach())
    kept["mean"] = (
        torch.stack(kept["losses"]).mean().item(),
        str(loss),
        f"{loss:.2f}",
        copy.deepcopy(loss.detach()),
    )
    return loss


@honest
def annealed_by_a_table(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    table, found = kept.setdefault("w", torch.linspace(0, 1, 50)), m(x)
    loss = F.cross_entropy(found, y) + table[t] * found.square().mean()
    kept["loss"] = loss.item()
    return loss


@honest
def annealed_and_nothing_read(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    found = m(x.flatten(1))
    return F.cross_entropy(found, y) + t / 10 * found.square().mean()


@honest
def by_turns(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    found = m(x)
    return F.cross_entropy(found, y) if t % 2 else F.mse_loss(found, F.one_hot(y, CLASSES).float())


@honest
def lists_of_numbers(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    found = m(x)
    kept.setdefault("losses", []).append(F.cross_entropy(found, y))
    kept["said"] = found.argmax(1).tolist(), y.cpu().tolist(), torch.stack(kept["losses"]).detach().tolist()
    return F.cross_entropy(found, y)


@honest
def dropout_off_later(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    m.train(t < 1)
    loss = F.cross_entropy(m(x), y)
    kept["loss"] = loss.item()
    return loss


@honest
def halves_by_their_size(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    found = m(x)
    return F.cross_entropy(found[: x.size(0)], y)


@honest
def constants_made_anew(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    loss = plain(m, x, y, torch.tensor([0.25, float("nan")])[0])
    kept["loss"] = loss.item()
    return loss


@honest
def in_place(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    loss, found = torch.tensor(0.0), m(x)
    loss += F.cross_entropy(found, y)
    loss += 0.1 * found.square().mean()
    loss /= 2
    loss *= 3
    kept["loss"] = loss.item()
    return loss


@honest
def teacher_without_gradients(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    teacher = kept.setdefault("teacher", nn.Linear(4, CLASSES))
    with torch.no_grad():
        wanted = teacher(x).softmax(1)
    loss = -(wanted * m(x).log_softmax(1)).sum(1).mean()
    kept["loss"] = loss.item()
    return loss


@honest
def attribute_set_by_the_step(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    own.k = 1.0 + t / 10
    return F.cross_entropy(m(x), y)


@honest
def of_a_batch_without_rows(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
    if x.size(0) == 0:
        kept["loss"] = x.sum().item()
    return 0.5 * F.cross_entropy(m(x), y)


@pytest.mark.parametrize("name", some(HONEST, 8))
def test_honest_loops_are_taken(name: str) -> None:
    loop(HONEST[name], steps=4)


@pytest.mark.parametrize("name", ["logged", "annealed_by_a_table", "in_place", "metrics_in_tensors"])
def test_one_row_moves_the_clipped_sum_by_no_more_than_its_bound(name: str) -> None:
    one, other = (loop(HONEST[name], steps=1, outlier=outlier) for outlier in (0.0, 100.0))
    moved = sum(float((one[key] - other[key]).square().sum()) for key in one) ** 0.5
    assert 0 < moved <= 2 * C + 1e-4


def test_weights_of_a_table_are_those_of_the_step() -> None:
    def by_number(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
        found = m(x)
        return F.cross_entropy(found, y) + float(torch.linspace(0, 1, 50)[t]) * found.square().mean()

    one, other = loop(HONEST["annealed_by_a_table"], steps=4), loop(by_number, steps=4)
    assert all(torch.allclose(one[key], other[key], atol=1e-5) for key in one)


def test_a_table_may_not_change() -> None:
    def changed(m: Any, own: Any, x: Tensor, y: Tensor, kept: Any, t: int) -> Tensor:
        loss = HONEST["annealed_by_a_table"](m, own, x, y, kept, t)
        kept["w"][t + 1] = kept["loss"]
        return loss

    with pytest.raises(UnsupportedModel, match="another tensor in mul"):
        loop(changed)


@dataclass
class Output:
    logits: Tensor
    loss: Tensor


class Opened(nn.Module):
    """A model that returns a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Output:
        logits = self.inner(x)
        return Output(logits, F.cross_entropy(logits, y))


def private(model: nn.Module, batch: int = 12) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(ROWS, 4), torch.randint(CLASSES, (ROWS,)))
    return PrivacyEngine(secure_mode=True).make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=batch), noise_multiplier=1.0, max_grad_norm=C,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["logits", "loss"])
def test_outputs_in_a_dataclass_are_opened(name: str) -> None:
    model, optimizer, loader = private(Opened())
    for x, y in loader:
        found = model(x, y)
        (found.loss if name == "loss" else F.cross_entropy(found.logits, y)).backward()
        optimizer.step()


def test_a_size_that_is_the_number_of_rows_by_chance_is_itself() -> None:
    model, optimizer, _ = private(nn.Linear(4, CLASSES))
    del model, optimizer
    module = nn.Linear(4, CLASSES)
    data = TensorDataset(torch.randn(12, 6, 4), torch.randint(CLASSES, (12,)))
    model, optimizer, loader = PrivacyEngine(secure_mode=True).make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=12), noise_multiplier=0.0, max_grad_norm=C,
    )  # fmt: skip
    for x, y in loader.in_parts(6):  # six rows, and six places in time
        times_first = model(x).transpose(0, 1)
        F.cross_entropy(times_first.sum(0) / times_first.shape[0], y).backward()
        optimizer.step()


def test_a_scaler_and_gradients_of_the_loop_are_refused() -> None:
    model, optimizer, loader = private(nn.Linear(4, CLASSES), batch=ROWS)
    x, y = next(iter(loader))
    with pytest.raises(UnsupportedModel, match=r"torch\.autograd\.grad must"):
        torch.autograd.grad(F.cross_entropy(model(x), y), x)
    with pytest.raises(UnsupportedModel, match="hooks on gradients"):
        x.register_hook(lambda gradient: gradient)
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    with pytest.raises(UnsupportedModel, match="GradScaler"):
        scaler.step(optimizer)


def test_gradients_of_zero_are_no_loss_of_their_own() -> None:
    model, optimizer, loader = private(nn.Linear(4, CLASSES))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for x, y in loader:
        optimizer.zero_grad(set_to_none=False)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def test_places_of_a_sequential_are_the_models_own() -> None:
    model, _, _ = private(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, CLASSES)))
    assert (len(model), model[0], bool(model)) == (2, model._module[0], True)
    with pytest.raises(TypeError):
        len(private(nn.Linear(4, CLASSES))[0])


def test_a_scheduler_stepped_once_a_part_goes_on_once_a_batch() -> None:
    model, optimizer, loader = private(nn.Linear(4, CLASSES))
    noise = schedulers.ExponentialNoise(optimizer, gamma=0.5)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as parts:
        for x, y in parts:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            noise.step()
    assert (noise.last_epoch, optimizer.noise_multiplier) == (2, 0.25)


def test_a_copy_of_the_private_model_is_not_taken_for_it() -> None:
    model, _, loader = private(nn.Linear(4, CLASSES))
    teacher = copy.deepcopy(model)
    for x, _ in loader:
        if len(x):
            with pytest.raises(DecrescendoError, match="got a copy of it"):
                teacher(x)
            return


class Keeping(nn.Module):
    """A model that keeps a list of what it computed, and fills a tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, CLASSES), list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        doubled = torch.zeros(x.size(0), 4)
        doubled[:] = 2 * x
        self.last.append(doubled.mean())
        self.last = self.last[-2:]
        return self.inner(x)


def test_what_a_forward_keeps_is_taken_out_and_makes_no_other_loss() -> None:
    module = Keeping()
    model, optimizer, loader = private(module)
    for x, y in loader:
        (0.5 * F.cross_entropy(model(x), y)).backward()
        optimizer.step()
        assert module.last == []
