"""Short trainings that are read, not run: each with one suspicion, and right ones that look like it."""

from doctor_trainings import CLEAN

_OPACUS = CLEAN["plain"] + "torch.save(model._module.state_dict(), 'model.pt')\n"
_STEP = "        optimizer.step()\n"
_EPOCH = "    engine.get_epsilon(1e-5)\n"
_SAVE = "torch.save(model._module.state_dict(), 'model.pt')\n"
_HAND = """
import torch
from torch import nn

x, y = load()
n = len(x)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sigma, clip = 1.0, 0.5
for step in range(30):
    drawn = torch.nonzero(torch.rand(n) < 0.1).flatten()
    totals = [torch.zeros_like(p) for p in model.parameters()]
    for row, label in zip(x[drawn], y[drawn]):
        model.zero_grad()
        nn.functional.cross_entropy(model(row[None]), label[None]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        for total, p in zip(totals, model.parameters()):
            total += p.grad
    for total, p in zip(totals, model.parameters()):
        noise = torch.randn_like(total) * sigma * clip
        p.grad = (total + noise) / 60
    optimizer.step()
    accountant.step(noise_multiplier=sigma, sample_rate=0.1)
print(accountant.get_epsilon(1e-5))
torch.save(model.state_dict(), "model.pt")
"""
_TELL = "    accountant.step(noise_multiplier=sigma, sample_rate=0.1)\n"
_ASK = "print(accountant.get_epsilon(1e-5))\n"
_ALONE = "torch.nonzero(torch.rand(n) < 0.1).flatten()"
# Each phone is one unit of privacy; the noise is added to the sum of updates.
_PHONES = """
import copy
import torch
from torch import nn

def local(server, x, y):
    model = copy.deepcopy(server)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for part in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[part]), y[part])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    update = [p.detach() - q.detach() for p, q in zip(model.parameters(), server.parameters())]
    length = torch.stack([u.norm() for u in update]).norm()
    update = [u * min(1.0, clip / length) for u in update]
    return update, loss.item()

server = nn.Linear(8, 2)
sigma, clip = 1.0, 0.5
for turn in range(100):
    total = [torch.zeros_like(p) for p in server.parameters()]
    for phone in [i for i in range(500) if torch.rand(()) < 0.1]:
        update, loss = local(server, *phones[phone])
        for t, u in zip(total, update):
            t += u
    with torch.no_grad():
        for p, t in zip(server.parameters(), total):
            p += (t + sigma * clip * torch.randn_like(t)) / 50
    accountant.step(noise_multiplier=sigma, sample_rate=0.1)
torch.save(server.state_dict(), "server.pt")
"""
_JOINT = "    update = [u * min(1.0, clip / length) for u in update]\n"
_ROWS = "rows = DataLoader(TensorDataset(x, y), batch_size=60, shuffle=True)\n"
_WINDOWS = "rows = DataLoader(xs, batch_size=60, shuffle=True)\n"
_SERIES = """WINDOW, STEP = 64, 16
xs = []
for series in recordings:
    for s in range(0, len(series) - WINDOW, {}):
"""
_OWN = "    cut = []\n    for s in range(0, len(series) - WINDOW, STEP):\n        cut.append(series[s : s + WINDOW])\n"
_SEEDED = "import secrets\nimport torch\ntorch.manual_seed(0)\n"
_EVALUATED = """
def evaluate(model):
    right = 0
    for a, b in test_loader:
        right += (model(a) == b).sum()
    return right
"""
_GENERATED = "synthetic = model(torch.randn(600, 8))\nsynthetic_table(synthetic).to_csv('made.csv')\n"


_SCORED = """
def score(model, rows):
    good = 0
    for a, b in rows:
        good += (model(a).argmax(1) == b).sum().item()
    return good / 600
"""
_OF_A_TEST = _SCORED.replace(", rows", "").replace("rows", "test_rows").replace("score", "accuracy")


def _hand(old: str, new: str) -> str:
    assert old in _HAND
    return _HAND.replace(old, new)


def _opacus(old: str, new: str) -> str:
    assert old in _OPACUS
    return _OPACUS.replace(old, new)


def _phones(old: str, new: str) -> str:
    assert old in _PHONES
    return _PHONES.replace(old, new)


# Each epoch is a function's.
_EPOCH_OF = (
    _OPACUS
    + """
def epoch_of(rows):
    kept = []
    for a, b in rows:
        value = nn.functional.cross_entropy(model(a), b)
        value.backward()
        kept.append(value.item())
    return sum(kept), 3
"""
)


def _clips(given: str) -> str:
    """A training whose clip norm is moved by Opacus' scheduler."""
    head, loop = _opacus("max_grad_norm=1.0", given).split("\nfor epoch")
    return f"{head}\nschedule = ExponentialGradClip(optimizer, gamma=0.9)\nfor epoch{loop}"


