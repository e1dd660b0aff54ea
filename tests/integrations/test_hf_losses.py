"""`hf.loss` is the model's own loss of each example alone, or a refusal: classes of Transformers, methods of PEFT."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hf_losses
import peft
import pytest
import torch
import transformers
from hf_tiny import bert, plan_of, texts, tokenizer
from torch import Tensor

import decrescendo as dc
from decrescendo.base.batches import OneByOne
from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.errors import UnsupportedModel

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

# One of each way in which a forward pass uses labels: it makes a decoder's inputs of them (BART, T5, Whisper), shifts
# them (GPT-2) or does not (XLM, XLNet, BART's decoder alone), there are two of them, spans, transcripts; and refusals.
SAMPLE = (
    "BartForConditionalGeneration", "T5ForConditionalGeneration", "GPT2LMHeadModel", "XLMWithLMHeadModel",
    "XLNetLMHeadModel", "BertForPreTraining", "BertForQuestionAnswering", "Wav2Vec2ForCTC", "BartForCausalLM",
    "WhisperForConditionalGeneration", "BertForSequenceClassification of several labels, unset", "CLIPModel",
    "MixtralForCausalLM with balance", "ProphetNetForConditionalGeneration",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("name", SAMPLE)
def test_the_loss_is_the_models_own_of_each_example_alone_or_refused(name: str) -> None:
    expected = hf_losses.read()[name]
    assert expected["outcome"] in ("equal", "refused")
    assert hf_losses.outcome(dict(hf_losses.cases())[name])["outcome"] == expected["outcome"]


@pytest.mark.slow
def test_every_class_with_labels_is_as_the_table_says() -> None:
    """A quarter of an hour: the table's counts stand on docs/how-to/hugging-face.md."""
    table = hf_losses.read()
    assert not [name for name, row in table.items() if row["outcome"] == "different"]
    assert sum(row["outcome"] == "equal" for row in table.values()) >= 300
    for name, make in hf_losses.cases():
        assert hf_losses.outcome(make)["outcome"] == table[name]["outcome"], name


def test_the_page_says_how_many_classes_there_are() -> None:
    outcomes = [row["outcome"] for row in hf_losses.read().values()]
    page = (Path(__file__).parents[2] / "docs/how-to/hugging-face.md").read_text(encoding="utf-8")
    for outcome in ("equal", "refused", "left out"):
        assert str(outcomes.count(outcome)) in page


