"""Facts: tasks have the papers' settings; optimisers and learning rates are what their names say."""

import pytest
import torch

from decrescendo.errors import InvalidValue
from decrescendo.plans.named import SCHEDULES, schedule_curves
from decrescendo.training import decay_scheduler, make_optimizer, train_task
from decrescendo_papers.data import Dataset
from decrescendo_papers.experiments.tasks import TASKS, Task, find_task

from .conftest import ROWS, make_model, make_plan


def test_the_settings_of_the_paper() -> None:
    mnist, fashion = find_task("mnist"), find_task("fashion-mnist")
    assert (mnist.steps, mnist.batch, mnist.learning_rate, mnist.clip) == (4800, 250, 0.15, 1.5)
    assert (fashion.steps, fashion.batch, fashion.learning_rate, fashion.clip) == (4800, 250, 0.15, 4.0)
    assert mnist.delta == pytest.approx(1 / 600_000)


def test_the_declared_number_of_rows_is_that_of_the_data() -> None:
    # A plan can be made without loading the data: this number must be right. (MNIST: tests/data.)
    assert find_task("digits").rows == len(find_task("digits").load())
    assert {TASKS[name].rows for name in ("mnist", "fashion-mnist")} == {60_000}


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("none", [1.0] * 8),
        ("linear", [1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        ("cosine", [1.0, 0.9619, 0.8536, 0.6913, 0.5, 0.3087, 0.1464, 0.0381]),
    ],
)
def test_learning_rates_fall_as_named(decay: str, expected: list[float]) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = decay_scheduler(optimizer, decay, 8)
    seen = []
    for _ in range(8):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert seen == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sgd", 0.0, 0.0), "learning_rate must be > 0"),
        (("sgd", 0.1, 1.0), "momentum must be"),
        (("adam", 0.1, 0.5), "momentum must be 0 with adam"),
        (("lbfgs", 0.1, 0.0), "optimizer must be one of sgd, momentum-bc, adam"),
    ],
)
def test_wrong_optimizers_are_refused(arguments: tuple[str, float, float], words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        make_optimizer(make_model(), *arguments)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(InvalidValue, match="digits, mnist, fashion-mnist"):
        find_task("imagenet")
    with pytest.raises(InvalidValue, match="constant, growing-mu"):
        schedule_curves("magic", clip=1, rho_mu=1, rho_c=1)
    with pytest.raises(InvalidValue, match="none, linear or cosine"):
        decay_scheduler(torch.optim.SGD(make_model().parameters(), lr=1), "warm", 3)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_move_what_their_name_says(name: str) -> None:
    progress = torch.linspace(0.25, 1, 4, dtype=torch.float64).numpy()
    privacy, clip = schedule_curves(name, clip=1.5, rho_mu=1.25, rho_c=3.0, epochs=4)
    moves = (len(set(privacy(progress).tolist())) > 1, len(set(clip(progress).tolist())) > 1)
    assert (
        moves
        == {
            "constant": (False, False),
            "growing-mu": (True, False),
            "sensitivity-decay": (False, True),
            "dynamic": (True, True),
            "optimal": (True, True),
            **dict.fromkeys(DECAYS, (True, False)),
        }[name]
    )


DECAYS = ("exponential-decay", "time-decay", "step-decay", "polynomial-decay")


@pytest.mark.parametrize("name", DECAYS)
@pytest.mark.parametrize("epochs", [2, 3, 20])
def test_noise_decays_fall_by_rho_mu_from_the_first_epoch_to_the_last(name: str, epochs: int) -> None:
    progress = (torch.arange(1, 10 * epochs + 1, dtype=torch.float64) / (10 * epochs)).numpy()
    privacy, _ = schedule_curves(name, clip=1.5, rho_mu=1.25, rho_c=3.0, epochs=epochs)
    mu = privacy(progress)
    assert mu[-1] / mu[0] == pytest.approx(1.25)
    assert (mu[1:] >= mu[:-1] - 1e-12).all()
    with pytest.raises(InvalidValue, match="rho_mu must be"):
        schedule_curves(name, clip=1.5, rho_mu=1.0, rho_c=3.0, epochs=epochs)


def test_a_task_trains_and_is_scored_on_its_test_half() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, 3, generator=generator)
    targets = (inputs[:, 0] > 0).long()
    data = Dataset("toy", inputs, targets, inputs[:4], torch.full((4,), 1) - targets[:4], classes=2)
    task = Task(
        "toy", lambda: data, {"paper": lambda seed: make_model()}, 1.0, 0.5, 8, 1, ROWS, "here", images=False
    )
    run = train_task(task, make_plan(), seed=0, lr_decay="linear")
    model = make_model()
    model.load_state_dict(dict(run.weights))
    right = (model(inputs[:4]).argmax(dim=1) != targets[:4]).float().mean()
    assert run.metrics == {"test_accuracy": float(right)}
