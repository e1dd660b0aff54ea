"""Hugging Face's models and trainers, privately: the same run as the plain `Trainer`'s on the same rows."""

import json
import multiprocessing
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hf_tiny import ROWS, WORDS, Augmented, bert, gpt2, plan_of, texts, tokenizer, vit
from often import some
from torch import Tensor, nn

import decrescendo as dc
from decrescendo.base.rng import Secure
from decrescendo.clipping import Engine, Reference
from decrescendo.errors import (
    DecrescendoError,
    InvalidType,
    InvalidValue,
    MissingExtra,
    PlanViolation,
    UnsupportedModel,
)
from decrescendo.integrations.hf.records import ONE_ROW_A_RECORD
from decrescendo.training import Trainer
from decrescendo.training.data.examples import EXAMPLES_APART, Draw
from decrescendo.training.data.rows import table_of

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

PLAN = plan_of((2.0, 1.5, 1.2, 1.0), (1.0, 0.8, 0.5, 0.5), batch=6)
RATE = 0.02


@pytest.fixture(autouse=True)
def _without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decrescendo.training.loop.source.certify", lambda ledger, budget: PLAN.guarantee)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def settings(folder: Path, kind: Any = None, **change: Any) -> Any:
    usual = {
        "output_dir": str(folder), "max_steps": PLAN.steps, "max_grad_norm": 0, "report_to": [], "use_cpu": True,
        "save_strategy": "no", "learning_rate": RATE, "lr_scheduler_type": "constant", "logging_steps": 1,
        "disable_tqdm": True, "bf16": False, "optim": "adamw_torch",
    }  # fmt: skip
    kind = kind or transformers.TrainingArguments  # (slow to load, which is for the process that needs it)
    return kind(**{**usual, **change})


def collator(**change: Any) -> Any:
    return transformers.DataCollatorWithPadding(tokenizer(), **change)


def classifier(folder: Path, model: Any = None, data: Any = None, **change: Any) -> Any:
    collate = change.pop("data_collator", collator(pad_to_multiple_of=32))
    return dc.hf.PrivateTrainer(
        model=bert() if model is None else model, args=settings(folder, **change), data_collator=collate,
        train_dataset=texts() if data is None else data,
    )  # fmt: skip


def plain(model: nn.Module, data: Any, *, seed: Any = 3, loss: Any = dc.hf.loss, **loading: Any) -> dc.Run:
    """`decrescendo.train` with the optimiser that the trainers make."""
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
    return dc.train(model, loss, data, PLAN, optimizer, seed=seed, **loading)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


def inputs_only(data: Any) -> Any:
    return data.remove_columns([name for name in data.column_names if name == "text"])


# The three trainings


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_bert_on_ragged_text_by_the_mixin_is_the_plain_trainers_run(tmp_path: Path, workers: int) -> None:
    trainer = classifier(tmp_path, dataloader_num_workers=workers)
    trainer.follow(PLAN, seed=3)
    before = weights(trainer.model).clone()
    trainer.train()
    model = bert()
    run = plain(model, inputs_only(texts()), collate_fn=collator(pad_to_multiple_of=32))
    assert torch.equal(weights(trainer.model), weights(model))
    assert not torch.equal(weights(model), before)
    assert trainer.run.ledger == run.ledger == PLAN.ledger
    assert trainer.run.assumptions == (ONE_ROW_A_RECORD, EXAMPLES_APART)
    assert run.assumptions == (EXAMPLES_APART,)
    assert trainer.run.diagnostics == run.diagnostics


