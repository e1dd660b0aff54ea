"""`PrivateMixin`: a Hugging Face trainer that samples, clips and adds noise by a plan, and is otherwise itself."""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from decrescendo.base.rng import Secure
from decrescendo.clipping import Batch, EngineSettings, Loss
from decrescendo.errors import InvalidType, PlanViolation, UnsupportedModel
from decrescendo.integrations.hf.losses import loss as own_tokens
from decrescendo.integrations.hf.losses import problem_type_kept
from decrescendo.integrations.hf.refusals import check_arguments
from decrescendo.plans.plan import Plan
from decrescendo.training import Adaptive, Run, Store, Trainer
from decrescendo.training.data import check_one_data_set
from decrescendo.training.source import source_of
from decrescendo.training.steering import QuantileClip

if TYPE_CHECKING:
    _Base = Any  # whatever trainer comes after it among the bases
else:
    _Base = object


class PrivateMixin(_Base):
    """Before a ``transformers.Trainer`` among the bases of a class: its training follows a plan.

    The plan's sampling, clipping and noise take the place of its batches and its backward pass; optimiser, scheduler,
    callbacks, evaluation and saving stay the trainer's own. After ``trainer.follow(plan, seed=Secure())``,
    ``trainer.train()`` takes the plan's steps, and ``trainer.run`` is what may be said of them.

    Guarantee:
        that of `Trainer`, for the rows of ``train_dataset``. What the trainer logs of a step is public: a loss of 0,
        the norm of the noisy gradient, the learning rate. Scores of ``eval_dataset`` are covered by nothing.

    Edge cases:
        the batch size of the arguments is not used, and ``max_steps`` must be the plan's; each example is collated by
        itself; a training goes on from no checkpoint of the trainer's.

    Raises:
        InvalidType: a class in which another trainer's steps come first.
        InvalidValue: arguments that a private training cannot have: accumulated gradients, packing, other engines,
            choices by scores, reports that leave.
        PlanViolation: training without a plan, twice by one, or from a checkpoint.
    """

    _begin: Callable[[], Trainer] | None = None
    _private: Trainer | None = None
    _run: Run | None = None
    _people: object = None

    def follow(
        self,
        plan: Plan | Adaptive | QuantileClip,
        *,
        seed: int | Secure,
        loss: Loss = own_tokens,
        settings: EngineSettings | None = None,
        store: Store | None = None,
        name: str = "",
        people: object = None,
    ) -> None:
        """Train by this plan; see `Trainer` for the arguments.

        ``loss(model, batch)`` returns one loss an example: `loss` of this room where nothing else is said. ``people``:
        whose each row of ``train_dataset`` is, an id a row, for a plan that protects people.
        """
        steps = source_of(plan, self.model).steps
        _check_class(type(self), loss)
        check_arguments(self, steps)
        self._steps = steps
        self._epoch = max(1, round(1 / float(plan.sampling.rates(plan.steps).mean())))

        def begin() -> Trainer:
            optimizer = getattr(
                self.optimizer, "optimizer", self.optimizer
            )  # not what Accelerate wraps it in
            return Trainer(
                self.model, loss, plan, optimizer, seed=seed, settings=settings, store=store, name=name
            )

        self._begin, self._private, self._run, self._people = begin, None, None, people
        self._ended = ExitStack()

    @property
    def run(self) -> Run:
        """The run, after ``train()``: plan, ledger, guarantee, weights."""
        if self._run is None:
            raise PlanViolation("there must be a finished training, got none. Call train() first")
        return self._run

    def train(
        self, resume_from_checkpoint: Any = None, trial: Any = None, ignore_keys_for_eval: Any = None
    ) -> Any:
        """The trainer's own ``train``, by the plan."""
        if resume_from_checkpoint:
            raise PlanViolation(
                "a private training must begin at its beginning, got resume_from_checkpoint: the trainer's checkpoint "
                "holds no ledger and no place in the noise. Train with decrescendo.train(checkpoints=..)"
            )
        if self._begin is None or self._private is not None:
            raise PlanViolation(
                "a training must have a plan of its own, got train() "
                + ("without one" if self._begin is None else "again after the plan was used")
                + ". Call follow(plan, seed=Secure()) first"
            )
        check_arguments(self, self._steps)  # they may have been changed since
        try:
            with self._ended:
                done = super().train(None, trial, ignore_keys_for_eval)
            self._run = self._finished()
        except BaseException:
            if self._private is not None:
                self._private.abandon()
            raise
        return done

    def _finished(self) -> Run:
        if self._private is None:
            raise PlanViolation(
                "a training must draw its batches from the plan, got one that drew none. Call train()"
            )
        return self._private.finish()

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """Refused: each trial would be a training, and the plan pays for one."""
        raise PlanViolation(
            "a plan must pay for each training, got a search over many. See decrescendo.training.search_privately, or "
            "search on public data"
        )

    def get_train_dataloader(self) -> Any:
        """As many steps as there are; their batches stay with the plan, and the trainer sees empty ones."""
        begin = self._begin
        if begin is None:
            raise PlanViolation(
                "a training must have a plan, got none. Call follow(plan, seed=Secure()) first"
            )
        if self.train_dataset is None:
            raise PlanViolation(
                "a training must have data, got train_dataset=None. Give the trainer a train_dataset"
            )
        data, collator = self.train_dataset, self.data_collator
        check_one_data_set(data)  # before its columns are compared with the model's
        if hasattr(data, "column_names"):
            data = self._remove_unused_columns(data, description="training")
        else:
            collator = self._get_collator_with_removed_columns(collator, description="training")

        def batches() -> Iterator[Batch | None]:
            self._private = begin()
            drawn = self._private.batches(data, collator, self.args.dataloader_num_workers, self._people)
            # Whenever the trainer stops asking: workers that are left to the garbage collector are waited for.
            self._ended.callback(cast("Generator[Batch | None]", drawn).close)
            return drawn

        def end() -> None:
            self.control.should_training_stop = True

        return _Steps(batches, end, data, self._epoch)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """The noisy mean gradient in ``.grad``; returns a loss of zero, as the loss is private."""
        del num_items_in_batch  # of all examples together
        if not isinstance(inputs, _Step) or self._private is None:
            raise PlanViolation("a step must take a batch that the plan drew, got another one. Call train()")
        if model is not self.model:
            raise UnsupportedModel(
                f"the trainer must train the model itself, got it wrapped as {type(model).__name__}. Switch off what "
                "wraps it (several devices, another engine)"
            )
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        self._private.fill_gradients(inputs.batch)
        return torch.zeros((), device=self.args.device)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """The trainer's own. What Transformers notes of the labels that it meets there is not left in the model."""
        with problem_type_kept(self.model):
            return super().evaluation_loop(*args, **kwargs)

    def floating_point_ops(self, inputs: Any) -> int:
        """Zero: those of a batch would tell its size."""
        del inputs
        return 0