class TestAdapters:
    """PEFT's methods over one small causal model."""

    ON = ("q_proj", "v_proj")
    MADE: dict[str, Callable[[], Any]] = {  # noqa: RUF012 (nobody writes to it)
        "AdaLoRA": lambda: peft.AdaLoraConfig(init_r=3, target_r=2, total_step=10, orth_reg_weight=0.5),
        "prompt tuning": lambda: peft.PromptTuningConfig(num_virtual_tokens=4),
        "p-tuning": lambda: peft.PromptEncoderConfig(num_virtual_tokens=4, encoder_hidden_size=8),
        "LoRA": lambda: peft.LoraConfig(r=2),
        "DoRA": lambda: peft.LoraConfig(r=2, use_dora=True),
        "rsLoRA": lambda: peft.LoraConfig(r=2, use_rslora=True),
        "IA3": lambda: peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
        "LoHa": lambda: peft.LoHaConfig(r=2),
        "LoKr": lambda: peft.LoKrConfig(r=2),
        "OFT": lambda: peft.OFTConfig(r=0, oft_block_size=4),
        "BOFT": lambda: peft.BOFTConfig(boft_block_size=4),
        "VeRA": lambda: peft.VeraConfig(r=2, target_modules=["q_proj"]),
        "FourierFT": lambda: peft.FourierFTConfig(n_frequency=10),
        "HRA": lambda: peft.HRAConfig(r=2),
        "layer norms": lambda: peft.LNTuningConfig(target_modules=["input_layernorm"]),
        "prefix tuning": lambda: peft.PrefixTuningConfig(num_virtual_tokens=4),
        "VB-LoRA": lambda: peft.VBLoRAConfig(r=2, num_vectors=8, vector_length=4, topk=2),
        "MiSS": lambda: peft.MissConfig(r=2),
        "RandLoRA": lambda: peft.RandLoraConfig(r=2, target_modules=["q_proj"]),
        "C3A": lambda: peft.C3AConfig(block_size=4),
        "trainable tokens": lambda: peft.TrainableTokensConfig(token_indices=[1, 2], target_modules=["embed_tokens"]),
        "SHiRA": lambda: peft.ShiraConfig(r=1),
        "RoAd": lambda: peft.RoadConfig(group_size=8),
        "WaveFT": lambda: peft.WaveFTConfig(n_frequency=8),
        "DeLoRA": lambda: peft.DeloraConfig(r=2),
        "GraLoRA": lambda: peft.GraloraConfig(r=2, gralora_k=2),
        "adaption prompt": lambda: peft.AdaptionPromptConfig(adapter_len=4, adapter_layers=2),
        "AdaMSS": lambda: peft.AdamssConfig(),
        "BEFT": lambda: peft.BeftConfig(),
        "Lily": lambda: peft.LilyConfig(r=2),
        "FRoD": lambda: peft.FrodConfig(),
        "PVeRA": lambda: peft.PveraConfig(r=2, target_modules=["q_proj"]),
        "GLoRA": lambda: peft.GloraConfig(),
        "UniLoRA": lambda: peft.UniLoraConfig(),
        "HiRA": lambda: peft.HiraConfig(r=2),
        "OSF": lambda: peft.OSFConfig(),
        "cartridge": lambda: peft.CartridgeConfig(num_virtual_tokens=4),
        "TinyLoRA": lambda: peft.TinyLoraConfig(),
        "PSOFT": lambda: peft.PsoftConfig(r=4),
        "PEANUT": lambda: peft.PeanutConfig(),
        "supertuning": lambda: peft.SupertuningConfig(),
        "DEFT": lambda: peft.DeftConfig(),
    }  # fmt: skip
    # As a batch: parameters inside functions of their own, a mean over experts of the batch, hooks on gradients.
    ONE_BY_ONE = ("LoHa", "RandLoRA", "C3A", "Lily", "FRoD", "OSF")

    @staticmethod
    def batch() -> dict[str, Tensor]:
        ids = torch.randint(1, 32, (3, 8), generator=torch.Generator().manual_seed(1))
        mask = torch.ones_like(ids)
        mask[1, 5:] = mask[2, 3:] = 0
        labels = ids.where(mask == 1, torch.tensor(-100))
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    def model(self, name: str) -> Any:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0,
        )  # fmt: skip
        adapter = self.MADE[name]()
        adapter.task_type = "CAUSAL_LM"
        # An adaption prompt knows its own module by the model's type, once nothing is named.
        if getattr(adapter, "target_modules", "none") is None and name != "adaption prompt":
            adapter.target_modules = set(self.ON)
        return peft.get_peft_model(transformers.LlamaForCausalLM(config), adapter).eval()

    @pytest.mark.parametrize(
        "name",
        [name if at < 3 else pytest.param(name, marks=pytest.mark.slow) for at, name in enumerate(MADE)],
    )
    def test_the_loss_is_the_adapted_models_own_of_each_example_alone(self, name: str) -> None:
        """Logits are longer than labels where a prompt is put before them; AdaLoRA adds a term of its own."""
        model, batch = self.model(name), self.batch()
        alone = []
        with torch.no_grad():
            for row in range(3):
                torch.manual_seed(0)
                alone.append(model(**{key: value[row : row + 1] for key, value in batch.items()}).loss.reshape(()))
            torch.manual_seed(0)
            torch.testing.assert_close(dc.hf.loss(model, batch), torch.stack(alone), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize(
        "name",
        [name if at < 2 else pytest.param(name, marks=pytest.mark.slow) for at, name in enumerate(MADE)],
    )
    def test_sums_are_those_of_the_reference(self, name: str) -> None:
        model, batch, settings = self.model(name), self.batch(), EngineSettings()
        if name in self.ONE_BY_ONE:
            with pytest.raises(UnsupportedModel, match="one_example_a_pass=True"):
                Engine(model, dc.hf.loss).clipped_sum(batch, 0.5)
            settings = EngineSettings(one_example_a_pass=True)
        expected = Reference(model, dc.hf.loss).clipped_sum(batch, 0.5).gradients
        rows = tuple({key: value[row : row + 1] for key, value in batch.items()} for row in range(3))
        given = OneByOne(rows) if settings.one_example_a_pass else batch
        found = Engine(model, dc.hf.loss, settings).clipped_sum(given, 0.5).gradients
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)

    def test_the_page_names_the_methods_that_cannot_be_clipped_as_a_batch(self) -> None:
        page = (Path(__file__).parents[2] / "docs/how-to/hugging-face.md").read_text(encoding="utf-8")
        assert f"Of {len(self.MADE)} other methods of PEFT" in page
        assert ", ".join(self.ONE_BY_ONE[:-1]) + f" and {self.ONE_BY_ONE[-1]}" in page