@pytest.mark.slow
def test_a_plan_for_people_asks_whose_each_row_is(tmp_path: Path) -> None:
    person = {"unit": dc.Unit.PERSON, "examples_per_person": 2}
    plan = replace(PLAN, budget=replace(PLAN.budget, **person), guarantee=replace(PLAN.guarantee, **person))
    for people, says in ((None, "people"), ([0] * ROWS, "at most 2")):
        trainer = classifier(tmp_path)
        trainer.follow(plan, seed=3, people=people)
        with pytest.raises(InvalidValue, match=says):
            trainer.train()
    trainer = classifier(tmp_path)
    trainer.follow(plan, seed=3, people=[row // 2 for row in range(ROWS)])
    trainer.train()
    assert trainer.run.ledger == plan.ledger


def test_a_plan_with_strata_asks_which_each_row_is_in(tmp_path: Path) -> None:
    sampling = dc.StratifiedPoissonSampling({"common": (30, 4.0), "rare": (10, 4.0)})
    plan = dc.calibrate(dc.Budget(8.0, 1e-3), sampling, steps=PLAN.steps, clip=1.0)
    for strata, says in ((None, "strata"), (["common"] * 30 + ["rare"] * 10, "")):
        trainer = classifier(tmp_path)
        trainer.follow(plan, seed=3, strata=strata)
        if says:
            with pytest.raises(InvalidValue, match=says):
                trainer.train()
            continue
        trainer.train()
        assert trainer.run.ledger == plan.ledger


@pytest.mark.slow
def test_a_bert_on_ragged_text_is_the_run_on_rows_padded_to_one_length() -> None:
    """Its mask leaves padding out: what each example is padded to makes no difference but rounding."""
    whole = collator(padding="max_length", max_length=24)([{k: row[k] for k in row if k != "text"} for row in texts()])
    found: list[Tensor] = []
    for data, collate in (
        (dict(whole), None),
        (inputs_only(texts()), collator()),
        (inputs_only(texts()), collator(pad_to_multiple_of=32)),
    ):
        model = bert(dropout=0.0)
        run = plain(model, data, collate_fn=collate)
        assert run.assumptions == (() if collate is None else (EXAMPLES_APART,))
        found.append(weights(model))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-3, atol=1e-4)


def lora() -> Any:
    import peft

    return peft.LoraConfig(
        r=2, lora_alpha=4, target_modules=["c_attn"], task_type="CAUSAL_LM", init_lora_weights="gaussian"
    )


@pytest.mark.slow
def test_a_gpt2_with_adapters_by_trl_is_the_plain_trainers_run(tmp_path: Path) -> None:
    import peft  # TRL takes seconds to load
    import trl

    data = texts().select_columns(["text"])
    torch.manual_seed(0)
    trainer = dc.hf.PrivateSFTTrainer(
        model=gpt2(), args=settings(tmp_path, trl.SFTConfig, max_length=16), train_dataset=data,
        processing_class=tokenizer(), peft_config=lora(),
    )  # fmt: skip
    trainer.follow(PLAN, seed=3)
    first = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    model = peft.get_peft_model(gpt2(), lora())
    model.load_state_dict(first)
    before = weights(model)
    rows = trainer.train_dataset.select_columns(["input_ids", "labels"])
    run = plain(model, rows, collate_fn=trainer.data_collator)
    assert torch.equal(weights(trainer.model), weights(model))
    assert not torch.equal(weights(model), before)
    (frozen,) = [one for one in run.assumptions if one.code == "public-frozen-parameters"]
    assert set(trainer.run.assumptions) == {ONE_ROW_A_RECORD, frozen, EXAMPLES_APART}
    assert set(run.assumptions) == {frozen, EXAMPLES_APART}
    assert trainer.run.ledger == PLAN.ledger


@pytest.mark.slow
def test_preference_pairs_are_trained_as_the_page_says(tmp_path: Path) -> None:
    import datasets
    import trl

    page = (Path(__file__).parents[2] / "docs/how-to/hugging-face.md").read_text(encoding="utf-8")
    code = page.partition("### Preference pairs (DPO)")[2].partition("```py\n")[2].partition("```")[0]
    code = code.replace('"out"', repr(str(tmp_path))).replace(
        "report_to", f"use_cpu=True, learning_rate={RATE}, report_to"
    )
    draw = random.Random(0)
    said = lambda: " ".join(draw.choice(WORDS) for _ in range(draw.randint(2, 6)))  # noqa: E731
    data = datasets.Dataset.from_list(
        [{"prompt": said(), "chosen": f" {said()}", "rejected": f" {said()}"} for _ in range(ROWS)]
    )
    model = gpt2()
    before = weights(model)
    names = {"dc": dc, "model": model, "tokenizer": tokenizer(), "pairs_of_texts": data, "plan": PLAN}
    exec(code, names)
    trainer: Any = names["trainer"]
    row = trainer.train_dataset[0]
    assert trainer.run.ledger == PLAN.ledger
    assert not torch.equal(weights(trainer.model), before)
    assert {one.code for one in trainer.run.assumptions} == {ONE_ROW_A_RECORD.code, EXAMPLES_APART.code}
    # The loss of a record is TRL's own of it.
    own = trl.DPOTrainer(
        model=trainer.model, args=settings(tmp_path, trl.DPOConfig, precompute_ref_log_probs=True),
        train_dataset=data.select(range(2)), processing_class=tokenizer(),
    )  # fmt: skip
    trainer.model.eval()
    with torch.no_grad():
        theirs = own.compute_loss(trainer.model, names["both"]([row]))
        ours = names["loss"](trainer.model, names["as_one_row"]([row]))
    assert abs(float(theirs) - 0.6931) > 0.01
    torch.testing.assert_close(ours[0], theirs, rtol=1e-4, atol=0)


@pytest.mark.slow
def test_a_vision_model_with_augmentation_and_two_workers_is_the_plain_trainers_run(tmp_path: Path) -> None:
    trainer = classifier(
        tmp_path,
        vit(),
        Augmented(),
        dataloader_num_workers=2,
        data_collator=transformers.default_data_collator,
    )
    trainer.follow(PLAN, seed=3)
    before = set(multiprocessing.active_children())
    trainer.train()
    assert before.issuperset(multiprocessing.active_children())  # what is left is waited for, five seconds each
    for workers in (0, 2):
        model = vit()
        run = plain(model, Augmented(), num_workers=workers)
        assert torch.equal(weights(trainer.model), weights(model))
        assert trainer.run.assumptions == (ONE_ROW_A_RECORD, EXAMPLES_APART)
        assert run.assumptions == (EXAMPLES_APART,)


# What stays the trainer's own


@pytest.mark.slow
def test_scheduler_callbacks_and_saving_are_the_trainers_own_and_logs_are_public(tmp_path: Path) -> None:
    class Steps(transformers.TrainerCallback):
        def __init__(self) -> None:
            self.rates: list[float] = []

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            self.rates.append(rest["optimizer"].param_groups[0]["lr"])

    seen = Steps()
    trainer = classifier(tmp_path, lr_scheduler_type="linear", save_strategy="steps", save_steps=2)
    trainer.add_callback(seen)
    trainer.follow(PLAN, seed=3)
    trainer.train()
    assert seen.rates == pytest.approx([RATE * (1 - step / 4) for step in range(4)])
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "checkpoint-4")
    assert torch.equal(weights(again), weights(trainer.model))
    state = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    steps = [line for line in state["log_history"] if "grad_norm" in line]
    assert [line["loss"] for line in steps] == [0.0] * 4
    assert all(line.keys() == {"epoch", "grad_norm", "learning_rate", "loss", "step"} for line in steps)
    assert state["total_flos"] == 0
    assert state["num_input_tokens_seen"] == 0