_IN_PARTS = _opacus(
    "    for a, b in loader:\n",
    "    with BatchMemoryManager(data_loader=loader, optimizer=optimizer) as parts:"
    "\n      for number, (a, b) in enumerate(parts):\n        if {}:\n            {}\n",
)
# The check that must be among the suspicions, and the training.
SUSPECT = {
    "an epoch in parts is left": ("budget", _IN_PARTS.format("number == 20", "break")),
    "a clip that is not called": ("sensitivity", _hand("sigma, clip = 1.0, 0.5\n", "sigma, bound = 1.0, 0.5\n"
        "def clip_gradients(gradients):\n    return [g * min(1.0, bound / g.norm()) for g in gradients]\n")
        .replace("        nn.utils.clip_grad_norm_(model.parameters(), clip)\n", "")
        .replace("sigma * clip", "sigma * bound")),
    "one part is looked at": ("budget", _IN_PARTS.format("a is None", "pass").replace(
        "      for number", "      first = next(iter(parts))\n      for number")),
    "noise of one release": ("budget", _hand("sigma, clip = 1.0, 0.5\n", "epsilon, delta, clip = 0.5, 1e-5, 0.5\n"
        "sigma = math.sqrt(2 * math.log(1.25 / delta)) / epsilon\n").replace(_TELL, "").replace(_ASK, "")),
    "rows by randint": ("sampling", _hand(_ALONE, "torch.randint(0, n, (60,))")),
    "weights of classes": ("beside", _opacus("engine = ", "counts = torch.bincount(y)\nweights = 600 / (2 * counts)\n"
                           "engine = ").replace("(model(a), b)", "(model(a), b, weight=weights)")),
    "told of epochs": ("history", _hand("print(accountant.get_epsilon(1e-5))\n", "print(spent(0.1, sigma, epochs))\n"
        "def spent(rate, sigma, steps):\n    return epsilon(rate, sigma, steps)\n")),
    "one step an epoch": ("history", _hand("    accountant.step(noise_multiplier=sigma, sample_rate=0.1)\n",
        "for _ in range(epochs):\n    accountant.step(noise_multiplier=sigma, sample_rate=0.1)\n")
        .replace("for step in range(30):\n", "for step in range(30):\n    epochs = 3\n")),
    "divided by the rows of a mask": ("denominator", _hand("(total + noise) / 60", "(total + noise) / len(x[drawn])")),
    "the sum is clipped": ("sensitivity", _hand(
        "        nn.utils.clip_grad_norm_(model.parameters(), clip)\n", "").replace(
        "    for total, p in zip(totals, model.parameters()):\n        noise",
        "    norm = torch.stack([t.norm() for t in totals]).norm()\n    factor = min(1.0, clip / float(norm))\n"
        "    totals = [factor * t for t in totals]\n    for total, p in zip(totals, model.parameters()):\n"
        "        noise")),
    "an epsilon of one's own": ("budget", _hand(_ASK, "print(epsilon(30))\n").replace(_TELL, "").replace(
        "sigma, clip = 1.0, 0.5\n", "sigma, clip, rate = 1.0, 0.5, 0.1\n"
        "def epsilon(steps):\n    return rate * math.sqrt(steps * math.log(1e5)) / sigma\n")),
    "a large delta": ("delta", _hand("sigma, clip = 1.0, 0.5", "sigma, clip, delta = 1.0, 0.5, 1e-2")),
    "noise on matrices": ("noise", _hand("        noise = torch.randn_like(total) * sigma * clip\n",
        "        noise = 0\n        if total.ndim > 1:\n            noise = torch.randn_like(total) * sigma * clip\n")),
    "a clip norm by the norms": ("beside", _hand("    optimizer.step()\n",
        "    clip = 0.9 * clip + 0.1 * torch.quantile(norms, 0.5).item()\n    optimizer.step()\n")),
    "labels by group": ("beside", _opacus("engine = ", "rate = df.groupby('job')['label'].mean()\nengine = ")),
    "columns by themselves": ("beside", _opacus("engine = ", "for c in names:\n    df[c] = (df[c] - df[c].mean()) / "
        "df[c].std()\nengine = ")),
    "words by a class": ("beside", _opacus("engine = ", "vocab = Words(texts)\nengine = ")
        + "torch.save(vocab.known, 'v.pt')\nclass Words:\n    def __init__(self, texts):\n"
        "        self.counts = Counter(' '.join(texts))\n"
        "        self.index = {w: i for i, w in enumerate(self.counts)}\n"),
    "batches kept": ("history", _OPACUS.replace("for epoch in range", "kept = [b for b in loader]\nfor epoch in range")
                     .replace("    for a, b in loader:", "    for a, b in kept:")),
    "noise for a clip norm that moves": ("schedule", _hand("sigma, clip = 1.0, 0.5\n",
        "sigma, clip = 1.0, 0.5\nnoise_std = sigma * clip\n").replace("* sigma * clip\n", "* noise_std\n")
        .replace("    drawn = ", "    clip = clip * 1.01\n    drawn = ")),
    "stated for households": ("unit", _opacus(_EPOCH, "    print('epsilon per household', engine.steps)\n")),
    "norms of gradients sent": ("beside", _opacus(
        _STEP, "        long = model.weight.grad_sample.flatten(1).norm(dim=1)\n"
        "        sink.emit(norm=long.mean().item())\n" + _STEP)),
    "stated for users": ("unit", _opacus(_EPOCH, "    print(f'user-level epsilon {engine.get_epsilon(1e-5):.2f}')\n")),
    "seeded in each step": ("seed", _hand("        noise = torch.randn_like(total) * sigma * clip\n",
        "        noise = torch.randn(total.shape, generator=own) * sigma * clip\n").replace(
        "    drawn = ", "    own = torch.Generator().manual_seed(3)\n    drawn = ")),
    "a rate by a score": ("selection", _opacus("engine = ", "plan = ReduceLROnPlateau(plain)\nengine = ")),
    "weights of classes by their place": ("beside", _opacus("engine = ", "counts = torch.bincount(y)\n"
        "weights = 600 / (2 * counts)\nentropy = nn.CrossEntropyLoss(weights)\nengine = ")),
    "begun with private weights": ("history", _opacus(
        "engine = ", "model.load_state_dict(torch.load('runs/dp_model.pt'))\nengine = ")),
    "begun with what it writes": ("history", _opacus(
        "engine = ", "if os.path.exists('model.pt'):\n    model.load_state_dict(torch.load('model.pt'))\nengine = ")),
    "a bias by counts over their number": ("beside", _opacus("engine = ", "share = torch.bincount(y).float() / len(y)\n"
                                           "model[2].bias.data.copy_(share.log())\nengine = ")),
    "a bias by the labels": ("beside", _opacus("engine = ", "share = y.float().mean()\n"
                             "nn.init.constant_(model[2].bias, torch.log(share / (1 - share)))\nengine = ")),
    "losses summed": ("beside", _opacus("for epoch in range(3):\n", "for epoch in range(3):\n    total = 0.0\n")
                      .replace(_STEP, _STEP + "        total += loss.item()\n")
                      .replace(_EPOCH, "    print(total / len(loader))\n" + _EPOCH)),
    "a threshold by scores, saved": ("beside", _OPACUS + "p = model(x)[:, 1]\n"
        "cut = tries[np.argmax([f1_score(y, p > t) for t in tries])]\njson.dump({'cut': cut}, f)\n"),
    "a rate by a score of the rows": ("selection", _opacus(_EPOCH, "    plan.step(held_loss)\n" + _EPOCH).replace(
        "engine = ", "plan = ReduceLROnPlateau(plain)\nengine = ")),
    "divided by the number of those drawn": ("denominator", _hand("(total + noise) / 60", "(total + noise) / count")
        .replace("    totals = ", "    count = len(drawn)\n    totals = ")),
    "rows of a permutation, by an offset": ("sampling", _hand(_ALONE, "order[at : at + 60]").replace(
        "    drawn = ", "    at = step % 10 * 60\n    drawn = ").replace(
        "n = len(x)", "n = len(x)\norder = torch.randperm(n)")),
    "people by sample": ("sampling", _phones("[i for i in range(500) if torch.rand(()) < 0.1]", "chosen").replace(
        "    total = ", "    chosen = random.sample(handsets, int(0.1 * len(handsets)))\n    total = ")),
    "words by a short name": ("beside", _opacus("engine = ", "made = TfidfVectorizer()\nx = made.fit_transform(texts)\n"
                              "engine = ")),
    "gaps by medians": ("beside", _opacus("engine = ", "middle = df.median()\ndf = df.fillna(middle)\nengine = ")),
    "a table by its columns": ("beside", _opacus("engine = ", "table = pd.read_csv('rows.csv')\nages = table[['age']]\n"
        "ages = (ages - ages.mean()) / ages.std()\nengine = ")),
    "a mean of a table, saved": ("beside", _opacus("engine = ", "table = pd.read_csv('rows.csv')\n"
                                 "centre = table.mean()\nengine = ") + "pickle.dump(centre, f)\n"),
    "statistics that a data set keeps": ("beside", _opacus("engine = ", """class Rows:
    def __init__(self, x):
        self.x, self.m, self.s = x, x.mean(), x.std()
    def __getitem__(self, i):
        return (self.x[i] - self.m) / (self.s + 1e-8)
engine = """)),
    "losses that an epoch returns": ("beside", _EPOCH_OF + "of_epoch, more = epoch_of(loader)\nprint(of_epoch)\n"),
    "losses that are yielded": ("beside", _EPOCH_OF.replace("return", "yield")
                                + "for pair in epoch_of(loader):\n    print(pair)\n"),
    "a score of another loader of the rows": ("beside", _OPACUS + _SCORED
        + "again = DataLoader(TensorDataset(x, y), batch_size=500)\nshare = score(model, again)\nprint(share)\n"),
    "losses summed, printed at the end": ("beside", _opacus("engine = ", "total = 0.0\nengine = ")
                      .replace(_STEP, _STEP + "        total += loss.item()\n") + "print(total / 30)\n"),
    "rows with a user": ("unit", _opacus("for a, b in loader", "for a, b, user_id in loader")),
    "epsilon at another delta": ("budget", _opacus("get_epsilon(1e-5)", "get_epsilon(delta=1e-3)")),
    "nothing accounted": ("budget", _hand(
        "    accountant.step(noise_multiplier=sigma, sample_rate=0.1)\nprint(accountant.get_epsilon(1e-5))\n", "")),
    "two engines for one data set": ("history", _opacus("engine = ", "other = PrivacyEngine()\n"
        "small, stepper, batches = other.make_private(module=nn.Linear(8, 2), optimizer=plain, "
        "data_loader=DataLoader(TensorDataset(x, y), batch_size=30), noise_multiplier=1.0, max_grad_norm=1.0)\n"
        "for a, b in batches:\n    step(small, a, b)\n"
        "engine = ")),
    "rows by choice": ("sampling", _hand(_ALONE, "np.random.choice(len(x), 60, replace=False)")),
    "rows by a permutation": ("sampling", _hand(_ALONE, "torch.randperm(n)[:60]")),
    "rows by sample": ("sampling", _hand(_ALONE, "random.sample(range(len(x)), k=60)")),
    "rows by a function": (
        "sampling", "def draw(n):\n    rows = torch.randperm(n)\n    return rows[:60]\n" + _hand(_ALONE, "draw(n)"),
    ),
    "rows of a list, in turn": ("sampling", _hand(_ALONE, "order[step * 60 : (step + 1) * 60]")
                               .replace("n = len(x)", "n = len(x)\norder = torch.randperm(n)")),
    "rows of a permutation, in parts": ("sampling", _hand(
        "for step in range(30)", "for drawn in torch.randperm(n).split(60)")
                                        .replace("    drawn = " + _ALONE + "\n", "")),
    "clients by number": ("sampling", _phones("[i for i in range(500) if torch.rand(()) < 0.1]",
                                              "np.random.choice(len(clients), 50, replace=False)")),
    "ranges saved": ("beside", _opacus("engine = ", "low, high = x.min(dim=0), x.max(dim=0)\nengine = ")
                     .replace(_SAVE, "torch.save({'w': model._module.state_dict(), 'range': (low, high)}, 'm.pt')\n")),
    "a mean saved": ("beside", _opacus("engine = ", "centre = np.mean(x, axis=0)\nengine = ")
                     + "np.save('centre.npy', centre)\n"),
    "words saved": ("beside", _opacus("engine = ", "counts = Counter(word for text in texts for word in text)\n"
                                      "words = {w: i for i, (w, c) in enumerate(counts.most_common())}\nengine = ")
                    + "json.dump(words, open('words.json', 'w'))\n"),
    "letters saved": ("beside", _opacus("engine = ", "chars = sorted(set(text))\nengine = ")
                      + "torch.save({'chars': chars}, 'chars.pt')\n"),
    "standardised by themselves": ("beside", _opacus("engine = ", "mean, std = x.mean(0), x.std(0)\n"
                                                     "x = (x - mean) / (std + 1e-8)\nengine = ")),
    "words by a function": ("beside", _opacus("engine = ", "vocab = build(texts)\nengine = ")
                            + "torch.save(vocab, 'v.pt')\ndef build(texts):\n    return Counter(' '.join(texts))\n"),
    "ranges used": ("beside", _opacus(
        "engine = ", "low, high = x.min(0), x.max(0)\nx = (x - low) / (high - low)\nengine = ")),
    "losses saved": ("beside", _opacus(_STEP, _STEP + "        losses.append(loss.item())\n")
                     + "json.dump(losses, open('losses.json', 'w'))\n"),
    "losses of phones saved": ("beside", _phones("        for t, u in", "        history.append({'mean': loss})\n"
                                                 "        for t, u in")
                               .replace("server.state_dict(), ", "{'w': server.state_dict(), 'h': history}, ")),
    "chosen without the word": ("selection", _opacus(_EPOCH, "    auc = area(model, held)\n    if auc > most:\n"
                                                     "        most = auc\n        keep(model)\n")),
    "windows in a loop": ("unit", _opacus(_ROWS, _SERIES.format("STEP")
                                          + "        xs.append(series[s : s + WINDOW])\n" + _WINDOWS)),
    "windows by half": ("unit", _opacus(_ROWS, _SERIES.format("WINDOW // 2")
                                        + "        xs.append((torch.tensor(series[s : s + WINDOW]), s))\n" + _WINDOWS)),
    "windows in a list": ("unit", _opacus(
        _ROWS, "xs = [text[i : i + 40] for i in range(len(text) - 40)]\n" + _WINDOWS)),
    "windows by arguments": ("unit", _opacus(
        _ROWS, "def cut(series, w=64, step=16):\n    out = []\n    for s in range(0, len(series) - w, step):\n"
        "        out.append(series[s : s + w])\n    return out\nxs = cut(series)\n" + _WINDOWS)),
    "windows unfolded": ("unit", _opacus(_ROWS, "xs = TensorDataset(series.unfold(0, 64, 8))\n" + _WINDOWS)),
    "tensors of an update apart": ("joint norm", _phones("clip / length)", "clip / u.norm())")),
    "tensors of an update by a function": ("joint norm", _phones(_JOINT, "    update = [short(u) for u in update]\n")
                                           + "def short(t):\n    return t * min(1, clip / t.norm())\n"),
    "tensors of an update by name": ("joint norm", _phones(_JOINT, "    update = {k: v * torch.clamp(clip / v.norm(), "
                                                                   "max=1) for k, v in update.items()}\n")),
    "the noise falls": ("schedule", _hand("    drawn = ", "    noise_now = sigma * 0.99**step\n    drawn = ")
                        .replace("* sigma *", "* noise_now *")),
    "the noise is told at the end": ("schedule", _hand(
        "    accountant.step(noise_multiplier=sigma, sample_rate=0.1)\n",
        "    sigma *= 0.99\naccountant.compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(sigma)), 30)\n")),
    "a clip norm that falls for ghosts": ("sensitivity", _clips("max_grad_norm=1.0, grad_sample_mode='ghost'")),
    "a clip norm that falls, and one a layer": ("sensitivity", _clips("max_grad_norm=[1.0] * 4, clipping='per_layer'")),
    "a whole module": ("beside", _opacus(_SAVE, "torch.save(model, 'model.pt')\n")),
    "made-up rows": ("seed", _opacus(_SAVE, _GENERATED).replace("x = ", "torch.manual_seed(0)\nx = ")),
    "a generator that is handed on, or none": ("seed", _SEEDED + _OPACUS.replace(
        "model, optimizer, loader = engine.make_private_with_epsilon(\n    module=model,",
        "def private(module, noise_generator=None, **given):\n    return engine.make_private_with_epsilon("
        "module=module, noise_generator=noise_generator, **given)\n"
        "model, optimizer, loader = private(\n    module=model,")),
    "a seed beside a fresh one for data": ("seed", _SEEDED + "fresh = torch.Generator()\nfresh.seed()\n" + _OPACUS),
    "a seeded generator of the noise": ("seed", _hand("_like(total)", "(total.shape, generator=own)")
                                        .replace("n = len", "own = torch.Generator().manual_seed(3)\nn = len")),
    "a client's own score": (
        "beside", _OPACUS + "class One(fl.client.NumPyClient):\n    def evaluate(self, given, config):\n"
        "        loss, rows = of(self.model, self.held)\n        return float(loss), rows, {}\n"),
    "a temperature": ("beside", _OPACUS + "temperature = torch.ones(1, requires_grad=True)\n"
                      "torch.optim.LBFGS([temperature]).step(closure)\n"),
    "an accountant by hand, not asked": ("budget", _hand(
        "print(accountant.get_epsilon(1e-5))\n", "")
        .replace("sigma, clip =", "accountant = RDPAccountant()\nsigma, clip =")),
    "what a pass returns": ("beside", "def one_pass(model, rows):\n    for a, b in rows:\n        l = of(model(a), b)\n"
        "        l.mean().backward()\n    return a_mean(l), 0\n" + _opacus(
            "    for a, b in loader:",
            "    train_metrics = one_pass(model, loader)\n    print(train_metrics)\n    for a, b in loader:")),
    "losses in a table": ("beside", _opacus(_STEP, _STEP + "        table.writerow([epoch, loss.item()])\n")),
    "a loss by a letter": ("beside", _opacus(
        "        loss = nn.functional.cross_entropy(model(a), b)\n        loss.backward()\n",
        "        l = nn.functional.cross_entropy(model(a), b)\n        l.mean().backward()\n        print(l)\n")),
    "a loss that a step returns": ("beside", """
import torch

def step(model, optimizer, x, y):
    losses = loss_of(model(x), y)
    for p, total in zip(model.parameters(), clipped(losses)):
        noise = torch.randn_like(total) * sigma
        p.grad = (total + noise) / 60
    optimizer.step()
    return losses.mean()

for drawn in (torch.rand(n) < 0.1 for _ in range(30)):
    batch_loss = step(model, optimizer, x[drawn], y[drawn])
    accountant.step(noise_multiplier=sigma, sample_rate=0.1)
    bar.set_postfix(loss=batch_loss)
"""),
    "every tenth step counted": (
        "history", _hand("    accountant.step(", "    if step % 10 == 0:\n        accountant.step(")),
    "no epsilon": ("budget", _opacus(_EPOCH, "").replace("make_private_with_epsilon", "make_private")
                   .replace("target_epsilon=2.0, target_delta=1e-5, epochs=3", "noise_multiplier=1.0")),
    "noise by a formula": ("budget", _opacus(_EPOCH, "").replace("make_private_with_epsilon", "make_private")
                           .replace("target_epsilon=2.0, target_delta=1e-5, epochs=3", "noise_multiplier=1 / epsilon")),
    "columns scaled": ("beside", _opacus("engine = ", "x = StandardScaler().fit_transform(x)\nengine = ")),
    "targets up to 50": ("budget", _opacus("for epoch", "for eps in [1, 10, 50]:\n    train(eps)\nfor epoch")),
    "updates that are clipped nowhere": ("sensitivity", _phones(
        "    length = torch.stack([u.norm() for u in update]).norm()\n" + _JOINT, "")),
    "an empty batch by a function": (
        "empty batch", _opacus("        optimizer.zero_grad()", "        if len(a) == 0:\n            continue\n"
                               "        update(a, b)\n        optimizer.zero_grad()")),
    "a train loader by its name": ("sampling", _hand(_ALONE, "0\n    for a, b in train_loader:\n        pass")
                                   .replace("n = len", "train_loader = DataLoader(x, shuffle=True)\nn = len")),
    "the loss of the training rows, after the test's": ("beside", _opacus(
        _EPOCH, "    print(loss)\n    for a, b in test_loader:\n        loss = criterion(model(a), b)\n")),
}  # fmt: skip

