"""Where the noise of a federated round is added, and against whom it then protects."""

from enum import StrEnum
from typing import NoReturn

from decrescendo.errors import InvalidValue


class Placement(StrEnum):
    """Who adds the noise N(0, s_t^2), s_t = z_t C_t, of a round. Source: Du et al., Algorithm 5, made right.

    ===========  =========================  ==============================  =======================================
    value        who adds                   trusted                         protects
    ===========  =========================  ==============================  =======================================
    CENTRAL      the server, all of it      the server                      against whoever sees the models: the
                                                                            plan's (epsilon, delta) for a client
    DISTRIBUTED  each of the k cohort       the server to add what is       against whoever sees the models: the same;
                 members N(0, s_t^2 / k),   missing; a secure sum, so that  against a curious server: only the noise
                 the server what is         it sees no single reply         of the members that replied, and no
                 missing                                                    amplification, for it knows the cohort
    LOCAL        each member all of it      nobody                          each client's reply against everybody:
                                                                            Gaussian, no amplification
    ===========  =========================  ==============================  =======================================

    CENTRAL and DISTRIBUTED hide whether a client is in the population at all (add or remove one). LOCAL, and
    DISTRIBUTED against a curious server, hide a client's update from a zero update (from another one at twice mu), not
    that it took part: the server has asked it.

    In DISTRIBUTED the members learn k (their share says it), which only the server should know: a member that works
    together with a reader of the models weakens the amplification. And each share counts only while its owner is
    honest: with h members that leave their share out, or tell it to others, k - h of k shares protect against those
    who see the models, and of j that replied j - h of k against the server.

    >>> Placement("distributed") is Placement.DISTRIBUTED
    True
    """

    CENTRAL = "central"
    DISTRIBUTED = "distributed"
    LOCAL = "local"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        names = ", ".join(cls)
        raise InvalidValue(f"placement must be one of {names}, got placement={value!r}")

    @property
    def shows_replies(self) -> bool:
        """Whether the replies of a round leave the clients' noise behind even if the round is never finished.

        Then a round is spent when it is opened: its replies may have been seen. With CENTRAL a round that was not
        released was seen by nobody but the trusted server, and may be repeated.
        """
        return self is not Placement.CENTRAL

    @property
    def threat(self) -> str:
        """One sentence for statements: who is trusted, and who is not.

        >>> print(Placement.CENTRAL.threat)
        The server is trusted with every reply; the guarantee holds against whoever sees the models it releases.
        """
        return _THREATS[self]

    def share_std(self, noise_std: float, cohort: int) -> float:
        """Standard deviation of the noise that one member of a cohort of ``cohort`` adds; ``noise_std`` is s_t.

        >>> [placement.share_std(2.0, 4) for placement in Placement]
        [0.0, 1.0, 2.0]
        """
        if self is Placement.CENTRAL:
            return 0.0
        return noise_std if self is Placement.LOCAL else noise_std / max(cohort, 1) ** 0.5


_THREATS = {
    Placement.CENTRAL: (
        "The server is trusted with every reply; the guarantee holds against whoever sees the models it releases."
    ),
    Placement.DISTRIBUTED: (
        "The server is trusted to add the noise that is missing, and to see only the sum of the replies (secure "
        "aggregation); the guarantee holds against whoever sees the models. Against the server itself only the "
        "noise of those who replied counts, without amplification, and hides an update from a zero update."
    ),
    Placement.LOCAL: (
        "Nobody is trusted; each client's own noise hides its update from a zero update (another one is two such "
        "changes), not that it took part. No amplified central guarantee is promised."
    ),
}
