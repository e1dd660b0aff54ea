"""`PrivateMixin`: a Hugging Face trainer that samples, clips and adds noise by a plan, and is otherwise itself."""

import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from decrescendo.base.rng import Secure
from decrescendo.clipping import Batch, EngineSettings, Loss, Telemetry
from decrescendo.errors import InvalidType, PlanViolation, UnsupportedModel, check_instance
from decrescendo.integrations.hf.known import assumed_of, unknown
from decrescendo.integrations.hf.losses import loss as own_tokens
from decrescendo.integrations.hf.losses import loss_and_accuracy
from decrescendo.integrations.hf.mixin_checks import PUBLIC_EVAL, check_class, check_order, given, told
from decrescendo.integrations.hf.records import Records
from decrescendo.integrations.hf.refusals import NAMES, check_arguments, check_scheduler, keeps_states
from decrescendo.integrations.hf.resuming import Beginning, States
from decrescendo.integrations.hf.scores import PrivateScores
from decrescendo.integrations.hf.steps import Step, Steps
from decrescendo.plans.plan import Plan
from decrescendo.training import Adaptive, Run, Store, Trainer, steering
from decrescendo.training.data.rows import check_by_number, check_one_data_set, table_of
from decrescendo.training.loop.schedulers import goes_by_scores
from decrescendo.training.loop.source import source_of
from decrescendo.training.processes.world import data_facts
from decrescendo.training.run import cpu_weights
from decrescendo.training.steering.source import Source


