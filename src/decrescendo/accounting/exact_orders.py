"""dp-accounting's Renyi accountant with the moments of `renyi_orders`. Slow to load: a second of `scipy.stats`."""

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, PrivacyAccountant
from dp_accounting.rdp import RdpAccountant

from decrescendo.accounting.renyi_orders import MARGIN, log_moment, whole_moment

_TINY = 1e-9  # log A of a step, below which dp-accounting's whole orders lose digits


class ExactOrders(RdpAccountant):
    """dp-accounting's accountant, which takes the fractional orders of sampled Gaussian steps from `log_moment`. Its
    whole orders are off by some 1e-22 a step, and may come out negative: tiny ones are taken from `whole_moment`."""

    def _maybe_compose(
        self, event: DpEvent, count: int, do_compose: bool
    ) -> PrivacyAccountant.CompositionErrorDetails | None:
        if (
            isinstance(event, PoissonSampledDpEvent)
            and isinstance(event.event, GaussianDpEvent)
            and 0 < event.sampling_probability < 1
            and event.event.noise_multiplier > 0
            and do_compose
        ):
            rate, noise = event.sampling_probability, event.event.noise_multiplier
            orders = np.asarray(self._orders, dtype=np.float64)
            whole = orders == np.floor(orders)
            inner = RdpAccountant(orders[whole].astype(int).tolist())
            inner.compose(event, count)
            self._rdp[whole] += [
                self._checked(found, rate, noise, order, count)
                for found, order in zip(inner.rdp.tolist(), orders[whole].astype(int).tolist(), strict=True)
            ]
            self._rdp[~whole] += [
                count * log_moment(rate, noise, order) / (order - 1) for order in orders[~whole].tolist()
            ]
            return None
        return super()._maybe_compose(event, count, do_compose)

    @staticmethod
    def _checked(found: float, rate: float, noise: float, order: int, count: int) -> float:
        if found * (order - 1) > _TINY * count:
            return found
        return max(found, count * whole_moment(rate, noise, order) / (order - 1) * (1 + MARGIN))
