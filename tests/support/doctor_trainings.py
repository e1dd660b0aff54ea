"""Small trainings with one fault each, and without one: our own, and as short as they can be."""

_HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from opacus import PrivacyEngine

x = torch.randn(600, 8)
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
plain = torch.optim.SGD(model.parameters(), lr=0.1)
rows = DataLoader(TensorDataset(x, y), batch_size=60, shuffle=True)
engine = PrivacyEngine()
"""
_CALIBRATED = """
model, optimizer, loader = engine.make_private_with_epsilon(
    module=model, optimizer=plain, data_loader=rows, target_epsilon=2.0, target_delta=1e-5, epochs=3, max_grad_norm=1.0
)
"""
_LOSS = "nn.functional.cross_entropy(model(a), b)"
_LOOP = f"""
for epoch in range(3):
    for a, b in loader:
        optimizer.zero_grad()
        loss = {_LOSS}
        loss.backward()
        optimizer.step()
    engine.get_epsilon(1e-5)
"""
_CLEAN = _HEAD + _CALIBRATED + _LOOP
_SCHEDULER = "from opacus.schedulers import ExponentialNoise\nscheduler = ExponentialNoise(optimizer, gamma={})\n"


def _given(noise: float) -> str:
    return (
        "model, optimizer, loader = engine.make_private(module=model, optimizer=plain, data_loader=rows, "
        f"noise_multiplier={noise}, max_grad_norm=1.0)\n"
    )


# The generator steps by what the private model says of its own fakes, as many as there are records.
_GAN = _CLEAN.replace(
    "engine = ", "fakes = nn.Linear(4, 8)\nother = torch.optim.SGD(fakes.parameters(), lr=0.1)\nengine = "
).replace(
    "        optimizer.zero_grad()\n",
    "        other.zero_grad()\n        model(fakes(torch.randn(len(a), 4)))[:, 0].mean().backward()\n"
    "        other.step()\n        optimizer.zero_grad()\n",
)
# What a private batch leaves in another optimiser's gradients is thrown away before it steps.
_ZEROED = (
    _CLEAN.replace("engine = ", "body = nn.Linear(8, 8)\nother = torch.optim.SGD(body.parameters(), lr=0.1)\nengine = ")
    .replace("model(a)", "model(body(a))")
    .replace(
        "        optimizer.step()\n",
        "        optimizer.step()\n        other.zero_grad()\n"
        "        body(torch.ones(30, 8)).square().mean().backward()\n        other.step()\n",
    )
)

# A baseline without privacy on the same rows, whose weights the private training does not begin with.
_BASELINE = (
    "initial = {k: v.clone() for k, v in model.state_dict().items()}\nfor _ in range(2):\n    for a, b in rows:\n"
    "        plain.zero_grad()\n        nn.functional.cross_entropy(model(a), b).backward()\n        plain.step()\n"
    "model.load_state_dict(initial)\nplain = torch.optim.SGD(model.parameters(), lr=0.1)\n"
)

CLEAN = {
    "a baseline before it": _HEAD + _BASELINE + _CALIBRATED + _LOOP,
    "a generator beside it": _GAN,
    "gradients that are zeroed": _ZEROED,
    "plain": _CLEAN,
    "dropout": _CLEAN.replace("nn.ReLU()", "nn.ReLU(), nn.Dropout(0.3)"),
    "clip norms that move": _HEAD + _given(1.0) + _LOOP + "    optimizer.max_grad_norm *= 0.9\n",
    "summed": _CLEAN.replace("max_grad_norm=1.0", 'max_grad_norm=1.0, loss_reduction="sum"')
    .replace("(model(a), b)", '(model(a), b, reduction="sum")'),
    "evaluated first": _CLEAN.replace(
        _LOOP, "with torch.no_grad():\n    for a, b in DataLoader(TensorDataset(x, y), batch_size=200):\n"
        "        model(a)\n" + _LOOP
    ),
    "data of a generator of their own": _CLEAN.replace(
        "x = torch.randn(600, 8)", "own = torch.Generator().manual_seed(0)\nx = torch.randn(600, 8, generator=own)")
    + "torch.save(model.state_dict(), 'model.pt')\n",
    "in functions": _HEAD + "def main():\n" + "\n".join(
        "    " + line for line in ("global model\n" + _CALIBRATED + _LOOP).splitlines()
    ) + "\nmain()\n",
}  # fmt: skip

# The check that must find it, and the training.
FAULTY = {
    "shuffled": ("sampling", _CLEAN.replace("max_grad_norm=1.0", "max_grad_norm=1.0, poisson_sampling=False")),
    "the old loader": ("sampling", _CLEAN.replace("in loader", "in rows")),
    "weights": ("sampling", _CLEAN.replace(
        "shuffle=True", "sampler=torch.utils.data.WeightedRandomSampler(torch.arange(600.0) + 1, 600)")),
    "more epochs": ("budget", _CLEAN.replace("range(3)", "range(9)")),
    "noise falls each step": ("schedule", (_HEAD + _CALIBRATED + _SCHEDULER.format(0.95) + _LOOP)
                              .replace("optimizer.step()", "optimizer.step(); scheduler.step()")),
    "noise falls each epoch": ("schedule", _HEAD + _CALIBRATED + _SCHEDULER.format(0.5) + _LOOP
                               + "    scheduler.step()\n"),
    "a sum taken for a mean": ("denominator", _CLEAN.replace("(model(a), b)", '(model(a), b, reduction="sum")')),
    "contrastive": ("rows", _CLEAN.replace(
        _LOSS, "nn.functional.cross_entropy(model(a) @ model(a).detach().T, torch.arange(len(a)))")),
    "centred": ("rows", _CLEAN.replace("model(a)", "model(a - a.mean(0))")),
    "padded": ("rows", _CLEAN.replace("model(a)", "model(a * a.abs().max())")),
    "no noise": ("noise", _HEAD + _given(0.0) + _LOOP),
    "hardly noise": ("noise", _HEAD + _given(0.2) + _LOOP),
    "delta": ("delta", _CLEAN.replace("1e-5", "1e-2")),
    "the old optimiser": ("bypass", _CLEAN.replace("optimizer.step()", "plain.step()")),
    "thrown away": ("bypass", _CLEAN.replace("model, optimizer, loader = engine", "engine")
                    .replace("optimizer.", "plain.").replace("in loader", "in rows")),
    "two engines": ("history", _HEAD + _CALIBRATED
                    .replace("engine.", "PrivacyEngine().") + _CLEAN.replace(_HEAD, "").replace(
        "module=model", "module=nn.Sequential(nn.Linear(8, 2))").replace(
        "optimizer=plain", "optimizer=torch.optim.SGD(model.parameters(), lr=0.1)").replace(
        "model, optimizer, loader = engine", "model = nn.Linear(8, 2)\nmodel, optimizer, loader = engine").replace(
        "module=nn.Sequential(nn.Linear(8, 2))", "module=model")),
    "resumed": ("history", _CLEAN.replace(
        "engine = ", "torch.save({'epoch': 3, 'model': model.state_dict()}, 'kept.pt')\n"
        "model.load_state_dict(torch.load('kept.pt')['model'])\nengine = ")),
    "clipped to more": ("sensitivity", _CLEAN.replace(
        _LOOP, "kept = optimizer.clip_and_accumulate\n"
        "def clip():\n    optimizer.max_grad_norm = 4.0\n    kept()\n    optimizer.max_grad_norm = 1.0\n"
        "optimizer.clip_and_accumulate = clip\n" + _LOOP)),
    "seeded": ("seed", _CLEAN
               .replace("x = ", "torch.manual_seed(0)\nx = ") + "torch.save(model.state_dict(), 'model.pt')\n"),
    "losses printed": ("beside", _CLEAN.replace("optimizer.step()", "optimizer.step()\n        "
                                                                    "print(epoch, loss.item())")),
    "the best kept": ("selection", "best = 9.0\n" + _CLEAN + "    if loss < best:\n        best = loss\n"),
    "a softmax by hand": ("sensitivity", _CLEAN.replace(
        _LOSS, "(model(a).square().exp() / model(a).square().exp().sum(1, keepdim=True))[:, 0].mean()")),
    "ended by its loss": ("selection", _CLEAN + "    if loss < 0.1:\n        break\n"),
    "empty batches skipped": ("empty batch", _CLEAN.replace(
        "        optimizer.zero_grad()", "        if len(a) == 0:\n            continue\n        "
                                         "optimizer.zero_grad()")),
    "several rows a person": ("unit", _CLEAN.replace("y = ", "user = dict(user_id=3)['user_id']\ny = ")),
}  # fmt: skip

_BY_HAND = """
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(600, 8)
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
noise_multiplier, max_grad_norm = 1.0, 0.5
print("its epsilon, by another program: 5.8")

