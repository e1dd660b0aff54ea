"""Loops written for Opacus: the same sums as the slow reference, the same history, and refusals of what differs."""

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from often import some
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from decrescendo import curves
from decrescendo.accounting import Ledger, Pld
from decrescendo.clipping import EngineSettings, Reference
from decrescendo.errors import DecrescendoError, FileRefused, InvalidValue, PlanViolation, UnsupportedModel
from decrescendo.integrations.opacus import BatchMemoryManager, PrivacyEngine, schedulers

ROWS, DELTA = 24, 1e-5
F: Any = torch.nn.functional
Body = Callable[[Any, Any, Tensor, Tensor], object]
Loss = Callable[[nn.Module, Any], Tensor]


@pytest.fixture(autouse=True)
def _python_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's type checker draws random numbers of Python's."""
    monkeypatch.setattr("decrescendo.clipping.checker.drawn_by_python", lambda held: ())


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(ROWS, 6), torch.randint(4, (ROWS,))


def small_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


class Scored(nn.Module):
    """A model that computes its loss itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_model()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.inner(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def private(
    data: tuple[Tensor, Tensor], *, batch: int = 8, model: nn.Module | None = None, engine: PrivacyEngine | None = None,
    z: float = 1.0, **given: Any,
) -> tuple[PrivacyEngine, Any, Any, Any]:  # fmt: skip
    """Engine, model, optimiser and loader."""
    engine = PrivacyEngine(secure_mode=True) if engine is None else engine
    model = small_model() if model is None else model
    common: dict[str, Any] = {
        "module": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1.0),
        "data_loader": DataLoader(TensorDataset(*data), batch_size=batch, shuffle=True),
        "max_grad_norm": 0.3,
    }
    if "target_epsilon" in given:
        return engine, *engine.make_private_with_epsilon(**{**common, "target_delta": DELTA, **given})
    return engine, *engine.make_private(**{**common, "noise_multiplier": z, **given})


