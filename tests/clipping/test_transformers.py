"""Classes of Transformers in tiny configurations: the engine equals the slow loop, or says the way out.

The table says what happens to each class; ``python tests/support/transformers_outcomes.py`` writes it again.
"""

import importlib.metadata

import pytest
import torch
import transformers_outcomes
from transformers_outcomes import PAGE, WAYS, measure, page, read

from decrescendo.clipping import Engine

CLASSES = read()["classes"]
ACCEPTED = [name for name, row in CLASSES.items() if row["outcome"] in ("proven", "checked")]
MET = [name for name, row in CLASSES.items() if row["outcome"] != "left out"]
# Their heads and layers drop out.
DROPPING = (
    "BertForSequenceClassification", "GPT2LMHeadModel", "RobertaForMaskedLM", "DistilBertForTokenClassification",
    "BartForConditionalGeneration", "T5ForConditionalGeneration", "DebertaV2ForTokenClassification",
)  # fmt: skip
same_version = pytest.mark.skipif(
    not importlib.metadata.version("transformers").startswith(read()["transformers"] + "."),
    reason="the table is of one version of Transformers",
)


def subject_of(name: str) -> "transformers_outcomes.Subject":
    return next(subject for subject in transformers_outcomes.subjects() if subject.name == name)


def test_the_page_is_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(read()), "run python tests/support/transformers_outcomes.py --page"


def test_three_hundred_classes_are_accepted() -> None:
    assert len(ACCEPTED) >= 300


def test_a_refusal_says_the_way_out() -> None:
    for name, row in CLASSES.items():
        if row["outcome"] == "refused":
            assert any(way in row["why"] for way in WAYS), f"{name}: {row['why']}"


@pytest.mark.slow
@same_version
def test_every_class_of_the_tables_has_an_outcome() -> None:
    assert {subject.name for subject in transformers_outcomes.subjects()} == set(CLASSES)


@pytest.mark.slow
@same_version
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MET)
def test_a_class_equals_the_slow_loop_or_is_refused_as_the_table_says(name: str) -> None:
    assert measure(subject_of(name)) == CLASSES[name]


@pytest.mark.slow
@same_version
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DROPPING)
def test_a_class_in_training_mode_drops_out_by_a_stream_of_the_runs_own(name: str) -> None:
    model, (batch, other) = subject_of(name).make((5, 4), dropout=True)
    model.train()
    seeds = iter(range(1, 9))
    engine = Engine(model, subject_of(name).loss, seeds=lambda: next(seeds))
    one, two = (engine.clipped_sum(batch, 1.0).gradients for _ in range(2))
    assert any(not torch.equal(one[key], two[key]) for key in one)
    engine.clipped_sum(other, 1.0)
    assert engine.assumptions == ()
