"""What a private trainer of Hugging Face does with the scores of data that were not declared public."""

from typing import TYPE_CHECKING, Any

from decrescendo.integrations.hf.losses import problem_type_kept
from decrescendo.integrations.hf.mixin_checks import given
from decrescendo.integrations.hf.records import check_public
from decrescendo.integrations.hf.refusals import check_reports

if TYPE_CHECKING:
    _Base = Any  # whatever trainer comes after it among the bases
else:
    _Base = object


class PrivateScores(_Base):
    """The evaluation of a `PrivateMixin`.

    Raw scores have no noise. Unless their data are public, those of `evaluate` (printed) and `predict` are returned,
    and are in `scores`, but not in ``state.log_history``: that goes into ``checkpoint-N/trainer_state.json`` and the
    model card. (``save_metrics`` writes what you give it.)
    """

    _public_eval = False

    @property
    def scores(self) -> list[dict[str, float]]:
        """The scores of data that were not declared public, in order, each with its step: covered by no guarantee."""
        return self.__dict__.setdefault("_scores", [])

    def _check_public(self, *scored: object) -> None:
        """That no row of these, which are declared to be public, is trained on."""
        named, compared = self.__dict__.get("_given", {}), self.__dict__.setdefault("_compared", [])
        for data in (*scored, named.get("eval_dataset"), self.eval_dataset):
            for private in (named.get("train_dataset"), self.train_dataset):
                if not any(data is one and private is other for one, other in compared):  # each pair takes seconds
                    check_public(data, (private,))
                    compared.append((data, private))

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """The trainer's own.

        Raises:
            InvalidValue: the scores would be reported elsewhere (``report_to``, or such a callback), and their data are
                not public; rows that are trained on, with ``public_eval=True``.
        """
        if self._public_eval:
            self._check_public(given(super().evaluate, args, kwargs).get("eval_dataset"))
            return super().evaluate(*args, **kwargs)
        check_reports(self)
        before = len(self.state.log_history)
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self.scores.extend(self.state.log_history[before:])
            del self.state.log_history[before:]

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """The trainer's own.

        Raises:
            InvalidValue: as in `evaluate`.
        """
        if self._public_eval:
            self._check_public(given(super().predict, args, kwargs).get("test_dataset"))
            return super().predict(*args, **kwargs)
        check_reports(self)
        try:
            found = super().predict(*args, **kwargs)
        finally:
            # (TRL would put what it noted here into the log of the next step.)
            self.__dict__.get("_metrics", {}).get("eval", {}).clear()
        self.scores.append({**(found.metrics or {}), "step": self.state.global_step})
        return found

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """The trainer's own. What Transformers notes of the labels that it meets there is not left in the model."""
        with problem_type_kept(self.model):
            return super().evaluation_loop(*args, **kwargs)