@pytest.mark.parametrize(
    "name",
    [
        "BartForConditionalGeneration",
        pytest.param("T5ForConditionalGeneration", marks=pytest.mark.slow),
        "XLNetLMHeadModel",
    ],
)
def test_sums_of_models_that_make_inputs_of_labels_are_those_of_the_reference(name: str) -> None:
    model, batch = dict(hf_losses.cases())[name]()
    model = model.double()
    found = Engine(model, dc.hf.loss).clipped_sum(batch, 0.5).gradients
    expected = Reference(model, dc.hf.loss).clipped_sum(batch, 0.5).gradients
    torch.testing.assert_close(found, expected)


def test_a_ctc_loss_trains_and_its_switch_of_cudnn_is_no_change_of_settings() -> None:
    """Transformers computes it inside of `torch.backends.cudnn.flags`, which reads and rewrites precisions."""
    model, batch = dict(hf_losses.cases())["Wav2Vec2ForCTC"]()
    engine = Engine(model, dc.hf.loss)
    found = engine.clipped_sum(batch, 0.5).gradients
    expected = Reference(model, dc.hf.loss).clipped_sum(batch, 0.5).gradients
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    assert engine.assumptions == ()


def test_a_loss_that_balances_experts_over_the_batch_is_refused_with_the_way_out() -> None:
    model, batch = dict(hf_losses.cases())["MixtralForCausalLM with balance"]()
    with pytest.raises(UnsupportedModel, match="output_router_logits = False"):
        Engine(model, dc.hf.loss).clipped_sum(batch, 1.0)


@pytest.mark.slow
def test_an_evaluation_leaves_nothing_in_the_model_that_a_run_would_have_to_assume(tmp_path: Path) -> None:
    """Transformers notes ``config.problem_type`` of the first labels that it sees."""
    plan = plan_of((2.0, 1.5), (1.0, 0.8), batch=6)
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=plan.steps, max_grad_norm=0, report_to=[], use_cpu=True, save_strategy="no",
        eval_strategy="steps", eval_steps=1, disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    model, rows = bert(), texts()
    trainer = dc.hf.PrivateTrainer(
        model=model, args=arguments, train_dataset=rows, eval_dataset=rows,
        data_collator=transformers.DataCollatorWithPadding(tokenizer(), pad_to_multiple_of=8),
    )  # fmt: skip
    trainer.follow(plan, seed=3)
    trainer.train()
    assert model.config.problem_type is None
    assert not [one for one in map(str, trainer.run.assumptions) if "were changed between steps" in one]
