"""What of a Hugging Face trainer's arguments would break the guarantee, or look as if it did something."""

from collections.abc import Callable
from typing import Any

from decrescendo.errors import InvalidValue

# Name, what is right, and in words what must hold, why, and what to do. Names that a version lacks are not asked.
Rule = tuple[str, Callable[[Any], bool], str]


def _word(value: object) -> str:
    """Of an enumeration's member, or of a text."""
    return str(value).lower().rsplit(".", 1)[-1]


def _off(value: object) -> bool:
    return not value or _word(value) in ("no", "none", "false")


RULES: tuple[Rule, ...] = (
    (
        "gradient_accumulation_steps", lambda value: value == 1,
        "be 1: a Poisson batch is one step, whatever its size. EngineSettings(microbatch_size=..) saves memory",
    ),
    (
        "max_grad_norm", _off,
        "be 0: the plan clips each example's gradient, and clipping their noisy mean again trains something else",
    ),
    ("packing", _off, "be False: several examples in one row cannot be clipped one by one"),
    ("padding_free", _off, "be False: examples in one row cannot be clipped one by one"),
    ("deepspeed", _off, "be None: its engine keeps gradients where no example can be seen apart"),
    ("fsdp", _off, "be off: its engine keeps gradients where no example can be seen apart"),
    ("parallelism_config", _off, "be None: one process trains"),
    ("fp16", _off, "be False: its loss scaling steps on other gradients than were released. Take bf16=True"),
    (
        "load_best_model_at_end", _off,
        "be False: the best checkpoint by scores of private data is a choice that the plan does not pay for. "
        "Keep the last, or choose by public data yourself",
    ),
    (
        "save_strategy", lambda value: _word(value) != "best",
        "not be 'best': the best checkpoint by scores of private data is a choice that the plan does not pay for. "
        "Take 'steps' or 'no'",
    ),
    (
        "lr_scheduler_type", lambda value: _word(value) not in ("reduce_lr_on_plateau", "greedy"),
        "not follow scores: a rate decided by scores of private data is not paid for. Take a fixed one ('linear')",
    ),
    (
        "push_to_hub", _off,
        "be False: checkpoints and logs would leave while the run is going on. Read run.statement(), then push",
    ),
    (
        "include_num_input_tokens_seen", _off,
        "be 'no': how many tokens a batch has is private, and it would be in the log",
    ),
    (
        "skip_memory_metrics", lambda value: value is True,
        "be True: the memory that batches take tells how large they were, and it would be in the log",
    ),
    ("debug", _off, "be empty: it reads the values of a pass in Python. Look at a step without privacy"),
    ("label_smoothing_factor", _off, "be 0: the loss is the one given to follow(..). Smooth it there"),
    ("use_liger_kernel", _off, "be False: its fused loss sums over examples inside one operation"),
    ("torch_compile", _off, "be False: what a compiled region does cannot be proven"),
    ("auto_find_batch_size", _off, "be False: no step may be done again. EngineSettings(memory_limit=..) cuts batches"),
    ("dataloader_drop_last", _off, "be False: the plan draws the batches, and each is a step"),
    (
        "train_sampling_strategy", lambda value: _word(value) == "random",
        "be 'random': the plan draws the batches, and by no order",
    ),
    ("group_by_length", _off, "be False: the plan draws the batches, and by no order"),
    (
        "optim", lambda value: not any(kind in str(value).lower() for kind in ("lomo", "layerwise")),
        "be an optimiser that steps on gradients it is given: this one steps within the backward pass",
    ),
    ("loss_type", lambda value: value == "nll", "be 'nll': the loss is the one given to follow(..)"),
    ("activation_offloading", _off, "be False: it moves what the engine looks at. Take gradient_checkpointing"),
)  # fmt: skip


def check_arguments(trainer: Any, steps: int) -> None:
    """Refuse what a private training cannot do.

    Raises:
        InvalidValue: with the name, the value and what to do.
    """
    arguments = trainer.args
    for name, is_right, words in RULES:
        value = getattr(arguments, name, None)
        if hasattr(arguments, name) and not is_right(value):
            must, _, why = words.partition(": ")
            raise InvalidValue(f"{name} must {must}, got {name}={_shown(value)}: {why}")
    if arguments.max_steps != steps:
        raise InvalidValue(
            f"max_steps must be the plan's number of steps, {steps}, got max_steps={arguments.max_steps}. "
            f"{type(arguments).__name__}(max_steps=plan.steps) says it"
        )
    if arguments.world_size > 1 or arguments.n_gpu > 1:
        raise InvalidValue(
            f"one process with one device must train, got world_size={arguments.world_size} and "
            f"n_gpu={arguments.n_gpu}. Choose one with CUDA_VISIBLE_DEVICES"
        )
    if not _off(arguments.eval_strategy) and not _off(",".join(arguments.report_to)):
        raise InvalidValue(
            f"report_to must be 'none' while the trainer evaluates, got report_to={_shown(arguments.report_to)}: raw "
            "losses of what may be private data would leave. Score public data from a callback of your own"
        )
    if trainer.compute_loss_func is not None:
        raise InvalidValue(
            "compute_loss_func must be None, got a function: it returns one number for a batch. Give "
            "follow(plan, loss=..) one that returns a loss an example"
        )
    if any(
        type(callback).__name__ == "EarlyStoppingCallback" for callback in trainer.callback_handler.callbacks
    ):
        raise InvalidValue(
            "callbacks must not stop by scores, got EarlyStoppingCallback: when to stop would be a choice by private "
            "scores that nobody pays for. Leave it out; the plan says how long"
        )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
