"""The benchmark's models once more as JAX functions of torch's own weights, by torch's names.

``MODELS[workload](weights, *inputs)`` takes inputs with a leading batch dimension, as the torch model does.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = Any
Weights = Mapping[str, Array]


def linear(weights: Weights, name: str, x: Array) -> Array:
    """``nn.Linear``, with or without a bias."""
    y = x @ weights[f"{name}.weight"].T
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def convolution(weights: Weights, name: str, x: Array, stride: int = 1, padding: int = 0) -> Array:
    """``nn.Conv2d``."""
    y = lax.conv_general_dilated(
        x, weights[f"{name}.weight"], (stride, stride), [(padding, padding)] * 2,
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
    )  # fmt: skip
    return y + weights[f"{name}.bias"][:, None, None]


def max_pool(x: Array, size: int, stride: int) -> Array:
    """``nn.MaxPool2d``."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, size, size), (1, 1, stride, stride), "VALID")


def layer_norm(weights: Weights, name: str, x: Array) -> Array:
    """``nn.LayerNorm`` over the last dimension."""
    centred = x - x.mean(-1, keepdims=True)
    normal = centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
    return normal * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def attention(qkv: Array, heads: int, *, causal: bool) -> Array:
    """Multi-head attention from queries, keys and values beside one another in the last dimension."""
    batch, length, width = qkv.shape
    q, k, v = jnp.moveaxis(qkv.reshape(batch, length, 3, heads, width // 3 // heads), 2, 0)
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=causal)
    return mixed.reshape(batch, length, width // 3)


def paper_cnn(weights: Weights, x: Array) -> Array:
    x = max_pool(jax.nn.relu(convolution(weights, "0", x, 2, 3)), 2, 1)
    x = max_pool(jax.nn.relu(convolution(weights, "3", x, 2)), 2, 1)
    x = jax.nn.relu(linear(weights, "7", x.reshape(x.shape[0], -1)))
    return linear(weights, "9", x)


def cnn_5x5(weights: Weights, x: Array) -> Array:
    x = max_pool(jax.nn.relu(convolution(weights, "0", x)), 2, 2)
    x = max_pool(jax.nn.relu(convolution(weights, "3", x)), 2, 2)
    x = jax.nn.relu(linear(weights, "7", x.reshape(x.shape[0], -1)))
    return linear(weights, "9", x)


def vgg_11(weights: Weights, x: Array) -> Array:
    # The places of the convolutions in the Sequential; a pooling layer follows where two more are skipped.
    places = (0, 3, 6, 8, 11, 13, 16, 18)
    for place in places:
        x = jax.nn.relu(convolution(weights, str(place), x, padding=1))
        if place not in (6, 11, 16):
            x = max_pool(x, 2, 2)
    x = jax.nn.relu(linear(weights, "22", x.reshape(x.shape[0], -1)))
    return linear(weights, "24", x)


def embedding_mlp(weights: Weights, tokens: Array) -> Array:
    x = weights["embedding.weight"][tokens].mean(1)
    return linear(weights, "out", jax.nn.relu(linear(weights, "hidden", x)))


def name_lstm(weights: Weights, names: Array, lengths: Array) -> Array:
    x = weights["embedding.weight"][names]
    inputs = x @ weights["lstm.weight_ih_l0"].T + weights["lstm.bias_ih_l0"] + weights["lstm.bias_hh_l0"]
    recurrent = weights["lstm.weight_hh_l0"].T
    zero = jnp.zeros((x.shape[0], recurrent.shape[0]))

    def advance(state: tuple[Array, Array], now: Array) -> tuple[tuple[Array, Array], Array]:
        hidden, cell = state
        i, f, g, o = jnp.split(now + hidden @ recurrent, 4, -1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (hidden, cell), hidden

    _, states = lax.scan(advance, (zero, zero), jnp.moveaxis(inputs, 1, 0))
    last = jnp.take_along_axis(jnp.moveaxis(states, 0, 1), (lengths - 1)[:, None, None], 1)[:, 0]
    return linear(weights, "out", last)


def transformer(weights: Weights, tokens: Array) -> Array:
    x = weights["embedding.weight"][tokens]
    for layer in range(2):
        at = f"encoder.layers.{layer}"
        qkv = x @ weights[f"{at}.self_attn.in_proj_weight"].T + weights[f"{at}.self_attn.in_proj_bias"]
        mixed = linear(weights, f"{at}.self_attn.out_proj", attention(qkv, 4, causal=False))
        x = layer_norm(weights, f"{at}.norm1", x + mixed)
        more = linear(weights, f"{at}.linear2", jax.nn.relu(linear(weights, f"{at}.linear1", x)))
        x = layer_norm(weights, f"{at}.norm2", x + more)
    return linear(weights, "out", x.mean(1))


def group_norm(weights: Weights, name: str, x: Array, groups: int = 8) -> Array:
    """``nn.GroupNorm``."""
    parts = x.reshape(x.shape[0], groups, -1)
    centred = parts - parts.mean(-1, keepdims=True)
    normal = (centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)).reshape(x.shape)
    return normal * weights[f"{name}.weight"][:, None, None] + weights[f"{name}.bias"][:, None, None]


def doubled(weights: Weights, name: str, x: Array) -> Array:
    """``nn.ConvTranspose2d`` of a 2x2 kernel with a stride of 2."""
    b, _, h, w = x.shape
    y = jnp.einsum("bihw,ioac->bohawc", x, weights[f"{name}.weight"])
    return y.reshape(b, y.shape[1], 2 * h, 2 * w) + weights[f"{name}.bias"][:, None, None]


def block(weights: Weights, at: str, x: Array, heads: int, *, causal: bool) -> Array:
    """A pre-norm block."""
    qkv = linear(weights, f"{at}.attention.qkv", layer_norm(weights, f"{at}.before_attention", x))
    x = x + linear(weights, f"{at}.attention.out", attention(qkv, heads, causal=causal))
    normal = layer_norm(weights, f"{at}.before_mlp", x)
    wide = soft_experts if f"{at}.mlp.router.weight" in weights else feed_forward
    return x + wide(weights, f"{at}.mlp", normal)


def feed_forward(weights: Weights, at: str, x: Array) -> Array:
    inner = linear(weights, f"{at}.0", x)
    return linear(weights, f"{at}.2", jax.nn.gelu(inner, approximate=False))


def soft_experts(weights: Weights, at: str, x: Array) -> Array:
    shares = jax.nn.softmax(linear(weights, f"{at}.router", x))
    each = [feed_forward(weights, f"{at}.experts.{i}", x) for i in range(shares.shape[-1])]
    return (jnp.stack(each, -1) * shares[..., None, :]).sum(-1)


def blocks(weights: Weights, x: Array, heads: int, *, causal: bool) -> Array:
    """As many as there are weights for."""
    count = len({name.split(".")[1] for name in weights if name.startswith("blocks.")})
    for at in range(count):
        x = block(weights, f"blocks.{at}", x, heads, causal=causal)
    return layer_norm(weights, "norm", x)


def vit_tiny(weights: Weights, images: Array) -> Array:
    stride = weights["patches.weight"].shape[-1]
    x = convolution(weights, "patches", images, stride)
    x = jnp.moveaxis(x.reshape(*x.shape[:2], -1), 1, 2)
    token = jnp.broadcast_to(weights["token.token"], (x.shape[0], 1, x.shape[2]))
    x = jnp.concatenate([token, x], 1) + weights["positions.table"]
    return linear(weights, "out", blocks(weights, x, 3, causal=False)[:, 0])


def gpt(weights: Weights, tokens: Array) -> Array:
    x = weights["embedding.weight"][tokens] + weights["positions.table"]
    heads = 12 if x.shape[-1] == 768 else 4
    x = blocks(weights, x, heads, causal=True)
    return x @ weights["out.weight" if "out.weight" in weights else "embedding.weight"].T


def convolved(weights: Weights, at: str, x: Array) -> Array:
    inner = jax.nn.silu(group_norm(weights, f"{at}.first_norm", convolution(weights, f"{at}.first", x, padding=1)))
    inner = group_norm(weights, f"{at}.second_norm", convolution(weights, f"{at}.second", inner, padding=1))
    return jax.nn.silu(inner + convolution(weights, f"{at}.skip", x))


def u_net(weights: Weights, x: Array) -> Array:
    passed: list[Array] = []
    for at in range(2):
        x = convolved(weights, f"down.{at}", x)
        passed.append(x)
        x = max_pool(x, 2, 2)
    x = convolved(weights, "middle", x)
    for at in range(2):
        x = convolved(weights, f"up.{at}", jnp.concatenate([doubled(weights, f"wider.{at}", x), passed.pop()], 1))
    return convolution(weights, "out", x)


def experts(weights: Weights, tokens: Array) -> Array:
    x = weights["embedding.weight"][tokens] + weights["positions.table"]
    x = blocks(weights, x, 4, causal=False)
    return linear(weights, "out", x.mean(1))


MODELS: dict[str, Callable[..., Array]] = {
    "paper-cnn": paper_cnn,
    "paper-cnn-500": paper_cnn,
    "cnn-5x5": cnn_5x5,
    "embedding-mlp": embedding_mlp,
    "name-lstm": name_lstm,
    "vgg-11": vgg_11,
    "transformer": transformer,
    "vit-tiny": vit_tiny,
    "gpt": gpt,
    "gpt-tied": gpt,
    "u-net": u_net,
    "experts": experts,
}