@pytest.mark.slow
def test_what_is_released_beside_the_gradients_is_logged_over_the_steps_since(tmp_path: Path) -> None:
    trainer = classifier(tmp_path, logging_steps=2)
    trainer.follow(PLAN, seed=3, telemetry=dc.Telemetry(norms=4, loss=True, accuracy=True))
    trainer.train()
    told = trainer.run.telemetry
    lines = [line for line in trainer.state.log_history if "grad_norm" in line]
    assert len(lines) == 2
    for line, steps in zip(lines, (told[:2], told[2:]), strict=True):
        for name in ("loss", "accuracy", "clipped_share"):
            mean = dc.training.smoothed(steps, name, window=2)
            assert mean is not None
            assert line[f"telemetry_{name}"] == pytest.approx(mean.value)
            assert line[f"telemetry_{name}_standard_error"] == pytest.approx(mean.standard_error)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, Secure()])
def test_an_empty_batch_is_a_step_of_the_trainer_too(tmp_path: Path, seed: Any) -> None:
    plan = plan_of((1.0,) * 4, (1.0,) * 4, batch=0.1)
    trainer = classifier(tmp_path)
    trainer.follow(plan, seed=seed)
    before = weights(trainer.model).clone()
    trainer.train()
    assert trainer.state.global_step == 4
    assert trainer.run.diagnostics is not None
    assert 0 in trainer.run.diagnostics.examples
    assert not torch.equal(before, weights(trainer.model))
    assert trainer.run.ledger == plan.ledger