class PrivateMixin(PrivateScores):
    """Mixin for subclasses of ``transformers.Trainer`` (list it first): their training follows a plan.

    The plan's sampling, clipping and noise take the place of its batches and its backward pass; optimiser, scheduler,
    callbacks, evaluation and saving stay the trainer's own. After ``trainer.follow(plan, seed=Secure())``,
    ``trainer.train()`` takes the plan's steps, and ``trainer.run`` is what may be said of them.

    Guarantee:
        that of `Trainer`, for the rows of ``train_dataset``. What the trainer logs of a step is public: a loss of 0,
        the norm of the noisy gradient, the learning rate. Scores are covered by nothing: `PrivateScores`.

    Args:
        public_eval: a declaration: the data that the trainer evaluates on are public. Their scores may then choose the
            best checkpoint, the learning rate and the end of the training, and may be reported elsewhere; the run says
            that this is assumed. All other arguments are those of the trainer that comes after.

    Edge cases:
        the batch size of the arguments is not used, and ``max_steps`` must be the plan's; each example is collated by
        itself; what a killed training needs to go on (`train`) lies in ``output_dir/_decrescendo``, as sensitive as the
        data, until the run is finished.

    Raises:
        InvalidType: a class in which another trainer's steps come first.
        InvalidValue: arguments that a private training cannot have: accumulated gradients, packing, other engines,
            choices by scores, reports that leave; records that have several rows in ``train_dataset``.
        PlanViolation: training without a plan, or twice by one.
    """

    _records: Records | None = None
    _begin: Callable[[Any, Any, States], Trainer] | None = None
    _private: Trainer | None = None
    _run: Run | None = None
    _start: Callable[[], Iterator[Batch | None]] | None = None
    _source: Source
    _whose: tuple[object, object] = None, None  # people and strata of the rows

    def __init__(self, *args: Any, public_eval: bool = False, **kwargs: Any) -> None:
        check_instance("public_eval", public_eval, bool)
        self._public_eval = public_eval
        named = given(super().__init__, args, kwargs)
        if "peft_config" in kwargs and "peft_config" not in inspect.signature(super().__init__).parameters:
            raise InvalidType(
                f"peft_config must go to a trainer that takes one, got it for {type(self).__name__}. Give a model with "
                "adapters, peft.get_peft_model(model, config), or take PrivateSFTTrainer"
            )
        # Before the trainer makes rows of its own of them (TRL's map copies).
        self._records, self._given = Records(named.get("train_dataset")), named
        super().__init__(*args, **kwargs)
        self._records.prepared(self.train_dataset)

    def follow(
        self,
        plan: Plan | Adaptive | steering.ClipController,
        *,
        seed: int | Secure,
        loss: Loss = own_tokens,
        settings: EngineSettings | None = None,
        store: Store | None = None,
        name: str = "",
        people: object = None,
        strata: object = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        """Train by this plan; see `Trainer` for the arguments.

        ``loss(model, batch)`` returns one loss per example: `loss` of this room where nothing else is said, and
        `loss_and_accuracy` with ``Telemetry(accuracy=True)``. What telemetry says stands beside the other numbers that
        the trainer logs, averaged over the steps since it logged last. ``people``: whose each row of ``train_dataset``
        is, an id a row, for a plan that protects people; ``strata``: each row's stratum, for a stratified plan.
        """
        check_order(self.args, people, strata)
        source = source_of(plan, self.model)
        check_class(type(self), loss, PrivateMixin)
        loss = loss_and_accuracy if telemetry and telemetry.accuracy and loss is own_tokens else loss
        self._source = source
        self._check()
        sampling = plan.sampling
        self._epoch = max(1, round(sampling.dataset_size / float(sampling.sizes(plan.steps).mean())))

        def begin(data: Any, collator: Any, states: States) -> Trainer:
            # Not what Accelerate wraps it in.
            optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
            if not self._public_eval:
                check_scheduler(self.lr_scheduler)
            scheduler = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
            by_steps = isinstance(scheduler, LRScheduler) and not goes_by_scores(scheduler)
            facts, _ = data_facts(table_of(data, collator)) if states.keeps else ({}, True)
            beginning = Beginning(seed, facts.get("rows of the data", ""))
            kept = states.checkpoints(beginning, scheduler, registered=store is not None)
            return Trainer(
                self.model, loss, plan, optimizer, seed=seed, scheduler=scheduler if by_steps else None,
                settings=settings, store=store, checkpoints=kept, name=name, telemetry=telemetry,
            )  # fmt: skip

        self._begin, self._private, self._run, self._start = begin, None, None, None
        self._whose, self._ended, self._logged = (people, strata), ExitStack(), 0

    @property
    def run(self) -> Run:
        """The run, after ``train()``: plan, ledger, guarantee, weights."""
        if self._run is None:
            raise PlanViolation("there must be a finished training, got none. Call train() first")
        return self._run

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None, ignore_keys_for_eval: Any = None) -> Any:
        """The trainer's own ``train``, by the plan.

        Args:
            resume_from_checkpoint: go on with a training that was killed: ``True``, or the path of one of its newest
                checkpoints in ``output_dir``. It takes the same steps as if nothing had happened (on a CPU it comes to
                the same bits), and each step counts once.
            trial: the trainer's own.
            ignore_keys_for_eval: the trainer's own.

        Raises:
            PlanViolation: another plan, seed or other data than the checkpoint's; a repeated step that comes
                out otherwise; a training that was not finished in ``output_dir``, and is not gone on with.
            FileRefused: no checkpoint there that this training can go on from.
        """
        if self._begin is None or self._private is not None:
            raise PlanViolation(
                "a training must have a plan of its own, got train() "
                + ("without one" if self._begin is None else "again after the plan was used")
                + ". Call follow(plan, seed=Secure()) first"
            )
        self._check()  # arguments and data may have been changed since
        self._states = States(self.args.output_dir, keeps=keeps_states(self.args, self._source.agreed.planned))
        skips = self.args.ignore_data_skip
        try:
            first = self._states.resume_from(resume_from_checkpoint) if resume_from_checkpoint else None
            self.args.ignore_data_skip = False  # the plan says which batches are next
            with self._ended:
                done = super().train(first, trial, ignore_keys_for_eval)
                self._finish()
            self._states.done()
        except BaseException:
            if self._private is not None:
                self._private.abandon()
            raise
        finally:
            self.args.ignore_data_skip = skips
        return done

    def _check(self) -> None:
        """That arguments and data are those of a private training."""
        check_arguments(self, self._source.steps, public_eval=self._public_eval)
        if self._public_eval:
            self.__dict__.pop("_compared", None)  # rows of a list may have been changed since
            self._check_public()
        records = self._records or Records()
        traced = records.check(self.train_dataset, self._source.agreed.budget.unit)
        names = sorted(unknown(self.args, NAMES))
        found = (traced, assumed_of(names), PUBLIC_EVAL if self._public_eval else None)
        self._assumed = tuple(filter(None, found))

    def _finish(self) -> None:
        if self._run is not None:
            return
        if self._private is None and self._start is not None and self.state.global_step == self._source.steps:
            self._start()  # it was killed after its last step
        if self._private is None:
            raise PlanViolation("a training must draw its batches from the plan, got one that drew none. Call train()")
        self._run = self._private.finish()

    def _load_best_model(self) -> None:
        """By scores of public data: the run is that of all steps, its weights are the best checkpoint's."""
        self._finish()
        super()._load_best_model()
        if self._run is not None:
            self._run = replace(self._run, weights=cpu_weights(self.model))

    def _save_checkpoint(self, model: Any, trial: Any = None) -> None:
        """The trainer's own, after what a training needs to go on from it."""
        if self._private is not None and self._run is None:
            self._private.keep()
        super()._save_checkpoint(model, trial)

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """Refused: each trial would be a training, and the plan covers one."""
        raise PlanViolation(
            "a plan must pay for each training, got a search over many. See decrescendo.training.search_privately, or "
            "search on public data"
        )

    def get_train_dataloader(self) -> Any:
        """As many steps as there are; their batches stay with the plan, and the trainer sees empty ones."""
        begin = self._begin
        if begin is None:
            raise PlanViolation("a training must have a plan, got none. Call follow(plan, seed=Secure()) first")
        if not hasattr(self, "_states"):
            raise PlanViolation("batches of a plan must be drawn by train(), got get_train_dataloader() before it")
        if self.train_dataset is None:
            raise PlanViolation("a training must have data, got train_dataset=None. Give the trainer a train_dataset")
        data, collator = self.train_dataset, self.data_collator
        check_one_data_set(data)  # before its columns are compared with the model's
        check_by_number(data)  # before the trainer asks how many there are
        if hasattr(data, "column_names"):
            data = self._remove_unused_columns(data, description="training")
        else:
            collator = self._get_collator_with_removed_columns(collator, description="training")

        def batches() -> Iterator[Batch | None]:
            self._private = begin(data, collator, self._states)
            self._logged = int(self._private.ledger.count.sum())  # of a resumed run: the steps until then
            for assumption in self._assumed:
                self._private.assume(assumption)
            loaders, (people, strata) = self.args.dataloader_num_workers, self._whose
            drawn = self._private.batches(data, collator, loaders, people, strata=strata)
            # Whenever the trainer stops asking: workers that are left to the garbage collector are waited for.
            self._ended.callback(cast("Generator[Batch | None]", drawn).close)
            return drawn

        def end() -> None:
            self.control.should_training_stop = True

        self._start = batches
        return Steps(batches, end, lambda: self.state.global_step, data, self._epoch)

    def num_examples(self, dataloader: Any) -> int:
        """Of the data, for the trainer's log."""
        found: int = len(dataloader.rows) if isinstance(dataloader, Steps) else super().num_examples(dataloader)
        return found

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """The noisy mean gradient in ``.grad``; returns a loss of zero, as the loss is private."""
        del num_items_in_batch  # of all examples together
        if not isinstance(inputs, Step) or self._private is None:
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

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """The trainer's own, with what was released beside the gradients of the steps since the last time."""
        if self._private is not None and "loss" in logs:
            logs |= told((readings := self._private.progress().readings)[self._logged :])
            self._logged = len(readings)
        super().log(logs, *args, **kwargs)

    def floating_point_ops(self, inputs: Any) -> int:
        """Zero: those of a batch would tell its size."""
        del inputs
        return 0