class Poisson:
    def __iter__(self):
        for _ in range(10):
            yield torch.nonzero(torch.rand(600) < 0.1).flatten().tolist()
    def __len__(self):
        return 10

def loss(weights, row, label):
    return nn.functional.cross_entropy(functional_call(model, weights, (row[None],)), label[None])

loader = DataLoader(TensorDataset(x, y), batch_sampler=Poisson())
for epoch in range(3):
    for a, b in loader:
        weights = {name: p.detach() for name, p in model.named_parameters()}
        samples = vmap(grad(loss), (None, 0, 0))(weights, a, b)
        norms = torch.stack([s.flatten(1).norm(dim=1) for s in samples.values()]).norm(dim=0)
        factors = (max_grad_norm / (norms + 1e-9)).clamp(max=1)
        for name, p in model.named_parameters():
            total = torch.einsum("n,n...->...", factors, samples[name])
            noise = torch.randn_like(p) * noise_multiplier * max_grad_norm
            p.grad = (total + noise) / 60
        optimizer.step()
"""
_LOOPED = (
    _BY_HAND[: _BY_HAND.index("        weights = {")]
    + """
        totals = [torch.zeros_like(p) for p in model.parameters()]
        for row, label in zip(a, b):
            model.zero_grad()
            nn.functional.cross_entropy(model(row[None]), label[None]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
            for total, p in zip(totals, model.parameters()):
                total += p.grad
        for total, p in zip(totals, model.parameters()):
            p.grad = (total + torch.randn_like(total) * noise_multiplier * max_grad_norm) / 60
        optimizer.step()
"""
)
_OF_BATCHES = (
    _BY_HAND[: _BY_HAND.index("        weights = {")]
    + """
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        for p in model.parameters():
            p.grad += torch.randn_like(p) * noise_multiplier * max_grad_norm / 60
        optimizer.step()
"""
)
_OWN_BATCHES = _LOOPED.replace(
    "    for a, b in loader:",
    "    for _ in range(10):\n        drawn = torch.rand(600) < 0.1\n        a, b = x[drawn], y[drawn]",
)

OWN_BATCHES_VMAP = _BY_HAND.replace(
    "    for a, b in loader:",
    "    for _ in range(10):\n        drawn = torch.rand(600) < 0.1\n        a, b = x[drawn], y[drawn]",
)
# Weights that the loop moves itself.
_STEPPED = _OWN_BATCHES.replace("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n", "").replace(
    "        optimizer.step()\n",
    "        with torch.no_grad():\n            for p in model.parameters():\n                p -= 0.1 * p.grad\n",
)
# Weights in a dict, which no module has.
IN_A_DICT = (
    OWN_BATCHES_VMAP.replace("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n", "")
    .replace("        weights = {name: p.detach() for name, p in model.named_parameters()}\n", "")
    .replace("for epoch", "weights = {name: p.detach().clone() for name, p in model.named_parameters()}\nfor epoch")
    .replace(
        "for name, p in model.named_parameters():\n            total",
        "for name, p in weights.items():\n            total",
    )
    .replace(
        "p.grad = (total + noise) / 60\n        optimizer.step()", "weights[name] = p - 0.1 * (total + noise) / 60"
    )
)
# A model in its evaluation mode, whose rows are taken one by one.
_ONE_BY_ONE = (
    _STEPPED.replace("a, b = x[drawn], y[drawn]", "rows = drawn.nonzero().flatten().tolist()")
    .replace("for row, label in zip(a, b):", "for row, label in [(x[i : i + 1], y[i : i + 1]) for i in rows]:")
    .replace("model(row[None]), label[None]", "model(row), label")
    .replace("noise_multiplier, max", "model.eval()\nnoise_multiplier, max", 1)
)
# A federation: clients train copies, and the sum of their clipped updates has noise.
FEDERATED = """
import copy
import torch
from torch import nn

clients = [torch.randn(20, 8) for _ in range(60)]
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
noise_multiplier, max_update_norm, rate = 1.0, 0.5, 0.2
print("its epsilon, by another program: 9.1")

def local_update(model, rows):
    local = copy.deepcopy(model)
    optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(local(rows), (rows[:, 0] > 0).long()).backward()
        optimizer.step()
    update = [new.detach() - old.detach() for new, old in zip(local.parameters(), model.parameters())]
    norm = torch.stack([u.norm() for u in update]).norm()
    return [u * min(1.0, max_update_norm / float(norm)) for u in update]

for turn in range(6):
    sampled = [rows for rows in clients if float(torch.rand(())) < rate]
    total = [torch.zeros_like(p) for p in model.parameters()]
    for rows in sampled:
        total = [t + u for t, u in zip(total, local_update(model, rows))]
    with torch.no_grad():
        for p, t in zip(model.parameters(), total):
            p += (t + torch.randn_like(t) * noise_multiplier * max_update_norm) / (rate * 60)
"""
# Noise of NumPy's generator, whose methods nobody can replace.
_OF_NUMPY = (
    OWN_BATCHES_VMAP.replace("import torch\n", "import numpy as np\nimport torch\n", 1)
    .replace("y = (", "rng = np.random.default_rng()\ny = (")
    .replace("torch.randn_like(p)", "torch.from_numpy(rng.normal(size=p.shape)).float()")
)
# All noise is drawn before the first step.
_EARLY = (
    OWN_BATCHES_VMAP.replace("        for name, p in model", "        own = next(drawn)\n        for name, p in model")
    .replace("torch.randn_like(p)", "own[: p.numel()].view_as(p)")
    .replace("for epoch", "drawn = iter(torch.randn(30, 178))\nfor epoch")
    .replace("drawn = torch.rand(600) < 0.1", "taken = torch.rand(600) < 0.1")
    .replace("x[drawn], y[drawn]", "x[taken], y[taken]")
)
# A public table is looked up by a column of the batch: a row of it is no record.
_TABLE = OWN_BATCHES_VMAP.replace(
    "y = (", "kind, public = torch.randint(0, 20, (600,)), torch.randn(20, 8)\ny = ("
).replace("a, b = x[drawn], y[drawn]", "a, b = x[drawn] + public[kind[drawn]], y[drawn]")
_TOLD = (
    OWN_BATCHES_VMAP.replace("import torch\n", "import torch\nfrom opacus import RDPAccountant\n", 1)
    .replace(
        "        optimizer.step()\n",
        "        optimizer.step()\n        told.step(noise_multiplier=noise_multiplier, sample_rate=0.1)\n",
    )
    .replace("for epoch", "told = RDPAccountant()\nfor epoch")
)
CLEAN_BY_HAND = {
    "a table looked up": _TABLE,
    "vmap": _BY_HAND, "a loop": _LOOPED, "batches of its own": _OWN_BATCHES, "no optimiser": _STEPPED,
    "a federation": FEDERATED, "a dict": IN_A_DICT, "one by one": _ONE_BY_ONE,
    "its rate told": _TOLD, "batches of its own, by vmap": OWN_BATCHES_VMAP, "noise of numpy": _OF_NUMPY,
}  # fmt: skip
FAULTY_BY_HAND = {
    "a lower rate told": ("sampling", _TOLD.replace("sample_rate=0.1", "sample_rate=0.08")),
    "noise over the batch": ("sensitivity", _BY_HAND.replace("* max_grad_norm\n", "* max_grad_norm / 60\n")),
    "noise without the clip norm": ("sensitivity", _LOOPED.replace("max_grad_norm) / 60", "0.1) / 60")),
    "the batch is clipped": ("sensitivity", _OF_BATCHES),
    "nothing is clipped": ("sensitivity", _BY_HAND.replace("(max_grad_norm / (norms + "
                                                           "1e-9)).clamp(max=1)", "torch.ones_like(norms)")),
    "shuffled": ("sampling", _BY_HAND.replace("batch_sampler=Poisson()", "batch_size=60, shuffle=True")),
    "no noise": ("noise", _BY_HAND.replace("torch.randn_like(p)", "torch.zeros_like(p)")),
    "own batches, noise over the "
    "batch": ("sensitivity", _OWN_BATCHES.replace("max_grad_norm) / 60", "max_grad_norm / 60) / 60")),
    "own batches by vmap, tensors apart": ("sensitivity", OWN_BATCHES_VMAP.replace(
        "            total = ", "            norms = samples[name].flatten(1).norm(dim=1)\n"
        "            factors = (max_grad_norm / (norms + 1e-9)).clamp(max=1)\n            total = ")
        .replace("import torch\n", "import torch\ntorch.manual_seed(1)\n", 1)),  # (of some weights by too little)
    "noise of numpy over the batch": ("sensitivity", _OF_NUMPY.replace("* max_grad_norm\n", "* max_grad_norm / 60\n")),
    "a federation, a tenth of the noise": ("sensitivity", FEDERATED.replace(
        "* max_update_norm)", "* max_update_norm / 10)")),
    "a federation, nothing is clipped": ("sensitivity", FEDERATED.replace(
        "u * min(1.0, max_update_norm / float(norm))", "u")),
    "a federation, a round without noise": ("bypass", FEDERATED.replace(
        "torch.randn_like(t)", "(torch.randn_like(t) if turn else 0)")),
    "a dict, noise over the batch": ("sensitivity", IN_A_DICT.replace("* max_grad_norm\n", "* max_grad_norm / 60\n")),
    "a dict, no noise": ("noise", IN_A_DICT.replace("torch.randn_like(p)", "torch.zeros_like(p)")),
    "one by one, nothing is clipped": ("sensitivity", _ONE_BY_ONE.replace(
        "            nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)\n", "")),
    "no optimiser, no noise": ("noise", _STEPPED.replace("torch.randn_like(total)", "torch.zeros_like(total)")),
    "divided by the rows drawn": ("denominator", _LOOPED.replace("/ 60\n", "/ a.shape[0]\n")),
    "batch norm": ("beside", _OF_BATCHES.replace("nn.ReLU()", "nn.BatchNorm1d(16), nn.ReLU()")),
}  # fmt: skip

# Trainings of other libraries, by the stand-ins in `standin_peers`.
_TRAINER = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from dptrainer import DPTrainer, PrivacyArguments, TrainingArguments

x = torch.randn(600, 8)
rows = TensorDataset(x, (x[:, 0] > 0).long())
args = TrainingArguments(
    per_device_train_batch_size=60, gradient_accumulation_steps=1, max_steps=-1, num_train_epochs=3,
    logging_strategy="no",
)
private = PrivacyArguments(
    noise_multiplier=1.3, target_epsilon=None, target_delta=1e-5, poisson_sampling=True
)
trainer = DPTrainer(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)), args, rows, private)
trainer.train()
"""
_OPAKE = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from opake.dpsgd import PoissonSampler, clipped_grad
from opake.dpsgd.noise import gaussian_noise, key

x = torch.randn(600, 8)
rows = TensorDataset(x, 1 + (x[:, :1] > 0).float())  # each has a gradient
loader = DataLoader(rows, batch_sampler=PoissonSampler(rows, sample_rate=0.1, n_steps=30))
weights = {"w": torch.zeros(8, 1)}

def loss(weights, a, b):
    return (a @ weights["w"] - b).square().sum()

gradients = clipped_grad(loss, clipping_norm=1.0, normalize_by=60)
noise, state = gaussian_noise(noise_multiplier=1.3, key=key(torch.seed()))
for a, b in loader:
    noisy, state = noise(gradients(weights, a, b), state)
    weights = {name: weight - 0.1 * noisy[name] for name, weight in weights.items()}
"""
CLEAN_OF_PEERS = {"a trainer": _TRAINER, "opake": _OPAKE}
_ACCOUNTED = "from opake.dpsgd.accounting import Gaussian, poisson\nstep = poisson(Gaussian(1.3), {})\n"
FAULTY_OF_PEERS = {
    "a trainer that shuffles": ("sampling", _TRAINER.replace("poisson_sampling=True", "poisson_sampling=False")),
    "a trainer without noise": ("noise", _TRAINER.replace("noise_multiplier=1.3", "noise_multiplier=0.0")),
    "a trainer for a small budget": ("budget", _TRAINER.replace("target_epsilon=None", "target_epsilon=0.5")),
    "a trainer that logs": ("beside", _TRAINER.replace('logging_strategy="no"', "logging_steps=1")),
    "a trainer with a delta of one record": ("delta", _TRAINER.replace("target_delta=1e-5", "target_delta=1 / 600")),
    "shuffled": ("sampling", _OPAKE.replace(
        "batch_sampler=PoissonSampler(rows, sample_rate=0.1, n_steps=30)", "batch_size=60, shuffle=True")),
    "another rate": ("sampling", _OPAKE.replace("weights = {\"w\"", _ACCOUNTED.format("0.05") + "weights = {\"w\"")),
    "noise for another norm": ("sensitivity", _OPAKE.replace(
        "noise(gradients(weights, a, b), state)",
        "noise(gradients(weights, a, b)._replace(max_norm=1 / 600), state)")),
    "rows by each other": ("sensitivity", _OPAKE.replace(
        "for a, b in loader:\n", "for a, b in loader:\n    a = (a - a.mean(0)) / a.std(0)\n")),
    "a key in the script": ("seed", _OPAKE.replace("key(torch.seed())", "key(42)") + "torch.save(weights, 'w.pt')\n"),
}  # fmt: skip

# Faults that an examination with other people's scripts found to be missed, and what was found falsely.
_ACCOUNTANT = "\nclass accountant:\n    def step(noise_multiplier, sample_rate):\n        pass\n"
_HAND_HEAD, _HAND_LOOP = _LOOPED.split("for epoch in range(3):")
_BY_NUMBER = (
    "from opacus.accountants.utils import get_noise_multiplier\n"
    "noise = get_noise_multiplier(target_epsilon=2.0, target_delta=1e-5, sample_rate=0.1, epochs=3)\n"
)
_SECOND = _CLEAN.replace(
    "engine = ", "head = nn.Linear(2, 2)\nother = torch.optim.SGD(head.parameters(), lr=0.1)\nengine = "
).replace("model(a)", "head(model(a))")

MISSED = {
    "pre-trained on the same rows": ("bypass", _HEAD + "for _ in range(2):\n    for a, b in rows:\n        "
        "plain.zero_grad()\n        model(a).square().mean().backward()\n        plain.step()\n" + _CALIBRATED + _LOOP),
    "rows several times": ("unit", _CLEAN.replace(
        "TensorDataset(x, y)", "torch.utils.data.Subset(TensorDataset(x, y), [*range(600), 3, 3])")),
    "noise that was drawn before": ("noise", _EARLY),
    "the clip norm follows the norms": ("sensitivity", (_HEAD + _given(1.0) + _LOOP).replace(
        "        optimizer.step()", "        norms = torch.stack([p.grad_sample.flatten(1).norm(dim=1) for p in "
        "model.parameters()]).norm(dim=0)\n        optimizer.max_grad_norm = norms.median().item()\n"
        "        optimizer.step()")),
    "counted once an epoch": ("history", (_ACCOUNTANT + _LOOPED)
                              + "    accountant.step(noise_multiplier=1.0, sample_rate=0.1)\n"),
    "tensors apart": ("joint norm", _BY_HAND.replace(
        "        norms = torch.stack([s.flatten(1).norm(dim=1) for s in samples.values()]).norm(dim=0)\n"
        "        factors = (max_grad_norm / (norms + 1e-9)).clamp(max=1)\n", "").replace(
        "            total = ", "            norms = samples[name].flatten(1).norm(dim=1)\n"
        "            factors = (max_grad_norm / (norms + 1e-9)).clamp(max=1)\n            total = ")),
    "divided by a name for the rows drawn": ("denominator", _LOOPED.replace(
        "        totals = ", "        count = a.shape[0]\n        totals = ").replace("/ 60\n", "/ max(1, count)\n")),
    "scores of a function that trains": ("beside", _HAND_HEAD + "def train():" + _HAND_LOOP
                                         + "    return float(nn.functional.cross_entropy(model(x), y))\n"
                                         "for epoch in range(3):\n    tr_loss = train()\n"
                                         "    print(tr_loss)\n"),
    "resumed by an option": ("history", _CLEAN.replace(
        "engine = ", "resume = ''\nif resume:\n    model.load_state_dict(torch.load(resume)['model'])\nengine = ")),
    "windows that overlap": ("unit", _CLEAN.replace(
        "TensorDataset(x, y)", "Windows()").replace(
        "plain = ", "class Windows:\n    def __len__(self):\n        return 597\n"
        "    def __getitem__(self, i):\n        return x.flatten()[i : i + 8], y[i]\nplain = ")),
    "epsilon at another delta": ("budget", _CLEAN.replace("get_epsilon(1e-5)", "get_epsilon(1e-4)")),
    "a second optimiser": ("bypass", _SECOND.replace("optimizer.step()", "optimizer.step()\n        other.step()")),
    "a second optimiser that comes first": (
        "bypass", _SECOND.replace("optimizer.step()", "other.step()\n        other.zero_grad()\n        "
                                                      "optimizer.step()")),
    "calibrated for fewer epochs, by hand": ("budget", _HEAD + _BY_NUMBER + _given(0.0).replace("=0.0", "=noise")
                                             + _LOOP.replace("range(3)", "range(9)")),
    "calibrated for fewer steps, in a loop by hand": ("budget", _BY_HAND.replace(
        "from torch import nn\n", "from torch import nn\n" + _BY_NUMBER, 1).replace(
        "= 1.0, 0.5", "= noise, 0.5").replace("range(3)", "range(9)")),
    "a baseline first": ("budget", _HEAD + "for _ in range(5):\n    for a, b in rows:\n        plain.zero_grad()\n"
                         f"        {_LOSS}.backward()\n        plain.step()\n"
                         + _CLEAN.replace(_HEAD, "").replace("range(3)", "range(9)")),
}  # fmt: skip
