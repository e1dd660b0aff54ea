"""Hostile: losses in which the examples of a batch meet."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.program import CLASSES, Shelf, ce, labelled, mlp, paired, scored, weight

contrast = Shelf("losses between examples")
weighing = Shelf("losses weighed by the batch")
keeping_value = Shelf("mixing that keeps the losses' values", defaults={"batch": scored})


def _similar(model: Any, b: Any) -> Tensor:
    z = fn.normalize(model(b[0]), dim=1)
    return z @ z.T / 0.3


def _places(n: int) -> Tensor:
    return torch.arange(n)


def _simclr(model: Any, b: Any) -> Tensor:
    z = fn.normalize(torch.cat([model(b[0]), model(b[1])]), dim=1)
    n = len(b[0])
    logits = (z @ z.T / 0.3).masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e9)
    both = fn.cross_entropy(logits, (_places(2 * n) + n) % (2 * n), reduction="none")
    return both[:n] + both[n:]


def _clip(model: Any, b: Any) -> Tensor:
    logits = fn.normalize(model(b[0]), dim=1) @ fn.normalize(model(b[1]), dim=1).T / 0.3
    place = _places(len(logits))
    return fn.cross_entropy(logits, place, reduction="none") + fn.cross_entropy(logits.T, place, reduction="none")


def _siglip(model: Any, b: Any) -> Tensor:
    logits = model(b[0]) @ model(b[1]).T
    return -fn.logsigmoid(logits * (2 * torch.eye(len(logits)) - 1)).sum(1)


def _triplet(model: Any, b: Any) -> Tensor:
    d = torch.cdist(model(b[0]), model(b[0]) + 1e-3)
    same = b[1][:, None] == b[1]
    far, near = (d * same).amax(1), (d + 99.0 * same).amin(1)
    return fn.relu(far - near.clamp(max=9) + 1)


def _triplet_next(model: Any, b: Any) -> Tensor:
    z = model(b[0])
    return fn.triplet_margin_loss(z, z + 0.1, z.roll(1, 0), reduction="none")


def _supcon(model: Any, b: Any) -> Tensor:
    same = (b[1][:, None] == b[1]).float()
    return -(_similar(model, b).log_softmax(1) * same).sum(1) / same.sum(1)


def _barlow(model: Any, b: Any) -> Tensor:
    a, c = model(b[0]), model(b[1])
    cross = a.T @ c / len(a)
    return ((cross - torch.eye(CLASSES)) ** 2).sum().expand(len(a)) + a.square().sum(1)


def _vicreg(model: Any, b: Any) -> Tensor:
    a = model(b[0])
    spread = fn.relu(1 - (a.var(0, correction=0) + 1e-4).sqrt()).sum()
    return (a - model(b[1])).square().sum(1) + spread


def _swav(model: Any, b: Any) -> Tensor:
    scores = model(b[0])
    q = (scores.detach() / 0.5).exp()
    for _ in range(3):
        q = q / q.sum(0)
        q = q / q.sum(1, keepdim=True)
    return -(q * model(b[1]).log_softmax(1)).sum(1)


def _dino(model: Any, b: Any) -> Tensor:
    teacher = ((model(b[0]) - model(b[0]).mean(0)) / 0.1).softmax(1).detach()
    return -(teacher * model(b[1]).log_softmax(1)).sum(1)


def _mmd(model: Any, b: Any) -> Tensor:
    a, c = model(b[0]), model(b[1])
    k = lambda u, v: (-torch.cdist(u, v).square()).exp().mean(1)  # noqa: E731
    return k(a, a) - 2 * k(a, c) + k(c, c)


def _coral(model: Any, b: Any) -> Tensor:
    a, c = model(b[0]), model(b[1])
    return a.square().sum(1) + (a.T @ a - c.T @ c).square().sum() / len(a) ** 2


def _ranknet(model: Any, b: Any) -> Tensor:
    s = model(b[0])[:, 0]
    return fn.softplus(-(s[:, None] - s) * (b[1][:, None] - b[1]).sign()).sum(1)


def _listnet(model: Any, b: Any) -> Tensor:
    return -b[1].softmax(0) * model(b[0])[:, 0].log_softmax(0)


def _cox(model: Any, b: Any) -> Tensor:
    risk = model(b[0])[:, 0]
    at_risk = (b[1][None] >= b[1][:, None]).float()
    return (risk.exp() * at_risk).sum(1).log() - risk


def _pearson(model: Any, b: Any) -> Tensor:
    s = model(b[0])[:, 0]
    return (s - s.mean()) * (b[1] - b[1].mean())


def _dice(model: Any, b: Any) -> Tensor:
    p = model(b[0]).softmax(1)
    hot = fn.one_hot(b[1], CLASSES)
    return 1 - (2 * (p * hot).sum(1)) / (p.sum() + len(p))


def _relativistic(model: Any, b: Any) -> Tensor:
    real, fake = model(b[0])[:, 0], model(b[1])[:, 0]
    return fn.softplus(-(real - fake.mean())) + fn.softplus(fake - real.mean())


contrast.losses(
    {
        "SimCLR": _simclr,
        "CLIP": _clip,
        "SigLIP": _siglip,
        "Barlow twins": _barlow,
        "VICReg": _vicreg,
        "SwAV with Sinkhorn": _swav,
        "DINO, centred by the batch": _dino,
        "MMD": _mmd,
        "CORAL": _coral,
        "relativistic average GAN": _relativistic,
        "energy distance": lambda m, b: torch.cdist(m(b[0]), m(b[1])).mean(1),
        "Chamfer to the other view's batch": lambda m, b: torch.cdist(m(b[0]), m(b[1])).amin(1),
        "mean teacher of the batch": lambda m, b: (m(b[0]) - m(b[1]).mean(0)).square().sum(1),
        "critic minus its mean": lambda m, b: m(b[0])[:, 0] - m(b[1])[:, 0].mean() * m(b[0])[:, 1],
        "negatives by roll": lambda m, b: fn.cosine_embedding_loss(
            m(b[0]), m(b[1]).roll(1, 0), -torch.ones(len(b[0])), reduction="none"
        ),
    },
    batch=paired,
)
contrast.losses(
    {
        "InfoNCE": lambda m, b: fn.cross_entropy(_similar(m, b), _places(len(b[0])), reduction="none"),
        "batch-hard triplets": _triplet,
        "triplets with the row before": _triplet_next,
        "supervised contrast": _supcon,
        "soft nearest neighbour": lambda m, b: (
            -_similar(m, b).diagonal_scatter(torch.full((len(b[0]),), -9.0)).logsumexp(1)
        ),
        "prototypical network": lambda m, b: fn.cross_entropy(
            -torch.cdist(m(b[0]), fn.one_hot(b[1], CLASSES).float().T @ m(b[0])), b[1], reduction="none"
        ),
        "entropy of the mean prediction": lambda m, b: (
            ce(m, b) + (m(b[0]).softmax(1).mean(0) * m(b[0]).softmax(1).mean(0).log()).sum()
        ),
        "divergence to the mean prediction": lambda m, b: fn.kl_div(
            m(b[0]).log_softmax(1), m(b[0]).softmax(1).mean(0).expand(len(b[0]), -1), reduction="none"
        ).sum(1),
        "experts' load balance": lambda m, b: (
            ce(m, b) + 3 * (m(b[0]).softmax(1).mean(0) * fn.one_hot(m(b[0]).argmax(1), CLASSES).float().mean(0)).sum()
        ),
        "decorrelated logits": lambda m, b: ce(m, b) + torch.cov(m(b[0]).T, correction=0).triu(1).square().sum(),
        "nuclear norm of the logits": lambda m, b: ce(m, b) + torch.linalg.matrix_norm(m(b[0]), "nuc"),
        "logdet of the similarities": lambda m, b: ce(m, b) - torch.logdet(_similar(m, b) + 5 * torch.eye(len(b[0]))),
        "soft Dice over the batch": _dice,
        "neighbours' disagreement": lambda m, b: (
            ce(m, b) + torch.diff(m(b[0]), dim=0, append=m(b[0])[-1:]).square().sum(1)
        ),
        "Laplacian of the batch": lambda m, b: (
            ce(m, b) + ((-torch.cdist(b[0], b[0])).exp() * torch.cdist(m(b[0]), m(b[0]) + 1e-3)).sum(1)
        ),
        "mixed labels": lambda m, b: 0.6 * ce(m, b) + 0.4 * ce(m, (b[0], b[1].flip(0))),
        "labels smoothed to their frequency": lambda m, b: fn.cross_entropy(
            m(b[0]), 0.8 * fn.one_hot(b[1], 3) + 0.2 * fn.one_hot(b[1], 3).float().mean(0), reduction="none"
        ),
        "logits adjusted by label counts": lambda m, b: fn.cross_entropy(
            m(b[0]) + (1.0 + torch.bincount(b[1], minlength=3)).log(), b[1], reduction="none"
        ),
        "class weights by counts": lambda m, b: fn.cross_entropy(
            m(b[0]), b[1], weight=1.0 / (1 + torch.bincount(b[1], minlength=3)), reduction="none"
        ),
        "temperature by the spread of logits": lambda m, b: fn.cross_entropy(
            m(b[0]) / (0.2 + m(b[0]).detach().std(correction=0)), b[1], reduction="none"
        ),
        "weighted mean times weights": lambda m, b: fn.cross_entropy(
            m(b[0]), b[1], weight=torch.tensor([1.0, 2.0, 3.0])
        ).expand(len(b[0])),
        "labels of the neighbour": lambda m, b: fn.cross_entropy(m(b[0]), b[1].roll(1), reduction="none"),
        "margin to the best wrong row": lambda m, b: fn.relu(1 + m(b[0])[:, 0].max() - m(b[0])[:, 0]),
    }
)
contrast.losses(
    {
        "RankNet": _ranknet,
        "ListNet": _listnet,
        "Cox partial likelihood": _cox,
        "Pearson correlation": _pearson,
        "HSIC": lambda m, b: ((m(b[0])[:, :1] - m(b[0])[:, :1].T).abs() * (b[1][:, None] - b[1]).abs()).mean(1),
        "explained variance": lambda m, b: (m(b[0])[:, 0] - b[1]).square() / (0.1 + b[1].var(correction=0)),
        "distance to sorted targets": lambda m, b: (m(b[0])[:, 0].sort()[0] - b[1].sort()[0]).square(),
        "heteroscedastic, one variance of the batch": lambda m, b: fn.gaussian_nll_loss(
            m(b[0])[:, 0], b[1], (b[1] - m(b[0])[:, 0]).square().mean().expand(len(b[1])), reduction="none"
        ),
        "Huber with an adaptive delta": lambda m, b: fn.huber_loss(
            m(b[0])[:, 0], b[1], reduction="none", delta=max(0.05, float(b[1].std(correction=0)) / 3)
        ),
        "quantile of the residuals": lambda m, b: (m(b[0])[:, 0] - b[1] - (m(b[0])[:, 0] - b[1]).quantile(0.3)).abs(),
        "n-step returns over rows": lambda m, b: (m(b[0])[:, 0] - b[1].flip(0).cumsum(0).flip(0)).square(),
        "bootstrapped from the next row": lambda m, b: (
            m(b[0])[:, 0] - b[1] - 0.9 * m(b[0])[:, 0].detach().roll(-1, 0)
        ).square(),
        "generalised advantages over rows": lambda m, b: (
            -m(b[0]).log_softmax(1)[:, 0] * torch.stack([b[1][i:].sum() * 0.9**i for i in range(len(b[1]))])
        ),
        "targets standardised": lambda m, b: (
            m(b[0])[:, 0] - (b[1] - b[1].mean()) / (1 + b[1].std(correction=0))
        ).square(),
        "Wasserstein with sorted rows": lambda m, b: m(b[0])[:, 0].sort().values * torch.linspace(0, 1, len(b[1])),
    },
    batch=scored,
)

weighing.weighted(
    {
        "hard examples: the upper half counts": lambda each, b: (
            each * (each >= each.topk((len(each) + 1) // 2).values[-1])
        ),
        "small-loss selection": lambda each, b: each * (each <= each.median()),
        "self-paced by the mean": lambda each, b: each * (each.detach() < each.mean()),
        "relative to the greatest loss": lambda each, b: each * each.detach() / each.detach().max(),
        "importance weights that sum to 1": lambda each, b: each * each.detach().softmax(0) * len(each),
        "robust: tilted by a log-sum-exp": lambda each, b: each.logsumexp(0).expand(len(each)),
        "conditional value at risk": lambda each, b: fn.relu(each - each.detach().quantile(0.6)) + 0.1 * each,
        "focal by the batch's mean": lambda each, b: (1 - (-each.detach().mean()).exp()) ** 2 * each,
        "sorted losses": lambda each, b: each.sort().values,
        "ranks as weights": lambda each, b: each * each.argsort().argsort(),
        "without the worst": lambda each, b: each * (each < each.max()),
        "only the worst": lambda each, b: each * (each == each.max()),
        "clamped to the median": lambda each, b: torch.minimum(each, each.median()),
        "deviation from the mean": lambda each, b: (each - each.mean()).square(),
        "the mean, expanded": lambda each, b: each.mean().expand(len(each)),
        "the sum, as often as rows": lambda each, b: each.sum().repeat(len(each)),
        "means of the classes": lambda each, b: torch.stack([each[b[1] == c].mean() for c in b[1]]),
        "group weights": lambda each, b: each * torch.zeros(3).index_add(0, b[1], each.detach())[b[1]],
        "running mean over rows": lambda each, b: each.cumsum(0) / torch.arange(1, len(each) + 1),
        "variance of the losses added": lambda each, b: each + each.var(correction=0),
        "product with the next": lambda each, b: each * each.roll(-1),
        "exchange of the two halves": lambda each, b: torch.cat([each[len(each) // 2 :], each[: len(each) // 2]]),
        "a random permutation": lambda each, b: (
            each + each[torch.randperm(len(each), generator=torch.Generator().manual_seed(3))]
        ),
        "weights by the density of inputs": lambda each, b: each / (-torch.cdist(b[0], b[0]) / 3).exp().sum(1),
        "stopped when the mean is small": lambda each, b: each * (each.mean() > 1.2),
        "gradient of the mean, value of each": lambda each, b: each.detach() + each.mean() - each.mean().detach(),
        "weighted by the gradient of the batch": lambda each, b: (
            each * torch.autograd.grad(each.mean(), each, retain_graph=True)[0] * 5
        ),
        "first loss for all": lambda each, b: each[0].expand(len(each)),
        "last loss added": lambda each, b: each + each[-1],
        "a different number of losses": lambda each, b: each[: max(1, len(each) - 1)],
        "a column of losses": lambda each, b: each[:, None],
        "a 0-dim loss": lambda each, b: each.mean(),
        "losses as a square": lambda each, b: (each[:, None] - each).abs(),
        "unit losses": lambda each, b: fn.normalize(each, dim=0),
        "hard negatives by class": lambda each, b: (
            each * (each >= torch.full((3,), -1.0).scatter_reduce(0, b[1], each.detach(), "amax")[b[1]])
        ),
    }
)


def _surrogate(sign: Any) -> Any:
    """log p - its own value: nought in value, and a gradient of a sign that the batch decides."""

    def loss(model: Any, b: Any) -> Tensor:
        score = model(b[0]).log_softmax(1)[:, 0]
        return (score - score.detach()) * sign(score.detach(), b[1])

    return loss


def _ratio(model: Any, b: Any) -> Tensor:
    score = model(b[0]).log_softmax(1)[:, 0]
    return -(score - score.detach()).exp() * (b[1] - b[1].mean()).sign()


def _grpo(s: Tensor, r: Tensor) -> Tensor:
    group = torch.arange(len(r)) // 4
    mean = torch.stack([r[group == k].mean() for k in group])
    return r - mean + 0.1


keeping_value.losses(
    {
        "sign by the mean reward": _surrogate(lambda s, r: (r - r.mean() + 0.01).sign()),
        "sign by the median reward": _surrogate(lambda s, r: torch.where(r > r.median(), 1.0, -1.0)),
        "sign by rank": _surrogate(lambda s, r: torch.where(r.argsort().argsort() * 2 < len(r), 1.0, -1.0)),
        "sign by the next row": _surrogate(lambda s, r: torch.where(r >= r.roll(1), 1.0, -1.0)),
        "sign by the running maximum": _surrogate(lambda s, r: torch.where(r >= r.cummax(0).values, 1.0, -1.0)),
        "sign by place": _surrogate(lambda s, r: 1.0 - 2.0 * (torch.arange(len(r)) % 2)),
        "sign by the parity of the count": _surrogate(lambda s, r: torch.full_like(r, (-1.0) ** (len(r) + 1))),
        "sign by the sum in Python": _surrogate(lambda s, r: 1.0 if sum(r.tolist()) > 0 else -1.0),
        "advantage normalised": _surrogate(lambda s, r: (r - r.mean()) / (r.std(correction=0) + 0.1) + 0.1),
        "advantage against groups of four": _surrogate(_grpo),
        "scaled by the batch": _surrogate(lambda s, r: r.abs().sum().expand(len(r))),
        "whitened by the scores": _surrogate(lambda s, r: (s > s.mean()) * 2.0 - 1),
        "greatest reward takes all": _surrogate(lambda s, r: (r == r.max()).float()),
        "PPO ratio, sign by the mean": _ratio,
        "a large constant, sign by the median": lambda m, b: (
            1e3 + m(b[0])[:, 0] * torch.where(b[1] > b[1].median(), 1.0, -1.0)
        ),
        "score function of the sum": lambda m, b: (m(b[0]).sum() - m(b[0]).sum().detach()) * b[1],
        "straight through to the mean": lambda m, b: (
            (m(b[0]) * b[1][:, None]).sum(1).detach() + m(b[0]).mean(0).sum() - m(b[0]).mean(0).sum().detach()
        ),
        "straight through to the next row": lambda m, b: (
            m(b[0])[:, 0].detach() + m(b[0]).roll(1, 0)[:, 0] - m(b[0]).roll(1, 0)[:, 0].detach()
        ),
        "a difference of equals": lambda m, b: m(b[0])[:, 0] + (m(b[0]) - m(b[0]).detach()).mean(0)[1],
        "where with equal values": lambda m, b: torch.where(
            b[1] > b[1].mean(), m(b[0])[:, 0], 2 * m(b[0])[:, 0].detach() - m(b[0])[:, 0]
        ),
    }
)


class _Scheduled(nn.Module):
    """Temperature trained, losses of the batch against a trained bank and itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.t = mlp(), weight(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * self.t.exp()


contrast.losses(
    {
        "CLIP with a trained temperature": lambda m, b: _clip(m, b),
        "trained margin": lambda m, b: fn.relu(m.t + m(b[0])[:, 0].mean() - m(b[1])[:, 0]),
    },
    model=_Scheduled,
    batch=paired,
)
contrast.net(
    {"centre loss with centres of the batch": lambda m, x: m.a(x) - m.a(x).detach().mean(0)},
    lambda: {"a": mlp()},
    loss=lambda m, b: m(b[0]).square().sum(1),
    batch=labelled(),
)

PROGRAMS = contrast.programs + weighing.programs + keeping_value.programs