# Trainings in which nothing is to be suspected.
INNOCENT = {
    "the only epoch is left": _IN_PARTS.format("number == 20", "break").replace("for epoch in range(3):", "if True:"),
    "an epoch in parts": _IN_PARTS.format("number == 20", "print(number)"),
    "a loop within a part": _IN_PARTS.format("True", "for _ in range(2):\n                break"),
    "noise of all steps": _hand("sigma, clip = 1.0, 0.5\n", "epsilon, delta, clip, steps = 0.5, 1e-5, 0.5, 30\n"
        "sigma = math.sqrt(2 * steps * math.log(1.25 / delta)) / epsilon\n").replace(_TELL, "").replace(_ASK, ""),
    "a parameter before the training": "scale = torch.ones(1, requires_grad=True)\n"
        "other = torch.optim.SGD([scale], lr=0.1)\n" + _OPACUS,
    "a client's number of rows": _OPACUS + "class One(fl.client.NumPyClient):\n    def evaluate(self, given, config):\n"
        "        return 0.0, len(self.held), {}\n",
    "columns scaled by public ones": _opacus("engine = ", "scaler = StandardScaler().fit(public_x)\nengine = "),
    "an optimiser's wrapper": _opacus("loss.backward()", "fabric.backward(loss)").replace(
        _EPOCH, _EPOCH + "    print(fabric.device)\n"),
    "parts counted when they are noised": _hand("    optimizer.step()\n    accountant.step(",
        "    optimizer.step()\n    if step % 1 == 0:\n        apply(torch.randn_like(total) * sigma)\n"
        "        accountant.step("),
    "an accountant of its own name": _opacus("make_private_with_epsilon", "make_private").replace(
        "target_epsilon=2.0, target_delta=1e-5, epochs=3", "noise_multiplier=noise_of(epsilon, 30)"),
    "a score of a test's loader": _OPACUS + _SCORED + "print(score(model, test_loader))\n",
    "an accuracy over a test's loader": _opacus("for epoch", _OF_A_TEST
        + "for epoch").replace(_EPOCH, _EPOCH + "    print(f'{accuracy(model):.3f}')\n"),
    "a loss with noise": _opacus(_EPOCH, "    print(f'{loss.item() + 9 * torch.randn(()):.1f}')\n" + _EPOCH),
    "an epsilon beside losses": _EPOCH_OF.replace("sum(kept), 3", "{'loss': sum(kept), 'epsilon': 3}")
        + "told = epoch_of(loader)\nprint(told['epsilon'])\n",
    "a threshold by scores of public rows": _OPACUS + "q = model(public_x)[:, 1]\nmost, cut = 0, 0\n"
        "for t in tries:\n    score = f1_score(public_y, q > t)\n    if score > best_score:\n"
        "        best_score, cut = score, t\njson.dump({'cut': cut}, f)\n",
    "a threshold of an attack": _OPACUS + "for t in tries:\n    found = (shadow > t).mean()\n"
        "    if found > best_found:\n        best_found, best_t = found, t\nflagged = (shadow > best_t) & known\n",
    "a rate by a score of public rows": _opacus(_EPOCH, "    held_loss = measure(model, public_loader)\n"
        "    plan.step(held_loss)\n" + _EPOCH).replace("engine = ", "plan = ReduceLROnPlateau(plain)\nengine = "),
    "rows one by one, by their numbers": _hand("for row, label in zip(x[drawn], y[drawn])", "for i in drawn").replace(
        "row[None]", "x[i : i + 1]").replace("label[None]", "y[i : i + 1]").replace(
        "* sigma * clip\n", "* 0.5 * clip\n"),
    "batches apart, at a rate of 1": _hand(_ALONE, "batch").replace(
        "for step in range(30):\n", "for epoch in range(3):\n  for batch in DataLoader(ids, 60, shuffle=True):\n")
        .replace("    accountant.step(noise_multiplier=sigma, sample_rate=0.1)",
                 "  accountant.step(noise_multiplier=sigma, sample_rate=1.0)"),
    "each image by itself, in a transform": _opacus(
        "engine = ", "alone = transforms.Lambda(lambda x: (x - x.mean()) / x.std())\nengine = "),
    "gaps by zeros": _opacus("engine = ", "df = df.fillna(0)\nencoder = nn.Linear(8, 4)\nnet.fit(x)\nengine = "),
    "an accuracy of a test": _opacus(_EPOCH, _EPOCH + "    print(f'{accuracy(model, test_loader):.3f}')\n"),
    "epochs in whole, by an own sum": _hand(_ALONE, "0")
        .replace("for step in range(30):", "for a, b in DataLoader(data, 60, shuffle=True):")
        .replace("    accountant.step(noise_multiplier=sigma, sample_rate=0.1)\n", "rho = 30 * 2 / sigma ** 2\n")
        .replace("print(accountant.get_epsilon(1e-5))", "print('epsilon', rho + 2 * math.sqrt(rho * math.log(1e5)))"),
    "weights of classes, by public counts": _opacus(
        "engine = ", "counts = torch.bincount(public_labels)\nweights = 600 / (2 * counts)\nengine = "
    ).replace("(model(a), b)", "(model(a), b, weight=weights)"),
    "an accountant by a short name": _hand("accountant.step", "acc.step").replace(
        "print(accountant.get_epsilon(1e-5))", "print('epsilon', round(acc.get_epsilon(1e-5), 2))").replace(
        "x, y = load()", "x, y = load()\nacc = RDPAccountant()"),
    "a loss of public pre-training": "def pretrain_public(model, rows):\n    running = 0.0\n    for a, b in rows:\n"
        "        loss = criterion(model(a), b)\n        loss.backward()\n        running += loss.item()\n"
        "    print(running)\n" + _OPACUS,
    "weights of classes of public rows": _opacus("engine = ", "pub = np.load('digits.npz')\nlabel = pub['y']\n"
        "weights = 1 / label.bincount()\nengine = ").replace("(model(a), b)", "(model(a), b, weight=weights)"),
    "told of steps": _hand("print(accountant.get_epsilon(1e-5))\n", "print(spent(0.1, sigma, steps=epochs * 10))\n"
        "def spent(rate, sigma, steps):\n    return epsilon(rate, sigma, steps)\n"),
    "noise where there is a gradient": _hand("        noise = torch.randn_like(total) * sigma * clip\n",
        "        noise = 0\n        if total is not None:\n"
        "            noise = torch.randn_like(total) * sigma * clip\n"),
    "a clip norm by a noisy share": _hand("    optimizer.step()\n",
        "    share = (norms < clip).sum() + torch.randn(()) * 10\n    clip = clip * (share / 60 - 0.5).exp()\n"
        "    optimizer.step()\n"),
    "a new seed in each step": _hand("        noise = torch.randn_like(total) * sigma * clip\n",
        "        noise = torch.randn(total.shape, generator=own) * sigma * clip\n").replace(
        "    drawn = ", "    own = torch.Generator()\n    own.seed()\n    drawn = "),
    "begun with public weights": _opacus(
        "engine = ", "model.load_state_dict(torch.load('backbone/public_steps.pt'))\nengine = "),
    "the best loaded at the end": _OPACUS + "model._module.load_state_dict(torch.load('model.pt'))\n",
    "weights of classes, noised": _opacus(
        "engine = ", "counts = torch.bincount(y) + torch.randn(2) * noise\nengine = "
    ).replace("(model(a), b)", "(model(a), b, weight=1 / counts)"),
    "a sum over a test": _opacus(_EPOCH, "    total = 0.0\n    for a, b in test_loader:\n"
                         "        loss = criterion(model(a), b)\n        total += loss.item()\n"
                         "    print(total / 10)\n" + _EPOCH),
    "an engine for each choice": _opacus("engine = ", "if small:\n    other = PrivacyEngine()\n"
        "    model, optimizer, loader = other.make_private(module=model, optimizer=plain, data_loader=rows, "
        "noise_multiplier=1.0, max_grad_norm=1.0)\nengine = "),
    "classes counted, not their records": _opacus("engine = ", "even = torch.ones(len(Counter(y)))\nengine = ").replace(
        "(model(a), b)", "(model(a), b, weight=even)"),
    "persons, one after another": _opacus("engine = ", "for user_id, mine in by_user.items():\n"
                                          "    means.append(mine.mean(0))\nengine = "),
    "a plan of decrescendo": _hand(
        "    accountant.step(noise_multiplier=sigma, sample_rate=0.1)\nprint(accountant.get_epsilon(1e-5))\n",
        "print(dc.calibrate(dc.Budget(2.0, 1e-5), sampling, steps=30, clip=0.5).guarantee)\n"),
    "a bias of zeros": _opacus("engine = ", "nn.init.constant_(model[2].bias, 0.0)\nengine = "),
    "two engines for two data sets": _opacus("engine = ", "other = PrivacyEngine()\n"
        "small, stepper, batches = other.make_private(module=nn.Linear(8, 2), optimizer=plain, "
        "data_loader=DataLoader(theirs, batch_size=30), noise_multiplier=1.0, max_grad_norm=1.0)\n"
        "for a, b in batches:\n    step(small, a, b)\nengine = "),
    "an epsilon by a formula": _hand(
        "    accountant.step(noise_multiplier=sigma, sample_rate=0.1)\nprint(accountant.get_epsilon(1e-5))\n",
        "print('eps', (2 * 30 * math.log(1e5)) ** 0.5 / sigma)\n"),
    "opacus": _OPACUS,
    "by hand": _HAND,
    "phones": _PHONES,
    "a clip norm that falls": _clips("max_grad_norm=1.0"),
    "losses of public rows": _opacus("for epoch", "for a, b in public_loader:\n    loss = criterion(model(a), b)\n"
                                                  "    loss.backward()\n    print(loss)\nfor epoch"),
    "an image by itself": _opacus("engine = ", "def __getitem__(self, i):\n    x = self.images[i]\n"
                                               "    return (x - x.mean()) / x.std()\nengine = "),
    "a signal by itself": _opacus("engine = ", "signal = read()\nsignal = (signal - signal.mean()) / signal.std()\n"
                                               "engine = "),
    "noise that is scaled in place": _hand("        noise = torch.randn_like(total) * sigma * clip\n",
                                           "        noise = torch.randn_like(total)\n        noise *= sigma * c\n"),
    "weights that are kept short": _hand("    accountant.step", "    for p in model.parameters():\n"
                                                              "        p.data *= min(1, 3 / p.data.norm())\n"
                                                              "    accountant.step"),
    "an accountant printed": _hand("    optimizer.step()", "    print(acct.get_epsilon(1e-5), access)\n"
                                                           "    optimizer.step()"),
    "a score of public rows": _opacus(_EPOCH, "    acc = accuracy(model, public_test)\n    print(acc)\n"
                                              "    if acc > best:\n        best = acc\n"),
    "a score of a test set": _opacus(_EPOCH, "    loss_sum = 0\n    for a, b in test_loader:\n"
                                             "        loss_sum += criterion(model(a), b)\n    print(loss_sum / 10)\n"),
    "a score by a function": _EVALUATED + _opacus(_EPOCH, "    acc = evaluate(model)\n    print(acc)\n"),
    "a score out of a test's": _opacus(
        _EPOCH, "    scores = evaluate(model, test_loader)\n    print(scores['loss'], scores['acc'])\n"),
    "seeded for the weights alone": _SEEDED.replace(
        "torch.manual", "with torch.random.fork_rng():\n    torch.manual") + _OPACUS,
    "a test on some rows": _hand("    totals", "    some = torch.randperm(len(test_rows))[:60]\n    totals")
    .replace(_ALONE, "mine(n)"),
    "several trainings on some of the rows": "import torch\ndef train(rows):\n    x = y = rows\n" + "\n".join(
        "    " + line for line in _HAND.partition("n = len(x)\n")[2].splitlines()
    ).replace(_ALONE, "mine(n)") + "\nfor trial in range(5):\n    chosen = torch.randperm(n_rows)[:500]\n"
    "    train(data[chosen])\norder = torch.randperm(n_rows)\nfor fold in range(5):\n"
    "    train(data[order[fold * 100 : (fold + 1) * 100]])\n",
    "chunks of a drawn batch": _hand("    for row, label in", "    for part in drawn[torch.randperm(60)].split(16):\n"
                                                             "        see(part)\n    for row, label in")
    .replace(_ALONE, "mine(n)"),
    "columns saved": _opacus("engine = ", "words = sorted(set(df.columns))\nengine = ") + "torch.save(words, 'w.pt')\n",
    "validation scores in a list": _OPACUS.replace(
        _EPOCH, "    accs, n = [], 0\n    for a, b in val_loader:\n        accs.append((model(a) == b).mean())\n"
        "    print(sum(accs) / len(accs))\n" + _EPOCH),
    "a loader that is wrapped by its own name": "train_loader, other = loaders()\ntrain_loader = tqdm(train_loader)\n"
        + _OPACUS + "for epsilon in train_loader:\n    pass\n",
    "a seed of private rows that are made up": (
        "def private_records(n):\n    own = torch.Generator().manual_seed(0)\n"
        "    return torch.randn(n, 8, generator=own)\n" + _OPACUS),
    "seeded anew from the system": _SEEDED + "torch.manual_seed(secrets.randbits(62))\n" + _OPACUS,
    "seeded anew by a name": _SEEDED + "new = secrets.randbits(62)\ntorch.manual_seed(new)\n" + _OPACUS,
    "seeded anew on the line": _SEEDED.replace("(0)", "(0); weights = start(); torch.seed()") + _OPACUS,
    "seeded from the system": _SEEDED.replace("(0)", "(torch.seed())") + _OPACUS,
    "noise of another generator": _SEEDED + _hand("torch.randn_like(total)", "rng.normal(size=total.shape)")
    .replace("n = len", "rng = np.random.default_rng()\nn = len"),
    "noise of a generator for it": _SEEDED + _opacus("max_grad_norm=1.0", "max_grad_norm=1.0, noise_generator=own"),
    "data in a loop, seeded": _hand("n = len", "own = torch.Generator().manual_seed(2)\nfor _ in range(9):\n"
                                            "    people.append(torch.randn(20, generator=own))\nn = len"),
    "an empty part": _hand("    for row, label in", "    for part in drawn.split(16):\n        if len(part) == 0:\n"
                                                   "            continue\n        count(part)\n    for row, label in"),
    "a loader for its length": _hand(_ALONE, "sampler(len(loader), len(loader.dataset))").replace(
        "n = len", "loader = DataLoader(x, batch_size=60, shuffle=True)\nn = len"),
    "clients whose updates a function clips": _phones("length = torch.stack([u.norm() for u in update]).norm()",
                                                      "update = clip_together(update)").replace(_JOINT, ""),
    "times of a diffusion": _hand("    totals", "    t = torch.randint(0, n_steps, (len(drawn),))\n"
                                                "    level = x_levels[t]\n    totals").replace(_ALONE, "mine(n)"),
    "other numbers in a loop": _hand("    totals", "    noisy_columns = torch.randint(0, 8, (3,))\n    totals")
    .replace(_ALONE, "mine(n)"),
    "a mean with noise": _opacus("engine = ", "centre = x.mean(0) + torch.randn(8)\nengine = ")
    + "torch.save(centre, 'c.pt')\n",
    "a mean of public rows": _opacus("engine = ", "centre = public.mean(0)\nx = (x - centre) / 3\nengine = ")
    + "torch.save(centre, 'c.pt')\n",
    "a mean of weights": _OPACUS + "centre = model.weight.mean(dim=0)\ntorch.save(centre, 'c.pt')\n",
    "the number of words": _opacus("engine = ", "words = set(public_words)\nsize = len(words)\nengine = ")
    + "torch.save({'size': size}, 's.pt')\n",
    "each row by itself": _opacus("engine = ", "mean, std = x.mean(dim=1), x.std(dim=1)\n"
                                               "x = (x - mean) / std\nengine = "),
    "epsilons saved": _opacus(_EPOCH, "    spent.append(engine.get_epsilon(1e-5))\n")
    + "json.dump(spent, open('spent.json', 'w'))\n",
    "test losses saved": _opacus(_EPOCH, "    test_losses.append(test(model))\n")
    + "json.dump(test_losses, open('test.json', 'w'))\n",
    "the largest norm": _hand("    optimizer.step()", "    if norm > most:\n        most = norm\n    optimizer.step()"),
    "windows apart": _opacus(_ROWS, _SERIES.format("WINDOW")
                             + "        xs.append(series[s : s + WINDOW])\n" + _WINDOWS),
    "rows one by one": _opacus(_ROWS, "xs = [x[i : i + 1] for i in range(len(x))]\n" + _WINDOWS),
    "a running mean": _OPACUS + "smooth = [mean(curve[i : i + 9]) for i in range(len(curve) - 9)]\n",
    "windows of one person": _opacus(_ROWS, "WINDOW, STEP = 64, 16\nxs = []\nfor series in recordings:\n" + _OWN
                                     + "    xs.append(torch.stack(cut))\n" + _WINDOWS),
    "unfolded windows of one person": _hand(
        "n = len", "for series in x:\n    people.append((series.unfold(0, 32, 8), 1))\nn = len"),
    "patches of a model": _opacus("engine = ", "class Net(nn.Module):\n    def forward(self, x):\n"
                                               "        return torch.cat(x.unfold(1, 8, 4))\nengine = "),
    "each client by its own norm": _phones("    with torch.no_grad", "    updates = [u * min(1.0, clip / u.norm()) "
                                                                    "for u in updates]\n    with torch.no_grad"),
    "each client by its own norm, by number": _phones(
        "    with torch.no_grad", "    sent = {cid: u * min(1.0, clip / u.norm()) for cid, u in sent.items()}\n"
                                  "    with torch.no_grad"),
    "updates by their own norms": _phones(
        "    with torch.no_grad", "    sent = {k: u * min(1.0, clip / u.norm()) for k, u in updates.items()}\n"
                                  "    with torch.no_grad"),
    "windows where persons are drawn": _hand("n = len(x)", _SERIES.format("STEP").strip()
                                             + "\n        xs.append(series[s : s + WINDOW])\nn = len(x)")
    .replace("torch.rand(n)", "torch.rand(len(people))"),
    "the noise falls, and is told": _hand("    drawn = ", "    sigma = 2.0 * 0.99**step\n    drawn = "),
    "the noise falls, and a list is told": _hand("    drawn = ", "    noise_now = levels[step]\n    drawn = ")
    .replace("* sigma *", "* noise_now *").replace(
        "    accountant.step(noise_multiplier=sigma, sample_rate=0.1)\n",
        "for level in levels:\n    accountant.step(noise_multiplier=level, sample_rate=0.1)\n"),
    "the noise falls with the clip norm": _hand("    drawn = ", "    clip *= 0.99\n    noise_now = sigma * clip\n"
                                                                "    drawn = ")
    .replace("* sigma * clip\n", "* noise_now\n"),
    "batches kept of each epoch": _OPACUS.replace("    for a, b in loader:", "    kept = [b for b in loader]\n"
                                                 "    for a, b in kept:"),
    "noise for each clip norm": _hand("    drawn = ", "    clip *= 1.01\n    noise_std = sigma * clip\n    drawn = ")
    .replace("* sigma * clip\n", "* noise_std\n"),
    "how many gradients there are": _opacus(_STEP, "        own = [p.grad_sample for p in model.parameters()]\n"
                                            "        print(len(own), own[0].shape)\n" + _STEP),
    "a module without its gradients": _opacus(_SAVE, "optimizer.zero_grad()\ntorch.save(model, 'model.pt')\n"),
    "a module unwrapped": _opacus(_SAVE, "model = model._module\ntorch.save(model, 'model.pt')\n"),
    "rows made up, unseeded": _opacus(_SAVE, _GENERATED),
    "targets up to 10": _opacus("for epoch", "for eps in [1, 4, 10]:\n    train(eps)\nfor epoch"),
}  # fmt: skip