def _check_class(kind: type, loss: Loss) -> None:
    """The step is the mixin's, and no loss of a subclass is left aside without a word."""
    step, computed = (
        next(base for base in kind.__mro__ if name in vars(base))
        for name in ("training_step", "compute_loss")
    )
    if step is not PrivateMixin:
        raise InvalidType(
            f"training_step must be PrivateMixin's, got {step.__name__}'s: it would train without privacy. Name "
            "PrivateMixin first among the bases of the class, and look at steps from a callback"
        )
    if loss is own_tokens and computed.__module__.split(".")[0] not in ("transformers", "trl"):
        raise InvalidType(
            f"compute_loss must be the library's own, got {computed.__name__}'s: it returns one number for a batch, "
            "and steps would not use it. Give follow(plan, loss=..) one that returns a loss an example"
        )


class _Step(dict[str, Any]):
    """An empty batch for the trainer to look at, and the one that it may not."""

    batch: Batch | None = None


class _Steps:
    """In place of the trainer's loader: the plan's batches, hidden. ``length`` of them are called an epoch."""

    def __init__(
        self, begin: Callable[[], Iterator[Batch | None]], end: Callable[[], None], data: Any, length: int
    ) -> None:
        self._begin, self._end, self.dataset, self._length = begin, end, data, length
        self._batches: Iterator[Batch | None] | None = None

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[_Step]:
        if self._batches is None:  # now that the optimiser is made
            self._batches = self._begin()
        for _ in range(self._length):
            step = _Step()
            try:
                step.batch = next(self._batches)
            except StopIteration:  # a filter that refuses ends the training
                self._end()
                return
            yield step
