"""Trainings of Hugging Face trainers that are killed and gone on with; and choices by scores of public data."""

import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hf_tiny import ROWS, bert, gpt2, plan_of, texts, tokenizer
from torch import Tensor

import decrescendo as dc
from decrescendo.errors import FileRefused, PlanViolation
from decrescendo.integrations.hf.mixin_checks import PUBLIC_EVAL
from decrescendo.integrations.hf.resuming import FOLDER

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # theirs
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a child"),
]

PLAN = plan_of((2.0, 1.5, 1.2, 1.0, 1.0), (1.0, 0.8, 0.5, 0.5, 0.5), batch=15)
OTHER = plan_of((2.0, 1.5, 1.2, 1.0, 1.1), (1.0, 0.8, 0.5, 0.5, 0.5), batch=15)


@pytest.fixture(autouse=True)
def _without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decrescendo.training.loop.source.certify", lambda ledger, budget: PLAN.guarantee)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def settings(folder: Path, kind: Any = None, **change: Any) -> Any:
    usual = {
        "output_dir": str(folder), "max_steps": PLAN.steps, "max_grad_norm": 0, "report_to": [], "use_cpu": True,
        "save_strategy": "steps", "save_steps": 2, "learning_rate": 0.02, "lr_scheduler_type": "linear",
        "logging_steps": 1, "disable_tqdm": True, "bf16": False, "optim": "adamw_torch",
    }  # fmt: skip
    return (kind or transformers.TrainingArguments)(**{**usual, **change})


def classifier(folder: Path, data: Any = None, **change: Any) -> Any:
    own = {name: change.pop(name) for name in ("eval_dataset", "public_eval", "callbacks") if name in change}
    collate = transformers.DataCollatorWithPadding(tokenizer(), pad_to_multiple_of=32)
    return dc.hf.PrivateTrainer(
        model=bert(), args=settings(folder, **change), data_collator=collate,
        train_dataset=texts() if data is None else data, **own,
    )  # fmt: skip


def adapted(folder: Path) -> Any:
    import peft
    import trl

    torch.manual_seed(0)
    return dc.hf.PrivateSFTTrainer(
        model=gpt2(), args=settings(folder, trl.SFTConfig, max_length=16, gradient_checkpointing=False),
        train_dataset=texts().select_columns(["text"]), processing_class=tokenizer(),
        peft_config=peft.LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM"),
    )  # fmt: skip


class Killed(transformers.TrainerCallback):
    """As the power fails."""

    def __init__(self, event: str, step: int) -> None:
        setattr(self, event, lambda args, state, control, **_: self._at(state.global_step == step))

    def _at(self, now: bool) -> None:
        if now:
            os.kill(os.getpid(), signal.SIGKILL)


def kill(make: Callable[[Path], Any], folder: Path, event: str, step: int, **following: Any) -> None:
    child = os.fork()
    if child == 0:
        try:
            trainer = make(folder)
            trainer.add_callback(Killed(event, step))
            trainer.follow(PLAN, seed=3, **{name: value() for name, value in following.items()})
            trainer.train()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def weights(trainer: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters() if p.requires_grad])


def logged(trainer: Any) -> list[Any]:
    return [line for line in trainer.state.log_history if "train_runtime" not in line]


def undisturbed(make: Callable[[Path], Any], folder: Path) -> Any:
    trainer = make(folder)
    trainer.follow(PLAN, seed=3)
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    ("make", "event", "step", "resumed"),
    [
        (classifier, "on_step_end", 3, 2),
        pytest.param(classifier, "on_pre_optimizer_step", 0, 0, marks=pytest.mark.slow),
        pytest.param(classifier, "on_save", 4, 4, marks=pytest.mark.slow),
        pytest.param(classifier, "on_save", 5, 5, marks=pytest.mark.slow),
        pytest.param(adapted, "on_pre_optimizer_step", 3, 2, marks=pytest.mark.slow),
    ],
)
def test_a_killed_training_comes_to_the_same_bits(
    tmp_path: Path, make: Any, event: str, step: int, resumed: int
) -> None:
    """A step after the last checkpoint is done again, is the same release, and counts once."""
    whole = undisturbed(make, tmp_path / "whole")
    kill(make, tmp_path / "killed", event, step)
    kept = tmp_path / "killed" / FOLDER
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    trainer = make(tmp_path / "killed")
    trainer.follow(PLAN, seed=3)
    trainer.train(resume_from_checkpoint=True)
    assert torch.equal(weights(trainer), weights(whole))
    assert trainer.run.ledger == whole.run.ledger == PLAN.ledger
    assert logged(trainer) == logged(whole)
    assert trainer.run.provenance.resumed == (resumed,)
    assert trainer.run.assumptions == whole.run.assumptions
    assert not kept.exists()  # whoever read it would know the noise


