"""What is published beside the trained weights is said by name; what a loop does to a model between steps is no reason
to lose the run, and is said as what it was."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from decrescendo.accounting import Budget
from decrescendo.base.assumption import Assumption
from decrescendo.errors import InvalidValue, UnsupportedModel
from decrescendo.row_independence.arguments import TENSORS_READ
from decrescendo.training import Run, Store, Trainer, train
from decrescendo.training.loop.assumptions import (
    PARAMETERS_MADE,
    PUBLIC_BUFFERS,
    PUBLIC_PARAMETERS,
    STATE_SET,
    WRITTEN,
)
from decrescendo.training.loop.constructed import is_as_constructed
from decrescendo.training.run.weights import assumed_of

from .conftest import ROWS, loss, make_model, make_plan, sgd

Data = tuple[Tensor, Tensor]
Change = Callable[[Any, torch.optim.Optimizer, int], object]


class With(nn.Module):
    """A layer beside another that its builder adds, and a buffer."""

    def __init__(self, beside: nn.Module | None = None, **buffers: Tensor) -> None:
        super().__init__()
        self.layer, self.beside, self.more = nn.Linear(3, 2), beside, nn.ModuleList()
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        made = self.layer(x)
        for other in [*self.more, *([] if self.beside is None else [self.beside])]:
            made = made + other(x)
        return made


def frozen(**settings: Any) -> nn.Module:
    return With(nn.Linear(3, 2).requires_grad_(False), **settings)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()


def run_of(data: Data, model: nn.Module, change: Change = lambda model, optimizer, step: None, **settings: Any) -> Run:
    optimizer = sgd(model)

    def callback(progress: Any) -> None:
        change(model, optimizer, progress.step)

    return train(model, loss, data, make_plan(), optimizer, seed=0, callback=callback, **settings)


def lines(run: Run) -> list[str]:
    return run.statement().to_markdown().splitlines()


def test_tensors_that_the_loss_reads_beside_batch_and_model_are_said_by_line(data: Data) -> None:
    counts = torch.bincount(data[1], minlength=2).float()
    teacher = nn.Linear(3, 2).requires_grad_(False)

    def weighted(model: nn.Module, batch: Data) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], weight=1 / counts, reduction="none")

    def taught(model: nn.Module, batch: Data) -> Tensor:
        return (model(batch[0]) - teacher(batch[0])).square().sum(1)

    mean = data[0].mean()

    def centred(model: nn.Module, batch: Data) -> Tensor:
        return loss(model, (batch[0] - mean, batch[1]))

    def scaled(model: nn.Module, batch: Data) -> Tensor:
        return loss(model, batch) * torch.ones(2)[0] + torch.arange(2)[0]

    counted = counts.numpy()

    def listed(model: nn.Module, batch: Data) -> Tensor:
        weights = torch.tensor(1 / counted)
        return nn.functional.cross_entropy(model(batch[0]), batch[1], weight=weights, reduction="none")

    for own, read in (
        (weighted, weighted),
        (listed, listed),
        (taught, taught),
        (centred, centred),
        (scaled, None),
    ):
        model = make_model()
        run = train(model, own, data, make_plan(), sgd(model), seed=0)
        where = () if read is None else (f"test_published_state.py:{read.__code__.co_firstlineno + 1}",)
        assert run.assumptions == tuple(map(TENSORS_READ.format, where))


class TestFromTheBeginning:
    def test_statistics_of_private_rows_in_an_evaluated_batch_norm_are_said(self, data: Data) -> None:
        model = normed().train()
        for _ in range(2):
            model(data[0])
        run = run_of(data, model.eval())
        said = PUBLIC_BUFFERS.format("1.running_mean, 1.running_var, 1.num_batches_tracked")
        assert run.assumptions == (said,)
        assert f"- {said}. (`public-buffers`)" in lines(run)
        assert "- Rows independent: yes, checked at every pass. (A row is one example.)" in lines(run)
        assert any("without noise (see how it was run)" in text for text in lines(run))
        assert str(said) in run.describe().splitlines()

    @pytest.mark.parametrize(
        "value",
        [
            torch.tensor([0.2, 0.8]), torch.tensor(0.3), torch.randn(5, 3), torch.tensor([3, 9, 2]),
            torch.linspace(0, 1, 5),
        ],
        ids=["class priors", "a number", "a code book", "counts", "quantiles"],
    )  # fmt: skip
    def test_other_values_computed_before_the_start_are_said(self, data: Data, value: Tensor) -> None:
        assert run_of(data, With(known=value)).assumptions == (PUBLIC_BUFFERS.format("known"),)

    def test_frozen_parameters_are_said_shortly(self, data: Data) -> None:
        assert run_of(data, frozen()).assumptions == (PUBLIC_PARAMETERS.format("beside.weight, beside.bias"),)
        deep = nn.Sequential(*(nn.Linear(3, 3) for _ in range(9))).requires_grad_(False)
        assert run_of(data, nn.Sequential(deep, nn.Linear(3, 2))).assumptions == (
            PUBLIC_PARAMETERS.format("*.*.weight (9), *.*.bias (9)"),
        )

    def test_a_model_as_constructed_has_nothing_to_say(self, data: Data) -> None:
        position = torch.arange(50)[:, None]
        angles = position * torch.exp(torch.arange(0, 8, 2) * (-math.log(10_000.0) / 8))
        table = torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)
        made = {
            "positions": torch.arange(9)[None],
            "sines": table[None],
            "mask": torch.full((9, 9), -torch.inf).triu(1),
            "seen": torch.ones(4, 4, dtype=torch.bool).tril()[None, None],
            "count": torch.zeros(()),
        }
        assert all(map(is_as_constructed, made.values()))
        # (torch.nn.utils.spectral_norm is the older of two.)
        bounded = With(nn.utils.spectral_norm(nn.Linear(3, 2))).eval()
        for model in (make_model(), normed(), bounded, With(**made)):
            assert not run_of(data, model).assumptions

    def test_what_is_not_saved_is_said_too(self, data: Data) -> None:
        """A mean of private rows that each gradient depends on moves the sum by more than C."""
        model = With()
        model.register_buffer("here", torch.randn(3), persistent=False)
        assert run_of(data, model).assumptions == (PUBLIC_BUFFERS.format("here"),)

    def test_what_is_evaluated_between_making_a_trainer_and_its_first_batch(self, data: Data) -> None:
        model = normed()
        trainer = Trainer(model, loss, make_plan(), sgd(model), seed=0)
        model.train()(data[0])
        model.eval()
        for batch in trainer.batches(data):
            trainer.step(batch)
        assert trainer.finish().assumptions == (PUBLIC_BUFFERS.format("1.running_mean, 1.running_var"),)


def teach(model: Any, *_: object) -> None:
    with torch.no_grad():
        for old, new in zip(model.beside.parameters(), model.layer.parameters(), strict=True):
            old.lerp_(new, 0.1)


def grow(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    if step == 1:
        model.more.append(nn.Linear(3, 2))
        optimizer.add_param_group({"params": list(model.more.parameters())})


def prune_once(model: Any, _: object, step: int) -> None:
    if step == 1:
        prune.l1_unstructured(model.layer, "weight", amount=0.3)


def evaluate(model: nn.Module, *_: object) -> None:
    model.train()(torch.randn(5, 3))
    model.eval()


def iterate(model: Any, *_: object) -> None:
    model.train()
    assert model.beside.weight is not None  # computed anew, from another step of the iteration
    model.eval()


WHOLE = "beside.weight, beside.bias"
KEPT: dict[str, tuple[Callable[[], nn.Module], Change, Assumption]] = {
    "a temperature": (
        lambda: With(heat=torch.ones(())), lambda m, o, step: m.heat.fill_(1 / step), STATE_SET.format("heat")
    ),
    "another temperature in its place": (
        lambda: With(heat=torch.ones(())),
        lambda m, o, step: setattr(m, "heat", torch.tensor(1 / (step + 1))), STATE_SET.format("heat"),
    ),
    "a buffer that is new": (
        With, lambda m, o, step: m.register_buffer("late", torch.ones(2)), STATE_SET.format("late")
    ),
    "a teacher's average": (frozen, teach, STATE_SET.format(WHOLE)),
    "a frozen part loaded anew": (
        frozen, lambda m, o, step: m.beside.load_state_dict(nn.Linear(3, 2).state_dict()), STATE_SET.format(WHOLE)
    ),
    "a frozen part exchanged": (
        frozen,
        lambda m, o, step: m.beside.load_state_dict(nn.Linear(3, 2).state_dict(), assign=True),
        STATE_SET.format(WHOLE),
    ),
    "a pruning mask": (With, prune_once, STATE_SET.format("layer.weight_mask")),
    "a grown layer": (With, grow, PARAMETERS_MADE.format("more.0.weight, more.0.bias")),
    "statistics of an evaluation": (
        normed, evaluate, STATE_SET.format("1.running_mean, 1.running_var, 1.num_batches_tracked")
    ),
    "power iteration": (
        lambda: With(parametrizations.spectral_norm(nn.Linear(3, 2))).eval(), iterate,
        STATE_SET.format("beside.parametrizations.weight.0._u, beside.parametrizations.weight.0._v"),
    ),
}  # fmt: skip


class TestBetweenSteps:
    @pytest.mark.parametrize("name", KEPT)
    def test_state_that_a_loop_keeps_in_the_model_is_said_and_not_refused(
        self, name: str, data: Data, tmp_path: Path
    ) -> None:
        """It was refused at the end, the whole budget spent, as statistics of the raw data; the store stayed open."""
        build, change, said = KEPT[name]
        torch.manual_seed(0)
        store = Store.create(tmp_path / "store", Budget(100.0, 1e-2), dataset="toy", rows=ROWS)
        run = run_of(data, build(), change, store=store)
        assert run.steps == 3
        assert said in run.assumptions
        assert WRITTEN not in run.assumptions
        assert f"- {said}. (`{said.code}`)" in lines(run)
        assert [entry.state for entry in store.entries()] == ["finished"]

    def test_a_layer_that_the_optimiser_lacks_is_refused_before_its_release(self, data: Data, tmp_path: Path) -> None:
        store = Store.create(tmp_path / "store", Budget(100.0, 1e-2), dataset="toy", rows=ROWS)
        with pytest.raises(InvalidValue, match=r"every trainable parameter, got missing=\['more.0.bias'"):
            run_of(data, With(), lambda m, o, step: m.more.append(nn.Linear(3, 2)), store=store)
        (entry,) = store.entries()
        assert (entry.state, entry.released.steps) == ("finished", 1)

    def test_what_a_pass_writes_is_refused_while_it_runs(self, data: Data) -> None:
        class Writes(With):
            def forward(self, x: Tensor) -> Tensor:
                self.mean.copy_(x.detach().mean(0))
                return super().forward(x)

        with pytest.raises(UnsupportedModel, match=r"forward pass must not change .* change of mean"):
            run_of(data, Writes(mean=torch.zeros(3)))

    def test_a_model_frozen_after_its_last_step_is_finished(self, data: Data) -> None:
        model = make_model()
        trainer = Trainer(model, loss, make_plan(), sgd(model), seed=0)
        for batch in trainer.batches(data):
            trainer.step(batch)
        model.requires_grad_(False)
        run = trainer.finish()
        assert not run.assumptions
        assert run.provenance is not None
        assert run.provenance.model == "Sequential, 26 trained parameters"


class TestFreezing:
    def test_freezing_is_said_as_freezing(self, data: Data) -> None:
        """The statement said that other code had changed the weights."""
        run = run_of(data, make_model(), lambda m, o, step: m[0].requires_grad_(step > 1))
        (said,) = run.assumptions
        assert "0.weight, 0.bias were frozen and 0.weight, 0.bias were unfrozen by code outside" in said.sentence
        assert run.provenance is not None
        assert run.provenance.model == "Sequential, 26 trained parameters"

    def test_layers_unfrozen_one_after_another_are_said_once(self, data: Data) -> None:
        model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)), nn.Linear(3, 2))
        model[:3].requires_grad_(False)
        run = run_of(
            data, model, lambda m, o, step: m[3 - step].requires_grad_(True), checkpoints=None
        )  # fmt: skip
        said = [text for text in map(str, run.assumptions) if "were unfrozen" in text]
        assert len(said) == 1
        assert "2.weight, 2.bias, 1.weight, 1.bias were unfrozen" in said[0]
        assert PUBLIC_PARAMETERS.format("0.weight, 0.bias") in run.assumptions
        assert len(run.assumptions) == 2

    def test_with_momentum_neither(self, data: Data) -> None:
        model = make_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        run = train(
            model, loss, data, make_plan(), optimizer, seed=0,
            callback=lambda progress: model[0].requires_grad_(progress.step > 1) and None,
        )  # fmt: skip
        assert len(run.assumptions) == 1

    def test_weights_that_are_written_to_as_they_are_frozen_are_said(self, data: Data) -> None:
        def change(model: Any, _: object, step: int) -> None:
            model[0].requires_grad_(False)
            model[0].weight.data.fill_(step)

        run = run_of(data, make_model(), change)
        assert WRITTEN in run.assumptions

    def test_what_is_written_while_frozen_is_said(self, data: Data) -> None:
        def change(model: Any, _: object, step: int) -> None:
            model.beside.requires_grad_(step == 2)
            if step == 1:
                model.beside.weight.data.fill_(9.0)
                model.beside.weight.data = model.beside.weight.data.clone()

        run = run_of(data, frozen(), change)
        assert STATE_SET.format("beside.weight") in run.assumptions

    def test_a_copy_of_the_weights_is_nothing_to_say(self, data: Data) -> None:
        assert not run_of(data, make_model(), lambda m, o, step: copy.deepcopy(m).requires_grad_(False)).assumptions


def test_adapters_that_rows_initialised_are_listed() -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(nn.Sequential(nn.Linear(4, 4)), peft.LoraConfig(target_modules=["0"], r=2))
    assert assumed_of(nn.Sequential(model)) == ()
    model.peft_config["default"].init_lora_weights = "eva"
    (found,) = assumed_of(nn.Sequential(model))
    assert (found.code, "eva" in found.sentence) == ("adapters-from-data", True)
