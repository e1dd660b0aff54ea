"""`PrivacyEngine`, by Opacus' names: the user's loop, with this library's engine, sampling, noise and certificate."""

import os
import warnings
from io import IOBase
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from decrescendo.accounting import Budget
from decrescendo.base.rng import Secure
from decrescendo.clipping import EngineSettings
from decrescendo.clipping.clipped import check_clip_norm
from decrescendo.errors import PlanViolation, check_real
from decrescendo.integrations.opacus.accountant import Accountant
from decrescendo.integrations.opacus.checkpoints import Unsaved, read, written
from decrescendo.integrations.opacus.loop import Loop
from decrescendo.integrations.opacus.refusals import check_arguments, check_loader, check_module
from decrescendo.integrations.opacus.schedulers import _Scheduler
from decrescendo.integrations.opacus.wrapped import (
    PrivateLoader,
    PrivateModule,
    PrivateOptimizer,
    without_prefix,
)
from decrescendo.plans import PoissonSampling, calibrate
from decrescendo.plans.progress import CurveOrValues
from decrescendo.training import Run


class PrivacyEngine:
    """Makes a training with a loop of the user's own private, by Opacus' names and arguments.

    ``for x, y in loader: optimizer.zero_grad(); criterion(model(x), y).backward(); optimizer.step()`` stays as it is.
    What it computes between the loader and ``backward`` is recorded; in ``optimizer.step()`` the clipping engine
    computes it again for each example, checks that examples are independent, clips, adds noise and records the release.

    Args:
        accountant: ``"prv"`` is `accounting.Pld`, ``"rdp"`` is `accounting.Rdp`; ``"gdp"``, an estimate, is refused.
        secure_mode: batches and noise that nobody can predict or repeat (`Secure`), for weights that are published.
            Without it they come from a seed that torch's global generator gives.

    Guarantee:
        that of `decrescendo.Trainer`, for the examples of the loader's data set. `get_epsilon` is the upper end of what
        all trainings of this engine released.

    Edge cases:
        a batch of no rows is yielded, and is a step, whatever the loop computes of it; the loss that the loop sees is
        computed once more than the one that it trains on, with other masks of dropout.

    Raises:
        InvalidValue: arguments that mean something else here.
        UnsupportedModel: a loss that is not the mean over examples of what the loop computes for each; examples that
            are not independent.
        PlanViolation: a batch without a step, or more steps than were calibrated.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> data = torch.utils.data.TensorDataset(torch.randn(100, 4), torch.randint(2, (100,)))
    >>> model = nn.Linear(4, 2)
    >>> engine = PrivacyEngine(secure_mode=True)
    >>> model, optimizer, loader = engine.make_private(
    ...     module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    ...     data_loader=torch.utils.data.DataLoader(data, batch_size=20), noise_multiplier=1.0, max_grad_norm=1.0,
    ... )
    >>> for inputs, targets in loader:
    ...     optimizer.zero_grad()
    ...     nn.functional.cross_entropy(model(inputs), targets).backward()
    ...     optimizer.step()
    >>> engine.accountant.history
    [(1.0, 0.2, 5)]
    """

    def __init__(self, *, accountant: str = "prv", secure_mode: bool = False) -> None:
        self.accountant, self.secure_mode = Accountant(accountant), secure_mode
        if not secure_mode:
            warnings.warn(
                "secure_mode is off: batches and noise come from torch's global seed, and who knows it can take the "
                "noise away. Take secure_mode=True for weights that are published",
                UserWarning,
                stacklevel=2,
            )

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        criterion: Any = None,
        data_loader: DataLoader[Any],
        noise_multiplier: float,
        max_grad_norm: float,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: object = None,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        rand_on_empty: bool = False,
        settings: EngineSettings | None = None,
    ) -> Any:
        """Model, optimiser and loader for the loop; in ghost mode also ``criterion``, as it is, before the loader.

        Args:
            module: the model, trained in place.
            optimizer: over its parameters.
            criterion: returned as it is in ghost mode; else not used.
            data_loader: its data set, batch size, collate function and workers are used. Each example is in each batch
                with probability ``1 / len(data_loader)``.
            noise_multiplier: z >= 0; schedulers may move it.
            max_grad_norm: C; schedulers may move it.
            batch_first: True alone.
            loss_reduction: ``"mean"`` alone: the noisy sum is divided by the expected batch size.
            poisson_sampling: True alone.
            clipping: ``"flat"`` alone.
            noise_generator: None alone: see ``secure_mode``.
            grad_sample_mode: ``"hooks"`` or ``"ghost"``, which differ in what is returned: the engine chooses the
                method for each operation.
            wrap_model: True alone.
            rand_on_empty: False alone: batches of no rows have none.
            settings: of the clipping engine (`decrescendo.clipping.EngineSettings`).
        """
        check_arguments(
            grad_sample_mode, batch_first, loss_reduction, poisson_sampling, clipping, noise_generator, wrap_model,
            rand_on_empty,
        )  # fmt: skip
        module, optimizer, sampling = self._prepared(module, optimizer, data_loader)
        loop = Loop(
            module, optimizer, data_loader, sampling, self._seed(), self.accountant.beside,
            noise_multiplier=check_real("noise_multiplier", noise_multiplier, at_least=0),
            max_grad_norm=check_clip_norm("max_grad_norm", max_grad_norm), settings=settings,
        )  # fmt: skip
        return self._returned(loop, module, optimizer, data_loader, criterion, grad_sample_mode)

    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        criterion: Any = None,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        max_grad_norm: CurveOrValues,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: object = None,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        rand_on_empty: bool = False,
        privacy: CurveOrValues | None = None,
        settings: EngineSettings | None = None,
    ) -> Any:
        """`make_private` with the noise that spends ``target_epsilon`` in ``epochs`` passes, and not one step more.

        Args:
            target_epsilon: of the whole training, certified by the engine's accountant.
            target_delta: of the whole training.
            epochs: passes over the loader; a step beyond them is refused.
            max_grad_norm: C, or a curve of C_t (`decrescendo.curves`).
            privacy: curve of the relative mu_t = 1/z_t, as in `decrescendo.calibrate`; constant where nothing is said.
            module, optimizer, criterion, data_loader, batch_first, loss_reduction, poisson_sampling: as in
                `make_private`.
            clipping, noise_generator, grad_sample_mode, wrap_model, rand_on_empty, settings: likewise.
        """
        check_arguments(
            grad_sample_mode, batch_first, loss_reduction, poisson_sampling, clipping, noise_generator, wrap_model,
            rand_on_empty,
        )  # fmt: skip
        module, optimizer, sampling = self._prepared(module, optimizer, data_loader)
        plan = calibrate(
            Budget(target_epsilon, target_delta), sampling,
            steps=int(check_real("epochs", epochs, above=0) * len(data_loader)),
            privacy="constant" if privacy is None else privacy, clip=max_grad_norm,
            accountant=self.accountant.judge,
        )  # fmt: skip
        loop = Loop(
            module, optimizer, data_loader, sampling, self._seed(), self.accountant.beside, plan=plan,
            settings=settings,
        )  # fmt: skip
        return self._returned(loop, module, optimizer, data_loader, criterion, grad_sample_mode)

    def _prepared(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[Any]
    ) -> tuple[nn.Module, torch.optim.Optimizer, PoissonSampling]:
        module = module._module if isinstance(module, PrivateModule) else module
        optimizer = optimizer.original_optimizer if isinstance(optimizer, PrivateOptimizer) else optimizer
        check_module(module, optimizer)
        check_loader(loader)
        count: int = len(loader.dataset)  # pyrefly: ignore[bad-argument-type]
        return module, optimizer, PoissonSampling(count, count / len(loader))

    def _seed(self) -> int | Secure:
        return Secure() if self.secure_mode else int(torch.randint(2**62, ()))

    def _returned(
        self,
        loop: Loop,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: DataLoader[Any],
        criterion: Any,
        grad_sample_mode: str,
    ) -> Any:
        self.accountant.loops.append(loop)
        private = (
            PrivateModule(module, Unsaved(lambda: loop.tape)),
            PrivateOptimizer(optimizer, loop),
        )
        batches = PrivateLoader(loader, loop)
        return (*private, criterion, batches) if grad_sample_mode == "ghost" else (*private, batches)

    def get_epsilon(self, delta: float) -> float:
        """Upper end of the epsilon, at ``delta``, of all that was released so far.

        For a number of steps fixed in advance: where the loop ended by what it saw of the releases, the whole plan is
        spent (`run`).
        """
        return self.accountant.get_epsilon(delta)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee of all trainings so far assumes, in sentences."""
        return tuple(dict.fromkeys(str(one) for loop in self.accountant.loops for one in loop.assumptions))

    @property
    def run(self) -> Run:
        """The last training with a plan, finished: its guarantee, assumptions, statement and weights."""
        if not self.accountant.loops:
            raise PlanViolation("a run must have been trained, got none. Take make_private_with_epsilon")
        return self.accountant.loops[-1].run

    def save_checkpoint(
        self,
        *,
        path: str | os.PathLike[str] | IOBase,
        module: nn.Module,
        optimizer: PrivateOptimizer | None = None,
        noise_scheduler: _Scheduler | None = None,
        grad_clip_scheduler: _Scheduler | None = None,
        checkpoint_dict: dict[str, Any] | None = None,
        module_state_dict_kwargs: dict[str, Any] | None = None,
        torch_save_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Model, optimiser, history and schedulers at ``path``, as Opacus writes them.

        Who goes on from it draws other batches and other noise than before: steps after it that are taken again are
        releases of their own, which its history does not count. ``checkpoint_dict`` is saved with them.
        """
        content = dict(checkpoint_dict or {})
        content["module_state_dict"] = module.state_dict(**(module_state_dict_kwargs or {}))
        content["privacy_accountant_state_dict"] = self.accountant.state_dict()
        parts = {
            "optimizer": optimizer, "noise_scheduler": noise_scheduler, "grad_clip_scheduler": grad_clip_scheduler,
        }  # fmt: skip
        content |= {f"{name}_state_dict": part.state_dict() for name, part in parts.items() if part is not None}
        written(content, path, torch_save_kwargs or {})

    def load_checkpoint(
        self,
        *,
        path: str | os.PathLike[str] | IOBase,
        module: nn.Module,
        optimizer: PrivateOptimizer | None = None,
        noise_scheduler: _Scheduler | None = None,
        grad_clip_scheduler: _Scheduler | None = None,
        module_load_dict_kwargs: dict[str, Any] | None = None,
        torch_load_kwargs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """What `save_checkpoint` wrote, or Opacus' own, back into these; before the first batch is drawn.

        Returns what else it holds. After `make_private_with_epsilon` the steps that it has count as the first of the
        plan, which they must be.

        Raises:
            FileRefused: no checkpoint, or one that holds other objects than tensors, numbers and texts.
        """
        content = read(path, torch_load_kwargs or {})
        self.accountant.load_state_dict(content["privacy_accountant_state_dict"])
        module.load_state_dict(without_prefix(content["module_state_dict"]), **(module_load_dict_kwargs or {}))
        parts = {
            "optimizer": optimizer,
            "noise_scheduler": noise_scheduler,
            "grad_clip_scheduler": grad_clip_scheduler,
        }
        for name, part in parts.items():
            state = content.pop(f"{name}_state_dict", None)
            if part is not None and state:
                part.load_state_dict(state)
        return content
