"""Trainings whose batches and noise nobody can predict or repeat."""

import numpy as np
import pytest
import torch
from scipy import stats

from decrescendo.base.rng import Secure, SecureStream
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.training import Trainer, train

from .conftest import loss, make_model, make_plan, sgd

Pair = tuple[torch.Tensor, torch.Tensor]


def test_a_secure_run_keeps_its_plan_and_is_never_repeated(data: Pair) -> None:
    plan, weights = make_plan(), []
    for _ in range(2):
        model = make_model()
        run = train(model, loss, data, plan, sgd(model), seed=Secure())
        assert run.ledger == plan.ledger
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert not torch.equal(*weights)


def test_batches_and_noise_come_from_streams_of_their_own(data: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SecureStream, "fresh", classmethod(lambda cls: cls(bytes(range(32)))))
    plan, model = make_plan(), make_model()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    trainer = Trainer(model, loss, plan, sgd(model), seed=Secure())
    root = SecureStream(bytes(range(32)))
    (expected,) = plan.sampling.batches(1, root.child("sampling"))
    batch = next(trainer.batches(data))
    rows = data[0][expected]
    assert torch.equal(torch.zeros(0, *data[0].shape[1:]) if batch is None else batch[0], rows)
    trainer.step(batch)
    assert any(not torch.equal(before[name], value) for name, value in model.named_parameters())


def test_batches_are_poisson_samples() -> None:
    sampling = PoissonSampling(500, 25)
    sizes = np.array([len(batch) for batch in sampling.batches(4000, SecureStream(bytes(range(32))))])

    def p_value(rate: float) -> float:
        edges = np.array([-1, *range(14, 38, 2), 500])
        counts = np.histogram(sizes, edges + 0.5)[0]
        return float(stats.chisquare(counts, np.diff(stats.binom.cdf(edges, 500, rate)) * len(sizes)).pvalue)

    assert p_value(sampling.sample_rate) > 1e-4
    assert max(p_value(sampling.sample_rate * factor) for factor in (0.97, 1.03)) < 1e-6
