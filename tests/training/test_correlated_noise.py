"""Trainings with correlated noise: who is drawn when, what is released, and that nothing of it is lost in a crash."""

import math
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from banded_plans import banded_plan, inverse_of
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import Life
from scipy import stats
from torch import nn

from decrescendo import Budget, PoissonSampling, calibrate
from decrescendo.base.rng import Secure, SecureStream, grouping
from decrescendo.clipping import EngineSettings
from decrescendo.clipping.reference import Reference
from decrescendo.errors import FileRefused, PlanViolation
from decrescendo.optim import AdamBC
from decrescendo.plans.plan import Plan
from decrescendo.training import Checkpoints, Run, Trainer, train
from decrescendo.training.loop import releasing
from decrescendo.training.loop.beginning import SAME_ORDER
from decrescendo.training.loop.drawing import RunStreams
from decrescendo.training.persistence.checkpoint.checkpoints import read_state, states_in, write_state

ROWS = 40
PLAN = banded_plan(7, 3, records=ROWS, batch=[8, 6, 4, 8, 6, 4, 2], clip=[1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4])


def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(ROWS, 3, generator=generator),
        torch.randint(0, 2, (ROWS,), generator=generator),
        torch.arange(ROWS),
    )


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 2))
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def bits(run: Run) -> bytes:
    return b"".join(value.numpy().tobytes() for value in run.weights.values())


def go(plan: Plan = PLAN, seed: int | Secure = 5, stop: int | None = None, **more: Any) -> Run:
    model, optimizer = parts()
    ends: Callable[[Any], bool] | None = None if stop is None else lambda progress: progress.step >= stop
    return train(model, loss, data(), plan, optimizer, seed=seed, callback=ends, **more)