@pytest.mark.parametrize(
    "change",
    some([{"bf16": True}, pytest.param({"gradient_checkpointing": True}, marks=pytest.mark.slow)], 0),
    ids=["bf16", "gradient_checkpointing"],
)
def test_half_precision_and_recomputed_activations(tmp_path: Path, change: dict[str, Any]) -> None:
    model = bert(dropout=0.0)
    trainer = classifier(tmp_path, model, **change)
    trainer.follow(PLAN, seed=3)
    trainer.train()
    other = bert(dropout=0.0)
    plain(other, inputs_only(texts()), collate_fn=collator(pad_to_multiple_of=32))
    tolerance = 0.05 if "bf16" in change else 1e-5
    torch.testing.assert_close(weights(model), weights(other), rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_an_adaptive_training_ends_where_its_filter_says(tmp_path: Path) -> None:
    from decrescendo.training.steering import Adaptive, Settings

    def policy(seen: Any) -> Any:
        return None if seen.step == 2 else Settings(2.0, 1.0)

    guard = dc.accounting.filters.RenyiFilter(dc.Budget(5.0, 1e-3), 8)
    adaptive = Adaptive(dc.PoissonSampling(ROWS, 6), guard, policy, steps=4)
    trainer = classifier(tmp_path)
    trainer.follow(adaptive, seed=3)
    trainer.train()
    assert trainer.run.steps == trainer.state.global_step == 2
    assert "policy ended the training" in trainer.run.stopped


# The loss


def collated(collate: Any, columns: tuple[str, ...]) -> Any:
    rows = texts().select_columns(list(columns))
    return table_of(rows, collate).take(Draw(torch.arange(6).numpy(), 1))


@pytest.mark.parametrize(
    ("build", "collate", "columns"),
    some(
        [
            (
                lambda: bert(0.0),
                collator(padding="max_length", max_length=24),
                ("input_ids", "attention_mask", "label"),
            ),
            (
                lambda: bert(0.0, "BertForMaskedLM"),
                transformers.DataCollatorForLanguageModeling(tokenizer(), mlm_probability=0.3, pad_to_multiple_of=24),
                ("input_ids", "attention_mask"),
            ),
            (
                lambda: gpt2(0.0),
                transformers.DataCollatorForLanguageModeling(tokenizer(), mlm=False, pad_to_multiple_of=24),
                ("input_ids", "attention_mask"),
            ),
        ],
        1,
    ),
    ids=["classes", "masked", "causal"],
)
def test_the_loss_of_an_example_is_the_models_own_on_it_alone(build: Any, collate: Any, columns: Any) -> None:
    model, batch = build().eval(), collated(collate, columns)
    found = dc.hf.loss(model, batch)
    assert found.shape == (6,)
    for row in range(6):
        alone = model(**{key: value[row : row + 1] for key, value in batch.items()}).loss
        expected = torch.zeros(()) if torch.isnan(alone) else alone
        torch.testing.assert_close(found[row], expected, rtol=1e-5, atol=1e-6)
    engine, slow = Engine(model, dc.hf.loss), Reference(model, dc.hf.loss)
    sums = slow.clipped_sum(batch, 0.5).gradients
    for name, gradient in engine.clipped_sum(batch, 0.5).gradients.items():
        torch.testing.assert_close(gradient, sums[name], rtol=1e-3, atol=1e-5)
    assert engine.assumptions == ()


def test_masks_of_a_masked_language_model_are_each_examples_own() -> None:
    """Its collator draws them; alone or in company an example gets the same."""
    collate = transformers.DataCollatorForLanguageModeling(tokenizer(), mlm_probability=0.3)
    table = table_of(texts().select_columns(["input_ids", "attention_mask"]), collate)
    together = table.take(Draw(torch.arange(8).numpy(), 5))  # type: ignore[arg-type]
    rows = {tuple(row.tolist()) for part in together.parts for row in part["labels"]}
    for index in range(8):
        alone = table.take(Draw(torch.tensor([index]).numpy(), 5))  # type: ignore[arg-type]
        assert tuple(alone["labels"][0].tolist()) in rows


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.top = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        return {"logits": self.top(x)}


X = torch.zeros(3, 4)
LOSSES: list[tuple[str, Callable[[], nn.Module], Any, type[DecrescendoError], str]] = [
    ("lost labels", Bare, {"x": X}, InvalidType, "must be a mapping with labels, got x"),
    ("a pair", Bare, (X, X), InvalidType, "must be a mapping with labels, got tuple"),
    ("a head that takes no labels", Bare, {"x": X, "labels": torch.zeros(3)}, UnsupportedModel, "Bare takes no labels"),
    ("a row too few", Bare, {"x": X, "labels": torch.zeros(2)}, InvalidValue, "must have one row per example"),
    (
        "no head", lambda: bert(kind="BertModel"), {"input_ids": X.long(), "labels": torch.zeros(3).long()},
        UnsupportedModel, "must return a loss, got BaseModelOutput.* without one from BertModel",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "batch", "error", "words"), [case[1:] for case in LOSSES], ids=[c[0] for c in LOSSES]
)
def test_what_the_loss_cannot_say_is_one_sentence(build: Any, batch: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        dc.hf.loss(build(), batch)
    assert "\n" not in str(caught.value)


# Wrong uses of the trainers

# As users write them, in the real objects, which make enumerations of texts.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps must be 1"),
    ({"max_grad_norm": 1.0}, "max_grad_norm must be 0"),
    ({"max_steps": 3}, "max_steps must be the plan's number of steps, 4, got max_steps=3"),
    ({"max_steps": -1}, "max_steps must be the plan's number of steps"),
    (
        {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps"},
        "lr_scheduler_type must not follow scores",
    ),
    ({"lr_scheduler_type": "greedy", "eval_strategy": "steps"}, "lr_scheduler_type must not follow scores"),
    ({"save_strategy": "best", "eval_strategy": "steps", "metric_for_best_model": "loss"}, "save_strategy must not be"),
    (
        {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps"},
        "load_best_model_at_end must be False",
    ),
    ({"metric_for_best_model": "accuracy", "eval_strategy": "steps"}, "metric_for_best_model must be None"),
    ({"metric_for_best_model": "eval_loss"}, "metric_for_best_model must be None"),  # a callback may evaluate
    ({"report_to": ["tensorboard"], "eval_strategy": "steps"}, "report_to must be 'none' while the trainer evaluates"),
    ({"report_to": ["tensorboard"], "eval_on_start": True}, "report_to must be 'none' while the trainer evaluates"),
    ({"push_to_hub": True}, "push_to_hub must be False"),
    ({"include_num_input_tokens_seen": True}, "include_num_input_tokens_seen must be 'no'"),
    ({"include_num_input_tokens_seen": "non_padding"}, "include_num_input_tokens_seen must be 'no'"),
    ({"skip_memory_metrics": False}, "skip_memory_metrics must be True, got skip_memory_metrics=False: the memory"),
    ({"debug": "underflow_overflow"}, "debug must be empty"),
    ({"label_smoothing_factor": 0.1}, "label_smoothing_factor must be 0"),
    ({"use_liger_kernel": True}, "use_liger_kernel must be False"),
    ({"torch_compile": True}, "torch_compile must be False"),
    ({"torch_compile_mode": "default"}, "torch_compile must be False"),
    ({"auto_find_batch_size": True}, "auto_find_batch_size must be False"),
    ({"dataloader_drop_last": True}, "dataloader_drop_last must be False"),
    ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy must be 'random'"),
    ({"train_sampling_strategy": "sequential"}, "train_sampling_strategy must be 'random'"),
    ({"optim": "lomo"}, "optim must be an optimiser that steps on gradients"),
    ({"optim": "adalomo"}, "optim must be an optimiser that steps on gradients"),
    ({"optim": "galore_adamw_layerwise"}, "optim must be an optimiser that steps on gradients"),
    ({"optim": "apollo_adamw_layerwise"}, "optim must be an optimiser that steps on gradients"),
    ({"enable_jit_checkpoint": True}, "enable_jit_checkpoint must be False"),
    ({"gradient_checkpointing_kwargs": {"offload": True}}, "must be without 'offload'"),
]  # fmt: skip
# Those that this machine cannot make (no GPU, no such package, one process).
NOT_MADE: list[tuple[dict[str, Any], str]] = [
    ({"fp16": True}, "fp16 must be False"),
    ({"deepspeed": {"zero_optimization": {"stage": 2}}}, "deepspeed must be None"),
    ({"fsdp": True}, "fsdp must be off"),
    ({"parallelism_config": "two devices"}, "parallelism_config must be None"),
    ({"world_size": 2}, "one process with one device must train, got world_size=2"),
]
REFUSED_BY_TRL: list[tuple[dict[str, Any], str]] = [
    ({"packing": True}, "packing must be False"),
    ({"padding_free": True}, "padding_free must be False"),
    ({"loss_type": "dft"}, "loss_type must be 'nll'"),
    ({"activation_offloading": True}, "activation_offloading must be False"),
    ({"router_aux_loss_coef": 0.01}, "router_aux_loss_coef must be 0"),
]


class Changed:
    """Arguments that this machine cannot make, as they would be."""

    def __init__(self, arguments: Any, change: dict[str, Any]) -> None:
        self.__dict__.update({"_arguments": arguments, **change})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._arguments, name)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return classifier(tmp_path_factory.mktemp("sound"))


def refused(trainer: Any, arguments: Any, change: dict[str, Any], words: str) -> None:
    kept = trainer.args
    try:
        trainer.args = arguments
        with pytest.raises(InvalidValue, match=words) as caught:
            trainer.follow(PLAN, seed=3)
    finally:
        trainer.args = kept
    assert "\n" not in str(caught.value)
    assert any(
        f"got {name}=" in str(caught.value) for name in [*change, "torch_compile", "activation_checkpointing_kwargs"]
    )


def name_of(item: Any) -> str:
    return "-".join(map(str, *[item.items()])) if isinstance(item, dict) else ""


@pytest.mark.parametrize(("change", "words"), REFUSED, ids=name_of)
def test_arguments_that_break_a_private_training_are_one_sentence(
    sound: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], words: str
) -> None:
    """In the real objects: `lr_scheduler_type="reduce_lr_on_plateau"` becomes an enumeration of another name, and was
    accepted."""
    for name in ("BACKEND", "MODE"):  # which compilation sets for the process
        monkeypatch.setenv(f"ACCELERATE_DYNAMO_{name}", "no")
    monkeypatch.setattr("transformers.training_args.is_liger_kernel_available", lambda: True, raising=False)
    refused(sound, settings(tmp_path, **change), change, words)


@pytest.mark.parametrize(("change", "words"), NOT_MADE, ids=name_of)
def test_arguments_for_other_machines_are_refused(sound: Any, change: dict[str, Any], words: str) -> None:
    refused(sound, Changed(sound.args, change), change, words)


@pytest.mark.parametrize(("change", "words"), REFUSED_BY_TRL, ids=name_of)
def test_arguments_of_trl_that_break_a_private_training_are_one_sentence(
    sound: Any, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    import trl

    refused(sound, settings(tmp_path, trl.SFTConfig, **change), change, words)


def test_every_argument_of_the_versions_tested_was_looked_at() -> None:
    """A rule for a name that was renamed would refuse nothing, and say nothing; nor does a new argument go unseen."""
    import trl

    from decrescendo.integrations.hf.known import KNOWN
    from decrescendo.integrations.hf.refusals import NAMES

    fields = {*transformers.TrainingArguments.__dataclass_fields__, *trl.SFTConfig.__dataclass_fields__}
    assert NAMES - fields == {"group_by_length"}  # of versions before 5
    assert fields <= KNOWN | NAMES
    assert not KNOWN & NAMES
    tried = {next(iter(change)) for change, _ in (*REFUSED, *NOT_MADE, *REFUSED_BY_TRL)}
    assert NAMES - tried == {
        "group_by_length",
        "activation_checkpointing_kwargs",
    }  # what the last is renamed to


def test_an_argument_that_is_not_known_is_said(sound: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from decrescendo.integrations.hf import known

    monkeypatch.setattr(known, "KNOWN", known.KNOWN - {"neftune_noise_alpha"})
    assert list(known.unknown(settings(tmp_path), frozenset(dir(sound.args)) - {"neftune_noise_alpha"})) == []
    monkeypatch.setattr(sound, "args", settings(tmp_path, neftune_noise_alpha=5.0))
    sound.follow(PLAN, seed=3)
    assert any(one.code == "unknown-arguments" and "neftune_noise_alpha" in str(one) for one in sound._assumed)


def test_real_arguments_with_accumulation_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="must be 1, got gradient_accumulation_steps=4: a Poisson batch"):
        classifier(tmp_path, gradient_accumulation_steps=4).follow(PLAN, seed=0)


def test_a_batchs_own_loss_and_choices_by_private_scores_are_refused(tmp_path: Path) -> None:
    class Mine(transformers.EarlyStoppingCallback):
        pass

    trainer = classifier(tmp_path)
    trainer.compute_loss_func = lambda *_, **__: 0
    with pytest.raises(InvalidValue, match="compute_loss_func must be None"):
        trainer.follow(PLAN, seed=3)
    for kind in (transformers.EarlyStoppingCallback, Mine):
        trainer = classifier(tmp_path)
        trainer.add_callback(kind())
        with pytest.raises(InvalidValue, match=r"must not stop by scores.*public_eval=True"):
            trainer.follow(PLAN, seed=3)
    trainer = classifier(tmp_path)
    optimizer = torch.optim.AdamW(trainer.model.parameters())
    trainer.lr_scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(InvalidValue, match=r"the scheduler must not follow scores.*public_eval=True"):
        trainer.follow(PLAN, seed=3)


def test_adapters_are_given_in_the_model_to_a_trainer_that_does_not_take_them(tmp_path: Path) -> None:
    with pytest.raises(InvalidType, match=r"peft_config must go to a trainer .*peft\.get_peft_model"):
        dc.hf.PrivateTrainer(model=bert(), args=settings(tmp_path), train_dataset=texts(), peft_config=object())


@pytest.mark.slow
def test_a_training_has_one_plan_and_one_life(tmp_path: Path) -> None:
    trainer = classifier(tmp_path)
    for use in (trainer.train, trainer.get_train_dataloader):
        with pytest.raises(PlanViolation, match=r"must have a plan.*Call follow"):
            use()
    with pytest.raises(PlanViolation, match=r"got none\. Call train"):
        _ = trainer.run
    with pytest.raises(InvalidType, match="plan must be a Plan"):
        getattr(type(trainer).follow, "__wrapped__", type(trainer).follow)(trainer, "plan.json", seed=0)
    trainer.follow(PLAN, seed=3)
    with pytest.raises(PlanViolation, match="must keep its checkpoints, got save_strategy='no'"):
        trainer.train(resume_from_checkpoint=True)
    with pytest.raises(PlanViolation, match="a search over many"):
        trainer.hyperparameter_search()
    with pytest.raises(PlanViolation, match="a batch that the plan drew"):
        trainer.training_step(trainer.model, {"input_ids": X.long()})
    trainer.train()
    with pytest.raises(PlanViolation, match="again after the plan was used"):
        trainer.train()
    trainer.follow(PLAN, seed=4)
    trainer.args.gradient_accumulation_steps = 2
    with pytest.raises(InvalidValue, match="gradient_accumulation_steps"):
        trainer.train()


def test_scores_of_data_that_are_not_public_stay_out_of_files(tmp_path: Path) -> None:
    """Checkpoints and model cards are what people publish; a report of `evaluate` by hand leaves, too."""
    for public in (False, True):
        folder, data = tmp_path / str(public), texts()
        arguments = settings(folder, eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1)
        scored = texts().map(lambda row: row) if public else data
        trainer = dc.hf.PrivateTrainer(
            model=bert(), args=arguments, data_collator=collator(pad_to_multiple_of=32), train_dataset=data,
            eval_dataset=scored, public_eval=public,
        )  # fmt: skip
        trainer.follow(PLAN, seed=3)
        trainer.train()
        assert trainer.evaluate()["eval_loss"] > 0
        assert trainer.predict(scored).metrics["test_loss"] > 0
        for score in (trainer.evaluate, trainer.predict) if public else ():  # a curve of the training loss
            for own in (data, data.select([2])):
                with pytest.raises(InvalidValue, match="public_eval=True must come with public evaluation data"):
                    score(own)
        trainer.save_state()
        trainer.create_model_card()
        written = [path.read_text() for path in folder.rglob("*") if path.suffix in (".json", ".md")]
        assert len(written) > 3
        assert any("eval_loss" in text for text in written) is public
        assert any("test_loss" in one for one in trainer.scores) is not public
        assert len([one for one in trainer.scores if one.get("eval_loss", 0) > 0]) == (0 if public else PLAN.steps + 1)
    trainer = dc.hf.PrivateTrainer(
        model=bert(),
        args=settings(tmp_path),
        data_collator=collator(pad_to_multiple_of=32),
        train_dataset=texts(),
    )
    trainer.args.report_to = ["tensorboard"]
    with pytest.raises(InvalidValue, match="report_to must be 'none' while the trainer evaluates"):
        trainer.evaluate(texts())

    class Reporting(transformers.TrainerCallback):
        """As `transformers.integrations.TensorBoardCallback`, given as a callback."""

        __module__ = "transformers.integrations.integration_utils"

    trainer.args.report_to = []
    trainer.add_callback(Reporting())
    for scores in (trainer.evaluate, trainer.predict):
        with pytest.raises(InvalidValue, match="and the callbacks Reporting"):
            scores(texts())


def test_what_trl_notes_of_predictions_is_not_in_the_log_of_the_next_step(tmp_path: Path) -> None:
    import trl  # it takes seconds to load

    class Predicting(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            trainer.predict(trainer.eval_dataset)

    data = texts().select_columns(["text"])
    logged = settings(tmp_path, trl.SFTConfig, max_length=16, logging_strategy="steps", logging_steps=1)
    trainer = dc.hf.PrivateSFTTrainer(
        model=gpt2(), args=logged, train_dataset=data, eval_dataset=data, processing_class=tokenizer(),
        callbacks=[Predicting()],
    )  # fmt: skip
    trainer.follow(PLAN, seed=0)
    trainer.train()
    assert len(trainer.state.log_history) > 1
    assert not any("eval" in key for line in trainer.state.log_history for key in line)
    assert len(trainer.scores) == PLAN.steps


def test_strata_of_rows_that_the_trainer_shuffles_are_refused(tmp_path: Path) -> None:
    import trl

    trainer = dc.hf.PrivateSFTTrainer(
        model=gpt2(), args=settings(tmp_path, trl.SFTConfig, max_length=16, shuffle_dataset=True),
        train_dataset=texts().select_columns(["text"]), processing_class=tokenizer(),
    )  # fmt: skip
    with pytest.raises(InvalidValue, match="shuffle_dataset must be False"):
        trainer.follow(PLAN, seed=0, strata=["a"] * len(trainer.train_dataset))


def test_a_class_whose_steps_are_not_private_is_refused(tmp_path: Path) -> None:
    """With the mixin after it, the trainer's own steps would have trained without noise, and said nothing."""

    class Behind(transformers.Trainer, dc.hf.PrivateMixin):
        pass

    class Stepping(dc.hf.PrivateTrainer):
        def training_step(self, *arguments: Any, **rest: Any) -> Tensor:
            return transformers.Trainer.training_step(self, *arguments, **rest)

    class Weighted(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
            return super().compute_loss(model, inputs, *rest, **more)

    class Mine(dc.hf.PrivateMixin, Weighted):
        pass

    Distilled = type("Distilled", (Weighted,), {"__module__": "trl.distilled", "compute_loss": Weighted.compute_loss})
    Student = type("Student", (dc.hf.PrivateMixin, Distilled), {})

    class Loading(dc.hf.PrivateTrainer):
        def get_train_dataloader(self) -> Any:
            return transformers.Trainer.get_train_dataloader(self)

    class Balanced(dc.hf.PrivateTrainer):
        def _get_train_sampler(self, *rest: Any) -> Any:
            raise AssertionError("never asked")

    class Masking(dc.hf.PrivateTrainer):
        def _prepare_inputs(self, inputs: Any) -> Any:
            raise AssertionError("never called")

    def trainer(kind: Any) -> Any:
        return kind(
            model=bert(),
            args=settings(tmp_path),
            data_collator=collator(pad_to_multiple_of=32),
            train_dataset=texts(),
        )

    for kind, words in (
        (Loading, "get_train_dataloader must be PrivateMixin's, got Loading's"),
        (Balanced, "_get_train_sampler must be the library's own, got Balanced's.*StratifiedPoissonSampling"),
        (Masking, "_prepare_inputs must be the library's own, got Masking's.*follow"),
        (Behind, "training_step must be PrivateMixin's, got Trainer's"),
        (Stepping, "training_step must be PrivateMixin's, got Stepping's"),
        (Mine, "compute_loss must be Trainer's or SFTTrainer's, got Weighted's"),
        (Student, "compute_loss must be Trainer's or SFTTrainer's, got Distilled's"),
    ):
        with pytest.raises(InvalidType, match=words):
            trainer(kind).follow(PLAN, seed=3)
    mine = trainer(Mine)
    mine.follow(PLAN, seed=3, loss=lambda model, batch: dc.hf.loss(model, batch) * 2)
    mine.train()
    assert mine.run.ledger == PLAN.ledger


@pytest.mark.slow
def test_data_that_a_trainer_cannot_train_on_are_one_sentence(tmp_path: Path) -> None:
    def fails(error: type[Exception], words: str, loss: Any = dc.hf.loss, **change: Any) -> None:
        trainer = classifier(tmp_path, **change)
        trainer.follow(PLAN, seed=3, loss=loss)
        with pytest.raises(error, match=words) as caught:
            trainer.train()
        assert "\n" not in str(caught.value)

    fails(InvalidValue, "must have the plan's 40 rows, got 39", data=texts().select(range(39)))
    fails(InvalidType, "must be a mapping with labels, got input_ids", data=texts().remove_columns("label"))
    fails(UnsupportedModel, "must return one loss per example", loss=lambda m, b: dc.hf.loss(m, b).mean())
    fails(InvalidType, "CrossEntropyLoss, which takes outputs and targets", loss=nn.CrossEntropyLoss())
    import datasets

    splits = datasets.DatasetDict(train=texts(), test=texts())
    fails(InvalidType, r"one data set, got 2 by name.*data\['train'\]", data=splits)
    flat = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    fails(InvalidType, "got a int in it", data_collator=flat)
    fails(InvalidType, "items by number", data=texts().to_iterable_dataset())
    trainer = classifier(tmp_path)
    trainer.train_dataset = None
    trainer.follow(PLAN, seed=3)
    with pytest.raises(PlanViolation, match="got train_dataset=None"):
        trainer.train()


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import decrescendo.integrations.hf as room

    for name, package in (("PrivateTrainer", "transformers"), ("PrivateSFTTrainer", "trl")):
        monkeypatch.delitem(room.__dict__, name, raising=False)
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(MissingExtra, match=rf'{package} must be installed .*pip install "decrescendo\[hf\]"'):
            getattr(room, name)
    with pytest.raises(AttributeError, match="no attribute 'Trainer'"):
        _ = room.Trainer


@pytest.mark.slow
def test_a_loop_of_accelerates_own_steps_the_optimiser_on_a_noisy_mean() -> None:
    import accelerate

    model = bert()
    model.train()
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0))
    trainer = Trainer(model, dc.hf.loss, PLAN, optimizer, seed=3)
    for batch in trainer.batches(inputs_only(texts()), collate_fn=collator(pad_to_multiple_of=32)):
        trainer.fill_gradients(batch)
        optimizer.step()
        optimizer.zero_grad()
    assert not any("AcceleratedOptimizer" in one for one in map(str, trainer.finish().assumptions))
    other = bert()
    plain(other, inputs_only(texts()), collate_fn=collator(pad_to_multiple_of=32))
    assert torch.equal(weights(model), weights(other))


def test_what_accelerate_prepared_is_judged_by_what_it_wraps() -> None:
    import accelerate

    from decrescendo.training.loop.optimizers import assumed_of_optimizer

    class Own(torch.optim.SGD):
        pass

    accelerator, weight = accelerate.Accelerator(cpu=True), torch.zeros(1, requires_grad=True)
    assert assumed_of_optimizer(accelerator.prepare(torch.optim.AdamW([weight], lr=RATE))) == set()
    (said,) = assumed_of_optimizer(accelerator.prepare(Own([weight], lr=RATE)))
    assert (said.code, "Own" in said.sentence) == ("own-optimizer", True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"oft": True}, r"oft_R.*between steps.*coft=False"),
        ({"alora_invocation_tokens": [3]}, "aLoRA.*leave alora_invocation_tokens out"),
        ({"monteclora": True}, "MonteCLoRA.*use plain LoRA"),
    ],
    ids=["coft", "alora", "monteclora"],
)
def test_an_adapter_that_cannot_be_trained_is_refused_with_its_own_way_out(change: dict[str, Any], words: str) -> None:
    import peft

    if "oft" in change:
        config: Any = peft.OFTConfig(oft_block_size=4, coft=True, target_modules=["query"])
    elif "monteclora" in change:
        config = peft.LoraConfig(
            r=2, target_modules=["c_attn"], task_type="CAUSAL_LM", monteclora_config=peft.MontecloraConfig()
        )
    else:
        config = peft.LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM", **change)
    model: Any = peft.get_peft_model(bert() if "oft" in change else gpt2(), config)
    ids = torch.arange(15).reshape(3, 5) % 8 + 1
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    if "oft" in change:
        batch["labels"] = torch.zeros(3, dtype=torch.long)
    with pytest.raises(UnsupportedModel, match=words):
        Engine(model.train(), dc.hf.loss, seeds=lambda: 1).check(batch)


@pytest.mark.slow
def test_two_optimisers_step_in_the_trainer(tmp_path: Path) -> None:
    model = bert()
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "encoder" in name]
    rest = [p for p in model.parameters() if all(p is not one for one in matrices)]
    several = dc.optim.Several([torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(rest, lr=RATE)])
    trainer = dc.hf.PrivateTrainer(
        model=model, args=settings(tmp_path), data_collator=collator(pad_to_multiple_of=32), train_dataset=texts(),
        optimizers=(several, None),
    )  # fmt: skip
    trainer.follow(PLAN, seed=3)
    trainer.train()
    assert trainer.run.provenance.optimizer.startswith("Muon(lr=0.01")
    assert not any("optimizer" in one.code for one in trainer.run.assumptions)
    assert all(several.state[parameter] for parameter in (matrices[0], rest[0]))