@pytest.mark.slow
def test_a_training_goes_on_with_what_it_began_with(tmp_path: Path) -> None:
    kill(classifier, tmp_path, "on_step_end", 3)

    def fails(error: Any, words: str, *, plan: Any = PLAN, seed: Any = 3, data: Any = None, given: Any = True) -> None:
        trainer = classifier(tmp_path, data)
        trainer.follow(plan, seed=seed)
        with pytest.raises(error, match=words) as caught:
            trainer.train(resume_from_checkpoint=given)
        assert "\n" not in str(caught.value)

    fails(PlanViolation, "no other training that was not finished", given=None)
    fails(PlanViolation, "the plan it began with", plan=OTHER)
    fails(PlanViolation, "the seed it began with", seed=4)
    fails((PlanViolation, FileRefused), "begun with Secure|the seed it began with", seed=dc.Secure())
    other = texts().map(lambda row: {"label": 1 - row["label"]})
    fails(PlanViolation, "the data it began with", data=other)
    fails(FileRefused, "must be True or a folder", given=str(tmp_path / "elsewhere"))
    fails(FileRefused, "whole checkpoint whose random streams are kept", given=str(tmp_path / "checkpoint-4"))
    trainer = classifier(tmp_path)
    trainer.follow(PLAN, seed=3)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert trainer.run.ledger == PLAN.ledger
    fails(FileRefused, "must be of a private training that was not finished")


@pytest.mark.slow
def test_a_killed_training_with_a_store_is_reserved_once(tmp_path: Path) -> None:
    path = tmp_path / "store"
    dc.Store.create(path, dc.Budget(10.0, 1e-3), dataset="texts", rows=ROWS)
    kill(classifier, tmp_path / "run", "on_step_end", 3, store=lambda: dc.Store(path))
    trainer = classifier(tmp_path / "run")
    trainer.follow(PLAN, seed=3, store=dc.Store(path))
    trainer.train(resume_from_checkpoint=True)
    (entry,) = dc.Store(path).entries()
    assert entry.released == PLAN.ledger


@pytest.mark.slow
def test_a_training_that_failed_before_its_first_step_begins_anew(tmp_path: Path) -> None:
    trainer = classifier(tmp_path)
    trainer.follow(PLAN, seed=3, loss=lambda model, batch: dc.hf.loss(model, batch).mean())
    with pytest.raises(dc.errors.UnsupportedModel, match="one loss per example"):
        trainer.train()
    assert undisturbed(classifier, tmp_path).run.ledger == PLAN.ledger


@pytest.mark.slow
@pytest.mark.parametrize("lr", ["linear", pytest.param("reduce_lr_on_plateau", marks=pytest.mark.slow)])
def test_scores_of_public_data_may_choose_and_the_run_says_so(tmp_path: Path, lr: str) -> None:
    """It was refused also for public data."""
    public = texts().map(lambda row: row)
    trainer = classifier(
        tmp_path, eval_dataset=public, public_eval=True, callbacks=[transformers.EarlyStoppingCallback(1)],
        load_best_model_at_end=True, eval_strategy="steps", eval_steps=1, save_steps=1, lr_scheduler_type=lr,
        learning_rate=0.05,
    )  # fmt: skip
    trainer.follow(PLAN, seed=3)
    trainer.train()
    scores = [line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line]
    best = Path(trainer.state.best_model_checkpoint)
    assert best.name == f"checkpoint-{1 + scores.index(min(scores))}"
    chosen = transformers.BertForSequenceClassification.from_pretrained(best).state_dict()
    assert all(torch.equal(trainer.run.weights[name], value) for name, value in chosen.items())
    assert trainer.run.steps == len(scores) > scores.index(min(scores))  # all of them are paid for
    assert PUBLIC_EVAL in trainer.run.assumptions
    assert "public_eval=True" in trainer.run.statement().to_markdown()