class TestTurns:
    def _drawn(self, plan: Plan, seed: int | Secure = 0, parts_of: int = 1) -> list[list[int]]:
        """The rows of each batch; with ``parts_of`` 2 by two iterators, one after another."""
        model, optimizer = parts()
        trainer, found = Trainer(model, loss, plan, optimizer, seed=seed), list[list[int]]()
        given_data = data()
        for part in range(parts_of):
            for batch in trainer.batches(given_data):
                found.append([] if batch is None else batch[2].tolist())
                trainer.step(batch)
                if part + 1 < parts_of and len(found) == 4:
                    break
        assert trainer.ledger == plan.ledger
        return found

    @pytest.mark.parametrize("seed", [0, 1, Secure()])
    def test_a_record_has_one_group_and_takes_part_in_its_turns_only(self, seed: int | Secure) -> None:
        plan = banded_plan(12, 3, records=ROWS, batch=13)  # of a group nearly everybody
        drawn = self._drawn(plan, seed)
        turns = [{row for batch in drawn[group::3] for row in batch} for group in range(3)]
        assert sum(map(len, turns)) == len(set().union(*turns))
        assert all(sum(map(len, drawn[group::3])) > 10 for group in range(3))

    def test_two_iterators_and_a_restart_have_the_same_groups(self, tmp_path: Path) -> None:
        plan = banded_plan(12, 3, records=ROWS, batch=13)
        assert self._drawn(plan, parts_of=2) == self._drawn(plan)
        seen: list[list[int]] = []

        def noted(model: nn.Module, batch: Any) -> torch.Tensor:
            return loss(model, batch)

        for life, stop in enumerate((3, 5, 12)):
            model, optimizer = parts()
            checkpoints = Checkpoints(tmp_path, every=1, resume=life > 0)
            trainer = Trainer(model, noted, plan, optimizer, seed=0 if not life else 9, checkpoints=checkpoints)
            for batch in trainer.batches(data()):
                seen.append([] if batch is None else batch[2].tolist())
                trainer.step(batch)
                if len(seen) == stop:
                    break
            trainer.keep()
        assert seen == self._drawn(plan)

    def test_rates_are_those_of_the_ledger(self) -> None:
        """How often each step's batch has a record, over its group's turns and all seeds: b B_t / N within its group,
        B_t / N of all."""
        steps, plan = 7, PLAN
        counts, tries = np.zeros(steps), 400
        for seed in range(tries):
            streams = RunStreams.of(seed, plan.sampling, plan.correlation)
            groups = streams.groups(plan.sampling, None)
            counts += [len(batch) for batch in plan.sampling.batches(steps, streams.sampling, groups)]
        expected = plan.batch_size * tries
        assert stats.chi2.sf(np.sum((counts - expected) ** 2 / expected), steps) > 1e-4
        assert plan.ledger.sample_rate.tolist() == pytest.approx((3 * plan.batch_size / ROWS).tolist())

    def test_one_record_more_changes_nobody_elses_group(self) -> None:
        for seed in (0, Secure()):
            stream = grouping(seed)
            state = stream.key if isinstance(stream, SecureStream) else None
            fewer = banded_plan(records=ROWS).sampling.groups(SecureStream(state) if state else grouping(0))
            more = banded_plan(records=ROWS + 1).sampling.groups(SecureStream(state) if state else grouping(0))
            for one, other in zip(fewer, more, strict=True):
                assert one.tolist() == [row for row in other.tolist() if row < ROWS]

    def test_all_records_of_a_person_are_in_one_group(self) -> None:
        whose = np.random.default_rng(0).permutation(np.arange(ROWS) // 4)
        streams = RunStreams.of(0, PLAN.sampling, PLAN.correlation)
        groups = streams.groups(PLAN.sampling, whose)
        assert sorted(np.concatenate(groups).tolist()) == list(range(ROWS))
        assert sum(len(set(whose[members])) for members in groups) == ROWS // 4
        assert min(map(len, groups)) > 0

    def test_other_data_in_the_midst_of_a_run_are_among_its_assumptions(self, tmp_path: Path) -> None:
        assert SAME_ORDER not in go().assumptions
        go(stop=3, checkpoints=Checkpoints(tmp_path, every=1))
        assert SAME_ORDER in go(checkpoints=Checkpoints(tmp_path, resume=True)).assumptions


class TestReleases:
    def test_each_is_the_clipped_sum_and_the_noise_of_its_step(self) -> None:
        """Against the slow clipper, an own copy of the noise, and a step of SGD by hand."""
        torch.manual_seed(1)
        model = nn.Linear(3, 2).double()
        other = nn.Linear(3, 2).double()
        other.load_state_dict(model.state_dict())
        rows = (data()[0].double(), data()[1])
        run = train(model, loss, rows, PLAN, torch.optim.SGD(model.parameters(), lr=0.5), seed=5,
                    settings=EngineSettings(accumulate="float64"))  # fmt: skip
        streams = RunStreams.of(5, PLAN.sampling, PLAN.correlation)
        groups, inverse = streams.groups(PLAN.sampling, None), inverse_of(PLAN.correlation)
        batches = PLAN.sampling.batches(PLAN.steps, streams.sampling, groups)
        clipper, xi = Reference(other, loss), list[np.ndarray]()
        for step, drawn in enumerate(batches):
            batch = None if not len(drawn) else tuple(part[torch.from_numpy(drawn)] for part in rows)
            clip, size = float(PLAN.clip_norm[step]), float(PLAN.batch_size[step])
            total = clipper.clipped_sum(batch, clip).gradients
            if step % 2 == 0:  # two steps at once
                block = [streams.noise.reserve(8) for _ in range(min(2, PLAN.steps - step))]
            streams.noise.reserve(1)
            words = block[step % 2]
            xi.append(streams.noise.__class__(words.key, 8 * words.start).add_gaussian(np.zeros(8), 1.0))
            noise = clip * sum(inverse[step][s] * xi[s] for s in range(step + 1))
            place = 0
            for name, parameter in sorted(other.named_parameters()):
                part = torch.from_numpy(noise[place : place + parameter.numel()]).view(parameter.shape)
                place += parameter.numel()
                with torch.no_grad():
                    parameter -= 0.5 * (total[name] + part) / size
        assert run.ledger == PLAN.ledger
        for name, value in other.state_dict().items():
            assert torch.allclose(run.weights[name], value, rtol=0, atol=1e-4), name

    def test_the_optimiser_is_told_the_noise_of_each_step_by_itself(self) -> None:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer, told = AdamBC(model.parameters()), list[float]()
        expect = optimizer.expect_noise
        with mock.patch.object(
            optimizer, "expect_noise", lambda std: (None if std is None else told.append(std), expect(std))[1]
        ):
            train(model, loss, data(), PLAN, optimizer, seed=0)
        assert told == pytest.approx((PLAN.noise_std / PLAN.batch_size).tolist(), rel=1e-5)
        assert told != pytest.approx((PLAN.schedule.noise_std / PLAN.batch_size).tolist(), rel=1e-2)

    def test_a_parameter_that_is_frozen_on_the_way_is_refused(self) -> None:
        model, optimizer = parts()
        trainer = Trainer(model, loss, PLAN, optimizer, seed=0)
        batches = trainer.batches(data())
        trainer.step(next(batches))
        next(iter(model.parameters())).requires_grad_(False)
        batch = next(batches)
        with pytest.raises(PlanViolation, match="must train the same parameters at every step"):
            trainer.step(batch)
        assert len(trainer.ledger) == 1


class TestCrashes:
    @settings(max_examples=3, deadline=None)
    @given(stops=st.lists(st.integers(1, 6), max_size=3), every=st.integers(1, 4), seeded=st.booleans())
    def test_a_run_that_is_gone_on_with_has_the_same_bits(self, stops: list[int], every: int, seeded: bool) -> None:
        seed: int | Secure = 5 if seeded else Secure()
        with tempfile.TemporaryDirectory() as kept:
            begun = Path(kept) / "begun"
            go(seed=seed, stop=1, checkpoints=Checkpoints(begun, every=9))  # the first checkpoint is of no step
            runs = []
            for name, ends in (("calm", []), ("rough", sorted(stops))):
                folder = Path(kept) / name
                shutil.copytree(begun, folder)
                for stop in ends:
                    go(seed=seed, stop=stop, checkpoints=Checkpoints(folder, every=every, resume=True))
                runs.append(go(seed=seed, checkpoints=Checkpoints(folder, every=every, resume=True)))
        calm, rough = runs
        assert bits(calm) == bits(rough)
        assert calm.ledger == rough.ledger == PLAN.ledger
        if seeded:
            assert bits(calm) == bits(go())

    @pytest.mark.slow  # what it goes on from is that of the test above
    def test_killed_at_any_moment_it_ends_with_the_same_bits(self, tmp_path: Path) -> None:
        """SIGKILL in the midst of steps, three times; a hundred times in tests/distributed/test_kills.py."""
        ends = []
        for name, kills in (("calm", 0), ("rough", 3)):
            folder = tmp_path / name
            folder.mkdir()
            for kill in range(kills):
                life = Life("banded_life", 0, folder=str(folder))
                assert life.waits_for(partial(_has_seen, folder, 4 * kill + 2))
                life.kill([0])
                (outcome,), _ = life.ends(within=60)
                assert outcome.gone
            (outcome,), _ = Life("banded_life", 0, folder=str(folder)).ends(within=60)
            assert not outcome.error, outcome
            ends.append(outcome.value)
        assert ends[0] == ends[1]

    def test_a_release_that_could_not_be_written_down_is_not_drawn_again(self, tmp_path: Path) -> None:
        model, optimizer = parts()
        trainer = Trainer(model, loss, PLAN, optimizer, seed=5, checkpoints=Checkpoints(tmp_path, every=1))
        batches = trainer.batches(data())
        for _ in range(2):
            trainer.step(next(batches))
        batch = next(batches)
        with (
            mock.patch.object(releasing.Releasing, "record", side_effect=FileRefused("full")),
            pytest.raises(FileRefused),
        ):
            trainer.step(batch)
        with pytest.raises(PlanViolation, match="once at each step, in order, got step 3 after 3"):
            trainer.step(batch)
        assert bits(go(checkpoints=Checkpoints(tmp_path, resume=True))) == bits(go())

    def test_what_a_checkpoint_holds(self, tmp_path: Path) -> None:
        """b - 1 arrays of 4 bytes a parameter; none where noise is independent."""
        go(stop=5, checkpoints=Checkpoints(tmp_path / "banded", every=1))
        found = read_state(states_in(tmp_path / "banded")[-1]).state
        count = sum(p.numel() for p in parts()[0].parameters())
        assert [sum(v.nbytes for v in one.values()) for one in found["correlated"]["rows"]] == [4 * count] * 2
        assert found["grouping"]["kind"] == "numpy"
        plain = calibrate(Budget(4.0, 1e-3), PoissonSampling(ROWS, 8), steps=4, clip=1.0)
        go(plain, stop=2, checkpoints=Checkpoints(tmp_path / "plain", every=1))
        assert not {"correlated", "grouping"} & read_state(states_in(tmp_path / "plain")[-1]).state.keys()

    @pytest.mark.parametrize("change", ["step", "array", "none"])
    def test_earlier_noise_that_does_not_fit_is_refused(self, change: str, tmp_path: Path) -> None:
        go(stop=6, checkpoints=Checkpoints(tmp_path, every=5))
        path = states_in(tmp_path)[-1]
        found = read_state(path)
        state = dict(found.state)
        if change == "step":
            state["correlated"] = {**state["correlated"], "taken": 4}
        elif change == "array":
            state["correlated"] = {**state["correlated"], "rows": state["correlated"]["rows"][:1]}
        else:
            del state["correlated"]
        write_state(tmp_path, found.step, state, kept=1)
        with pytest.raises(FileRefused):
            go(checkpoints=Checkpoints(tmp_path, resume=True))


def _has_seen(folder: Path, least: int) -> bool:
    path = folder / "seen"
    return path.exists() and max(map(int, path.read_text().split()), default=0) >= least


def test_the_margin_for_rounding_is_small() -> None:
    streams = RunStreams.of(0, PLAN.sampling, PLAN.correlation)
    assert streams.correlated is not None
    assert math.sqrt(26) * streams.correlated.grid < 1e-5
