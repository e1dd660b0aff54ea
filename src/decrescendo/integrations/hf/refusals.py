"""What of a Hugging Face trainer's arguments would break the guarantee, or look as if it did something."""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, cast

from decrescendo.errors import InvalidValue

# Name, what is right, and in words what must hold, why, and what to do. Names that a version lacks are not asked.
Rule = tuple[str, Callable[[Any], bool], str]


def _word(value: object) -> str:
    """Of an enumeration's member its value (what users write), or of a text."""
    return str(value.value if isinstance(value, Enum) else value).lower()


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
    ("deepspeed", _off, "be None: its engine stores gradients of whole batches, not of each example"),
    ("fsdp", _off, "be off: its engine stores gradients of whole batches, not of each example"),
    ("parallelism_config", _off, "be None: one process trains"),
    ("fp16", _off, "be False: its loss scaling steps on other gradients than were released. Take bf16=True"),
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
    ("torch_compile", _off, "be False: the check cannot see the operations of a compiled region"),
    ("auto_find_batch_size", _off, "be False: no step may be repeated. EngineSettings(memory_limit=..) splits batches"),
    ("dataloader_drop_last", _off, "be False: the plan draws the batches, and each is a step"),
    (
        "train_sampling_strategy", lambda value: _word(value) == "random",
        "be 'random': the plan draws the batches, and by no order",
    ),
    ("group_by_length", _off, "be False: the plan draws the batches, and by no order"),
    (
        "optim", lambda value: not any(kind in _word(value) for kind in ("lomo", "layerwise")),
        "be an optimiser that steps on gradients it is given: this one steps within the backward pass",
    ),
    (
        "router_aux_loss_coef", _off,
        "be 0: a load-balancing loss is one for all tokens of a batch, and the loss is the one given to follow(..)",
    ),
    (
        "activation_checkpointing_kwargs", lambda value: not _offloads(value),
        "be without 'offload': it moves what the engine looks at. Recompute activations without it",
    ),
    (
        "gradient_checkpointing_kwargs", lambda value: not _offloads(value),
        "be without 'offload': it moves what the engine looks at. Recompute activations without it",
    ),
    (
        "enable_jit_checkpoint", _off,
        "be False: it saves in the midst of a step, which no training can go on from. Take save_steps",
    ),
    (
        "loss_type", lambda value: _word(value) in ("nll", "chunked_nll", "['sigmoid']"),
        "be 'nll', or for DPO left out: the loss is the one given to follow(..)",
    ),
    ("activation_offloading", _off, "be False: it moves what the engine looks at. Take gradient_checkpointing"),
)  # fmt: skip

_PUBLIC = "Declare public evaluation data with public_eval=True, an argument of the trainer, or"

# Where scores decide: only those of public data may.
BY_SCORES: tuple[Rule, ...] = (
    (
        "load_best_model_at_end", _off,
        "be False: the best checkpoint by scores of private data is a choice that the plan does not pay for. "
        f"{_PUBLIC} keep the last",
    ),
    (
        "save_strategy", lambda value: _word(value) != "best",
        "not be 'best': the best checkpoint by scores of private data is a choice that the plan does not pay for. "
        f"{_PUBLIC} take 'steps' or 'no'",
    ),
    (
        "lr_scheduler_type", lambda value: _word(value) not in ("reduce_lr_on_plateau", "greedy"),
        "not follow scores: a rate decided by scores of private data is not paid for. "
        f"{_PUBLIC} take a fixed one ('linear')",
    ),
)  # fmt: skip

NAMES = frozenset(("metric_for_best_model", *(name for name, *_ in (*RULES, *BY_SCORES))))


def check_arguments(trainer: Any, steps: int, *, public_eval: bool = False) -> None:
    """Refuse what a private training cannot do.

    Args:
        trainer: whose arguments and callbacks are looked at.
        steps: of the plan.
        public_eval: evaluation data are declared to be public: scores may decide.

    Raises:
        InvalidValue: with the name, the value and what to do.
    """
    arguments = trainer.args
    for name, is_right, words in RULES if public_eval else (*RULES, *BY_SCORES):
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
    if getattr(trainer, "aux_loss_enabled", False):
        raise InvalidValue(
            "router_aux_loss_coef must be 0, got the coefficient of the model's configuration: a load-balancing loss "
            "is one for all tokens of a batch, and the loss is the one given to follow(..). Say "
            "router_aux_loss_coef=0.0"
        )
    if getattr(trainer.accelerator, "scaler", None) is not None:
        raise InvalidValue(
            "mixed precision must be 'no' or 'bf16', got 'fp16' (of Accelerate's settings): its loss scaling steps on "
            "other gradients than were released. Take bf16=True"
        )
    if trainer.compute_loss_func is not None:
        raise InvalidValue(
            "compute_loss_func must be None, got a function: it returns one number for a batch. Give "
            "follow(plan, loss=..) one that returns a loss per example"
        )
    if public_eval:
        return
    evaluates = not _off(arguments.eval_strategy) or getattr(arguments, "eval_on_start", False)
    if evaluates:
        check_reports(trainer)
    if getattr(arguments, "metric_for_best_model", None) is not None:
        raise InvalidValue(
            "metric_for_best_model must be None, got "
            f"metric_for_best_model={_shown(arguments.metric_for_best_model)}: which checkpoint is kept as the best by "
            f"scores of private data is a choice that the plan does not pay for. {_PUBLIC} leave it out"
        )
    if any(
        kind.__name__ == "EarlyStoppingCallback"
        for callback in trainer.callback_handler.callbacks
        for kind in type(callback).__mro__
    ):
        raise InvalidValue(
            "callbacks must not stop by scores, got EarlyStoppingCallback: when to stop would be a choice by private "
            f"scores that nobody pays for. {_PUBLIC} leave it out: the plan says how long"
        )
    check_scheduler(trainer.lr_scheduler)


def keeps_states(arguments: Any, planned: object) -> bool:
    """Whether a trainer saves what a training can go on from: not the weights alone, and by a plan."""
    return not _off(arguments.save_strategy) and not arguments.save_only_model and planned is not None


def check_reports(trainer: Any) -> None:
    """That scores of data that are not public are reported nowhere: by ``report_to``, or by such a callback."""
    kinds = (type(callback) for callback in trainer.callback_handler.callbacks)
    reporting = [kind.__name__ for kind in kinds if kind.__module__.startswith("transformers.integrations")]
    if reporting or not _off(",".join(trainer.args.report_to)):
        raise InvalidValue(
            "report_to must be 'none' while the trainer evaluates, got "
            f"report_to={_shown(trainer.args.report_to)} and the callbacks {', '.join(reporting) or 'none'}: raw "
            f"losses of what may be private data would leave. {_PUBLIC} score public data from a callback of your own"
        )


def check_scheduler(scheduler: object) -> None:
    """That a scheduler, which a user may have made, does not follow scores of private data.

    Raises:
        InvalidValue: it does.
    """
    if any(kind.__name__ in ("ReduceLROnPlateau", "GreedyLR") for kind in type(scheduler).__mro__):
        raise InvalidValue(
            f"the scheduler must not follow scores, got {type(scheduler).__name__}: a rate decided by scores of "
            f"private data is not paid for. {_PUBLIC} take a fixed one (LambdaLR)"
        )


def _offloads(value: object) -> bool:
    return isinstance(value, Mapping) and bool(cast("Mapping[str, Any]", value).get("offload"))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