def usual(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    loss = nn.CrossEntropyLoss()(model(x), y)
    loss.backward()
    optimizer.step()


def epoch(model: Any, optimizer: Any, loader: Any, body: Body = usual) -> None:
    for x, y in loader:
        body(model, optimizer, x, y)


def step(loss: Callable[[Any, Tensor, Tensor], Tensor]) -> Body:
    """A loop's body around a loss."""

    def body(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        loss(model, x, y).backward()
        optimizer.step()

    return body


def logs(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
    """Accuracies and running losses, computed before the backward pass."""
    total = torch.zeros(())
    x, y = x.to("cpu", non_blocking=True), y.long()
    output = model(x)
    loss = F.cross_entropy(output, y)
    total += loss.detach()
    _, best = torch.max(output.data, 1)
    assert 0 <= (best == y).float().mean().item() <= 1
    assert output.detach().numpy().shape == (len(y), 4)
    assert math.isfinite(loss.item() + float(total))
    loss.backward(retain_graph=True)
    optimizer.step()


def in_place(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
    x.mul_(2).sub_(0.5)
    x[:, 0] = 0
    step(lambda m, x, y: F.cross_entropy(m(x), y))(model, optimizer, x, y)


def closure(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
    def again() -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    optimizer.step(again)


def teacher(model: Any, x: Tensor, y: Tensor) -> Tensor:
    del y
    with torch.no_grad():
        wanted = model(x * 2)
    return F.mse_loss(model(x), wanted)


def through_numpy(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
    usual(model, optimizer, torch.from_numpy(x.numpy()), torch.autograd.Variable(y))


def each(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def cut_first(found: Tensor) -> Tensor:
    return torch.cat([found[:, :2].relu(), found[:, 2:]], 1)


def cut_below(found: Tensor, y: Tensor) -> Tensor:
    F.relu(found[:, :2], inplace=True)
    return F.cross_entropy(found, y)


CUT = torch.tensor([0.0, 1, 1, 1, 1, 1])
WEIGHT = torch.tensor([1.0, 2, 3, 4])
# Bodies of loops, and what they compute for one example.
BODIES: dict[str, tuple[Body, Loss]] = {
    "usual": (usual, each),
    "logs": (logs, each),
    "closure": (closure, each),
    "numpy": (through_numpy, each),
    "in place": (in_place, lambda m, b: each(m, ((b[0] * 2 - 0.5) * CUT, b[1]))),
    "in place by its name": (
        step(lambda m, x, y: cut_below(m(x), y)),
        lambda m, b: F.cross_entropy(cut_first(m(b[0])), b[1], reduction="none"),
    ),
    "sum over size": (step(lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum") / x.size(0)), each),
    "sum over length": (step(lambda m, x, y: F.cross_entropy(m(x), y, reduction="none").sum() / len(x)), each),
    "weights": (
        step(lambda m, x, y: (F.cross_entropy(m(x), y, reduction="none") * WEIGHT[y]).mean()),
        lambda m, b: each(m, b) * WEIGHT[b[1]],
    ),
    "two losses": (
        step(lambda m, x, y: sum([F.mse_loss(m(x), x[:, :4]), 0.5 * F.cross_entropy(m(x), y)]) / 2),
        lambda m, b: (F.mse_loss(m(b[0]), b[0][:, :4], reduction="none").mean(1) + 0.5 * each(m, b)) / 2,
    ),
    "divergence": (
        step(lambda m, x, y: F.kl_div(F.log_softmax(m(x), 1), F.softmax(x[:, :4], 1), reduction="batchmean")),
        lambda m, b: F.kl_div(F.log_softmax(m(b[0]), 1), F.softmax(b[0][:, :4], 1), reduction="none").sum(1),
    ),
    "triplet": (
        step(lambda m, x, y: nn.TripletMarginLoss()(m(x), x[:, :4], x[:, 2:])),
        lambda m, b: F.triplet_margin_loss(m(b[0]), b[0][:, :4], b[0][:, 2:], reduction="none"),
    ),
    "teacher": (
        step(teacher), lambda m, b: (m(b[0]) - m(b[0] * 2).detach()).square().mean(1)
    ),
    "shapes": (
        step(lambda m, x, y: -F.log_softmax(m(x.reshape(x.shape[0], -1)).view(x.size(0), -1), 1).mean(1).mean(dim=0)),
        lambda m, b: -F.log_softmax(m(b[0]), 1).mean(1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", some(BODIES, 8))
def test_a_loop_makes_the_references_sums(name: str, data: tuple[Tensor, Tensor]) -> None:
    body, loss = BODIES[name]
    _, model, optimizer, loader = private(data, batch=ROWS, z=0.0)
    assert compared(data, lambda: epoch(model, optimizer, loader, body), model, loss) < 1e-6


@pytest.mark.parametrize("name", ["usual", "two losses", "sum over length"])
def test_parts_of_a_batch_make_the_sum_of_the_whole(name: str, data: tuple[Tensor, Tensor]) -> None:
    body, loss = BODIES[name]
    engine, model, optimizer, loader = private(data, batch=ROWS, z=0.0)

    def passes() -> None:
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=10, optimizer=optimizer) as parts:
            sizes = list[int]()
            for x, y in parts:
                sizes.append(len(x))
                body(model, optimizer, x, y)
            assert sizes == [8, 8, 8]

    assert compared(data, passes, model, loss) < 1e-6
    assert engine.accountant.history == [(0.0, 1.0, 1)]


def test_a_model_that_computes_its_loss_itself(data: tuple[Tensor, Tensor]) -> None:
    _, model, optimizer, loader = private(data, batch=ROWS, z=0.0, model=Scored())
    body = step(lambda m, x, y: m(x, labels=y)["loss"])
    found = compared(data, lambda: epoch(model, optimizer, loader, body), model, lambda m, b: each(m.inner, b))
    assert found < 1e-6


def compared(data: tuple[Tensor, Tensor], passes: Callable[[], None], model: Any, loss: Loss) -> float:
    """The largest difference of a weight from one step on the reference's sum; every batch is the whole data set."""
    slow = type(model._module)() if isinstance(model._module, Scored) else small_model()
    clipped = Reference(slow, loss).clipped_sum(data, 0.3)
    for name, parameter in slow.named_parameters():
        parameter.data -= clipped.gradients[name] / ROWS
    passes()
    pairs = zip(model.state_dict().values(), slow.state_dict().values(), strict=True)
    return max(float((one - two).abs().max()) for one, two in pairs)


def contrast(model: Any, x: Tensor, y: Tensor) -> Tensor:
    del y
    found = model(x)
    return (found @ found.t()).mean(1).mean()


class Reversed(torch.autograd.Function):
    """Another gradient than that of what it computes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


def cast_to_half(model: Any, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.cross_entropy(model(x), y)


REFUSED: dict[str, tuple[Callable[[Any, Tensor, Tensor], Tensor], str]] = {
    "contrast": (contrast, "examples meet examples"),
    "centred by its batch": (lambda m, x, y: F.cross_entropy(m(x - x.mean(0)), y), "put together"),
    "centred by a number": (lambda m, x, y: F.cross_entropy(m(x - x.mean().item()), y), "before the loop reads"),
    "weights of classes": (lambda m, x, y: F.cross_entropy(m(x), y, weight=WEIGHT), "weighs examples by each other"),
    "ignored labels": (lambda m, x, y: F.cross_entropy(m(x), y, ignore_index=2), "weighs examples|over"),
    "a root of the mean": (lambda m, x, y: F.mse_loss(m(x), x[:, :4]).sqrt(), "sqrt of a number"),
    "a sum": (lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum"), "got the sum"),
    "a sum over a constant": (lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum") / 9, "got the sum"),
    "one example's loss": (lambda m, x, y: F.cross_entropy(m(x), y, reduction="none")[0], "must be the mean"),
    "a penalty on weights": (
        lambda m, x, y: F.cross_entropy(m(x), y) + sum(p.norm() for p in m.parameters()), "weight_decay",
    ),
    "a gradient of its own": (lambda m, x, y: F.cross_entropy(Reversed.apply(m(x)), y), "model's forward"),
    "autocast": (cast_to_half, "without torch.autocast"),
    "a fixed number of rows": (lambda m, x, y: F.cross_entropy(m(x) + torch.ones(x.shape[0], 1), y), "any number of"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_loss_that_is_no_mean_over_examples_is_refused(name: str, data: tuple[Tensor, Tensor]) -> None:
    loss, why = REFUSED[name]
    engine, model, optimizer, loader = private(data, batch=12)

    def passes() -> None:
        for _ in range(5):
            epoch(model, optimizer, loader, step(loss))

    with pytest.raises(UnsupportedModel, match=why):
        passes()
    assert len(engine.accountant) < 10


def test_tensors_of_an_earlier_batch_are_refused(data: tuple[Tensor, Tensor]) -> None:
    _, model, optimizer, loader = private(data)
    kept: list[Tensor] = []

    def body(m: Any, x: Tensor, y: Tensor) -> Tensor:
        kept.append(m(x).sum(1))
        earlier = kept[0].sum() if len(kept) > 1 else 1.0
        return F.cross_entropy(m(x), y) + (earlier * x[:, 0]).mean()

    with pytest.raises(UnsupportedModel, match="an earlier one"):
        epoch(model, optimizer, loader, step(body))


def test_what_the_loop_computes_beside_the_loss_makes_no_other_program(data: tuple[Tensor, Tensor]) -> None:
    _, model, optimizer, loader = private(data)
    for place, (x, y) in enumerate(loader):
        output = model(x)
        if place % 2:
            assert output.sum().item() is not None
        F.cross_entropy(output, y).backward()
        optimizer.step()


ARGUMENTS: dict[str, Any] = {
    "poisson_sampling": False, "clipping": "per_layer", "grad_sample_mode": "functorch", "loss_reduction": "sum",
    "noise_generator": torch.Generator(), "batch_first": False, "wrap_model": False, "rand_on_empty": True,
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_means_something_else_is_refused_by_name(name: str, data: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(InvalidValue, match=f"{name} must be"):
        private(data, **{name: ARGUMENTS[name]})
    with pytest.raises(InvalidValue, match=f"{name} must be"):
        private(data, target_epsilon=2.0, epochs=1, **{name: ARGUMENTS[name]})


def test_samplers_and_accountants_that_would_be_dropped_are_refused(data: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(InvalidValue, match="accountant must be"):
        PrivacyEngine(accountant="gdp", secure_mode=True)
    loader = DataLoader(TensorDataset(*data), batch_size=8, sampler=WeightedRandomSampler([1.0] * ROWS, ROWS))
    with pytest.raises(InvalidValue, match="WeightedRandomSampler"):
        private(data, data_loader=loader)


def test_empty_batches_are_steps_whatever_the_loop_does_with_them(data: tuple[Tensor, Tensor]) -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small_model()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.view(x.size(0), -1))

    engine, model, optimizer, loader = private(data, batch=1, model=Flat())
    empty = 0
    for x, y in loader:
        empty += not len(x)
        usual(model, optimizer, x, y)
    for x, y in loader:
        if not len(x):
            continue
        usual(model, optimizer, x, y)
    assert empty
    assert engine.accountant.history == [(1.0, 1 / ROWS, 2 * ROWS)]


def test_each_batch_is_one_step(data: tuple[Tensor, Tensor]) -> None:
    engine, model, optimizer, loader = private(data, batch=6)
    first = next(iter(loader))
    for place, (x, y) in enumerate(loader):
        assert place or torch.equal(x, first[0])  # which was looked at, and waits for its step
        if place == 2:
            break
        usual(model, optimizer, x, y)
    epoch(model, optimizer, loader)
    assert engine.accountant.history == [(1.0, 0.25, 6)]
    with pytest.raises(PlanViolation, match="each batch must be followed"):
        epoch(model, optimizer, loader, lambda m, o, x, y: F.cross_entropy(m(x), y).backward())
    optimizer.step()  # of the batch that waited
    with pytest.raises(PlanViolation, match="without a draw"):
        optimizer.step()


def test_get_epsilon_is_the_upper_end_of_what_schedulers_left(data: tuple[Tensor, Tensor]) -> None:
    engine, model, optimizer, loader = private(data)
    noise = schedulers.ExponentialNoise(optimizer, gamma=0.5)
    clip = schedulers.LambdaGradClip(optimizer, scheduler_function=lambda step: 1 / (1 + step))
    rate = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for _ in range(2):
        epoch(model, optimizer, loader)
        noise.step()
        clip.step()
        rate.step()
    assert engine.accountant.history == [(1.0, 1 / 3, 3), (0.5, 1 / 3, 3)]
    assert (optimizer.noise_multiplier, round(optimizer.max_grad_norm, 9)) == (0.25, 0.1)
    assert optimizer.param_groups[0]["lr"] == 0.25
    ledger = Ledger.of([1.0] * 3 + [0.5] * 3, 1 / 3)
    assert engine.get_epsilon(DELTA) == Pld().bracket(ledger, DELTA)[1]
    assert optimizer.expected_batch_size == 8


STEPWISE = [(schedulers.StepNoise, "noise_multiplier"), (schedulers.StepGradClip, "max_grad_norm")]


@pytest.mark.parametrize(("made", "name"), STEPWISE)
def test_step_schedulers_move_at_every_so_many_th_step(made: Any, name: str, data: tuple[Tensor, Tensor]) -> None:
    _, _, optimizer, _ = private(data)
    first = getattr(optimizer, name)
    scheduler, found = made(optimizer, step_size=2, gamma=0.5), list[float]()
    for _ in range(4):
        scheduler.step()
        found.append(getattr(optimizer, name) / first)
    assert found == [1.0, 0.5, 0.5, 0.25]


def test_a_calibrated_training_spends_its_target_and_not_one_step_more(data: tuple[Tensor, Tensor]) -> None:
    engine, model, optimizer, loader = private(
        data,
        target_epsilon=3.0,
        epochs=2,
        privacy=curves.growing_mu(1.5),
        max_grad_norm=curves.linear(1.0, 0.5),
    )
    z = optimizer.noise_multiplier
    with pytest.raises(PlanViolation, match="noise_multiplier must stay"):
        optimizer.noise_multiplier = 0.5 * z
    for _ in range(2):
        epoch(model, optimizer, loader)
    assert optimizer.noise_multiplier < z
    assert 2.99 < engine.get_epsilon(DELTA) <= 3.0
    assert engine.run.guarantee.epsilon <= 3.0
    with pytest.raises(PlanViolation, match=r"epochs that it was calibrated for"):
        epoch(model, optimizer, loader)


def test_a_checkpoint_goes_on_in_the_plan_with_other_noise(data: tuple[Tensor, Tensor]) -> None:
    def begun() -> tuple[Any, ...]:
        torch.manual_seed(5)
        with pytest.warns(UserWarning, match="secure_mode is off"):
            engine = PrivacyEngine()
        return private(data, engine=engine, target_epsilon=3.0, epochs=2)

    file = io.BytesIO()
    engine, model, optimizer, loader = begun()
    first = [x.clone() for x, _ in [next(iter(loader))]]
    epoch(model, optimizer, loader)
    engine.save_checkpoint(path=file, module=model, optimizer=optimizer, checkpoint_dict={"epoch": 1})
    saved = model.state_dict()["0.weight"].clone()
    file.seek(0)
    engine, model, optimizer, loader = begun()
    assert engine.load_checkpoint(path=file, module=model, optimizer=optimizer)["epoch"] == 1
    assert torch.equal(model.state_dict()["0.weight"], saved)
    again = next(iter(loader))[0]
    assert again.shape != first[0].shape or not torch.equal(again, first[0])
    epoch(model, optimizer, loader)
    assert len(engine.accountant) == 6
    assert 2.99 < engine.get_epsilon(DELTA) <= 3.0
    run = engine.run
    assert (run.steps, run.plan.steps, run.guarantee.epsilon) == (6, 6, engine.get_epsilon(DELTA))
    assert "resumed-anew" in {one.code for one in run.assumptions}
    with pytest.raises(PlanViolation, match=r"epochs that it was calibrated for"):
        epoch(model, optimizer, loader)


def test_a_model_that_is_saved_whole_is_refused_in_words_and_can_be_copied(
    data: tuple[Tensor, Tensor],
) -> None:
    _, model, optimizer, loader = private(data)
    epoch(model, optimizer, loader)
    with pytest.raises(PlanViolation, match="must not be saved whole"):
        torch.save(model, io.BytesIO())
    torch.save(model._module, io.BytesIO())
    copied = copy.deepcopy(model)
    assert torch.equal(copied.state_dict()["0.weight"], model.state_dict()["0.weight"])


def test_a_training_that_is_done_says_so_when_it_is_loaded(data: tuple[Tensor, Tensor]) -> None:
    file = io.BytesIO()
    engine, model, optimizer, loader = private(data, target_epsilon=3.0, epochs=1)
    epoch(model, optimizer, loader)
    engine.save_checkpoint(path=file, module=model, optimizer=optimizer)
    file.seek(0)
    engine, model, optimizer, loader = private(data, target_epsilon=3.0, epochs=1)
    engine.load_checkpoint(path=file, module=model, optimizer=optimizer)
    with pytest.raises(PlanViolation, match=r"whose 3 steps are all taken\. It is done"):
        epoch(model, optimizer, loader)


def test_a_history_of_opacus_counts_and_is_no_part_of_another_plan(data: tuple[Tensor, Tensor]) -> None:
    model, file = small_model(), io.BytesIO()
    state = {f"_module.{name}": value for name, value in model.state_dict().items()}
    history = {"history": [(1.1, 0.25, 40)], "mechanism": "rdp"}
    torch.save({"module_state_dict": state, "privacy_accountant_state_dict": history}, file)
    file.seek(0)
    engine, model, optimizer, loader = private(data)
    engine.load_checkpoint(path=file, module=model)
    epoch(model, optimizer, loader)
    assert engine.accountant.history == [(1.1, 0.25, 40), (1.0, 1 / 3, 3)]
    file.seek(0)
    engine, model, optimizer, loader = private(data, target_epsilon=3.0, epochs=1)
    engine.load_checkpoint(path=file, module=model)
    with pytest.raises(PlanViolation, match="first steps of the calibrated plan"):
        epoch(model, optimizer, loader)


@pytest.mark.parametrize("content", [{"module_state_dict": {}}, {"privacy_accountant_state_dict": nn.Tanh()}, 3])
def test_other_files_are_refused(content: object, data: tuple[Tensor, Tensor]) -> None:
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    engine, model, _, _ = private(data)
    with pytest.raises(FileRefused, match="a checkpoint must"):
        engine.load_checkpoint(path=file, module=model)


def test_ghost_mode_returns_the_criterion_and_evaluation_is_the_models_own(
    data: tuple[Tensor, Tensor],
) -> None:
    criterion = nn.CrossEntropyLoss()
    engine, model, optimizer, found, loader = private(data, grad_sample_mode="ghost", criterion=criterion)
    assert found is criterion
    epoch(model, optimizer, loader)
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(data[0]), model._module(data[0]))
    model.train()
    epoch(model, optimizer, loader)
    assert len(engine.accountant) == 6


@pytest.mark.filterwarnings("ignore:secure_mode")
@pytest.mark.parametrize("most", [None, 5])
def test_the_private_loader_under_no_grad_gives_all_rows_and_no_step(
    most: int | None, data: tuple[Tensor, Tensor]
) -> None:
    """What Opacus users do after each epoch; the training goes on as if nobody had evaluated."""
    weights: list[Tensor] = []
    for evaluates in (False, True):
        torch.manual_seed(3)
        engine, model, optimizer, loader = private(data, engine=PrivacyEngine())
        for _ in range(2):
            epoch(model, optimizer, loader)
            if evaluates:
                parts = loader if most is None else loader.in_parts(most)
                with torch.no_grad():
                    seen = [(x.numpy(), (model(x).argmax(1) == y).sum().item()) for x, y in parts]
                assert torch.equal(torch.cat([torch.from_numpy(x) for x, _ in seen]), data[0])
                assert len(seen) == (len(loader) if most is None else 5)
        assert len(engine.accountant) == 6
        weights.append(torch.cat([value.detach().flatten() for value in model.parameters()]))
    assert torch.equal(*weights)


@pytest.mark.parametrize("what", ["a tensor", "a number"])
def test_nothing_of_an_evaluation_comes_into_a_loss(what: str, data: tuple[Tensor, Tensor]) -> None:
    _, model, optimizer, loader = private(data)
    epoch(model, optimizer, loader, step(lambda model, x, y: F.cross_entropy(model(x), y) * 1.0))
    with torch.no_grad():
        scores = [F.cross_entropy(model(x), y) for x, y in loader]
    weight: Any = scores[0] if what == "a tensor" else scores[0].item()
    with pytest.raises(UnsupportedModel, match="earlier one" if what == "a tensor" else "has read"):
        epoch(model, optimizer, loader, step(lambda model, x, y: F.cross_entropy(model(x), y) * weight))


@pytest.mark.parametrize("given", [{}, {"target_epsilon": 3.0, "epochs": 2}])
def test_a_training_that_ends_early_says_so(given: dict[str, Any], data: tuple[Tensor, Tensor]) -> None:
    engine, model, optimizer, loader = private(data, **given)
    epoch(model, optimizer, loader)
    assert any("end" in one for one in engine.assumptions)
    if given:
        assert set(engine.assumptions) >= set(map(str, engine.run.assumptions))


def test_one_example_a_pass_meets_no_tensor_made_for_the_whole_batch(data: tuple[Tensor, Tensor]) -> None:
    _, model, optimizer, loader = private(data, settings=EngineSettings(one_example_a_pass=True))
    scattered = step(lambda m, x, y: F.mse_loss(m(x), torch.zeros(x.shape[0], 4).scatter_(1, y[:, None], 1.0)))
    with pytest.raises(UnsupportedModel, match="new_zeros"):
        epoch(model, optimizer, loader, scattered)


def test_a_step_with_a_closure_returns_its_loss_and_what_is_missing_says_why(
    data: tuple[Tensor, Tensor],
) -> None:
    _, model, optimizer, loader = private(data)
    for x, y in loader:

        def closure() -> Tensor:
            loss = F.cross_entropy(model(x), y)  # noqa: B023
            loss.backward()
            return loss

        assert optimizer.step(closure).item() > 0
    with pytest.raises(AttributeError, match="no gradients of examples"):
        optimizer.attach_step_hook(print)


def test_transforms_belong_into_the_model(data: tuple[Tensor, Tensor]) -> None:
    _, model, optimizer, loader = private(data)
    weight = torch.ones(1)
    body = step(lambda m, x, y: m(x).mean() + torch.func.grad(lambda w: (x * w).mean())(weight).sum())
    with pytest.raises(UnsupportedModel, match=r"torch\.func"):
        epoch(model, optimizer, loader, body)


def test_an_attribute_that_is_set_on_the_model_reaches_it(data: tuple[Tensor, Tensor]) -> None:
    """Opacus' wrapper keeps it to itself: a temperature that the loop anneals stays what it was."""

    class Tempered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.temperature = nn.Linear(6, 4), 1.0

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) / self.temperature

    def trained(temperature: float) -> Tensor:
        torch.manual_seed(0)
        _, model, optimizer, loader = private(data, model=Tempered(), engine=PrivacyEngine(), max_grad_norm=1e3, z=1e-6)
        model.temperature, model.other = temperature, temperature
        assert (model.temperature, hasattr(model._module, "other")) == (temperature, False)
        epoch(model, optimizer, loader)
        return model.layer.weight.detach().clone()

    with pytest.warns(UserWarning, match="secure_mode is off"):
        assert not torch.allclose(trained(1.0), trained(0.2), atol=1e-2)


def test_the_mode_of_the_model_must_stay_until_its_step(data: tuple[Tensor, Tensor]) -> None:
    _, model, optimizer, loader = private(data, batch=ROWS)

    def body(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
        F.cross_entropy(model(x), y).backward()
        model.eval()
        optimizer.step()

    with pytest.raises(DecrescendoError, match="mode of its call"):
        epoch(model, optimizer, loader, body)
