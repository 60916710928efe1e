"""A small transformer that really runs: random weights, a cache, and drafters that are its own first layers.

Random weights are scaled so that each layer changes the residual stream a little; a drafter of the first layers then
agrees with the whole model in part, as a trained drafter does with its target, and no weights need to be fetched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional


@dataclass(frozen=True)
class Sizes:
    """Dimensions of the model."""

    vocab: int = 256
    hidden: int = 128
    layers: int = 8
    heads: int = 4
    intermediate: int = 256
    positions: int = 512


class Cache:
    """Keys and values of one sequence, of fixed capacity; ``length`` tokens of it count."""

    def __init__(self, sizes: Sizes, layers: int, device: str) -> None:
        shape = (layers, 2, sizes.heads, sizes.positions, sizes.hidden // sizes.heads)
        self.values = torch.zeros(shape, device=device)
        self.length = 0


class Transformer:
    """A decoder with learned positions, in fp32.

    Parameters
    ----------
    sizes : Sizes
    seed : int
    device : str
    sharpness : float
        Factor on the logits: higher makes the distribution less even.
    """

    def __init__(self, sizes: Sizes, seed: int = 0, device: str = "cpu", sharpness: float = 2.0) -> None:
        random = torch.Generator(device).manual_seed(seed)

        def normal(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, generator=random, device=device)

        def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
            return normal(rows, columns) * gain / columns**0.5

        d, f, self.sizes, self.device, self.sharpness = sizes.hidden, sizes.intermediate, sizes, device, sharpness
        self.embedding = normal(sizes.vocab, d)
        self.position = 0.5 * normal(sizes.positions, d)
        self.head = matrix(sizes.vocab, d)
        self.layers = [
            {"qkv": matrix(3 * d, d), "out": matrix(d, d, 0.4), "up": matrix(f, d), "down": matrix(d, f, 0.4)}
            for _ in range(sizes.layers)
        ]

    def cache(self, layers: int | None = None) -> Cache:
        """An empty cache for this model, or for a drafter of its first layers."""
        return Cache(self.sizes, layers or self.sizes.layers, self.device)

    def logits(self, tokens: torch.Tensor, cache: Cache, layers: int | None = None) -> torch.Tensor:
        """Logits after each of some new tokens of a sequence, which are added to its cache.

        Parameters
        ----------
        tokens : torch.Tensor
            (n,) int64.
        layers : int, optional
            How many of the first layers to run; all by default.

        Returns
        -------
        torch.Tensor
            (n, vocab).
        """
        with torch.inference_mode():
            return self._logits(tokens, cache, layers)

    def _logits(self, tokens: torch.Tensor, cache: Cache, layers: int | None) -> torch.Tensor:
        start, n = cache.length, len(tokens)
        x = self.embedding[tokens] + self.position[start : start + n]
        for index, layer in enumerate(self.layers[: layers or len(self.layers)]):
            x = x + self._attention(functional.layer_norm(x, x.shape[-1:]), layer, cache.values[index], start)
            x = x + functional.silu(functional.layer_norm(x, x.shape[-1:]) @ layer["up"].T) @ layer["down"].T
        cache.length = start + n
        normed = functional.layer_norm(x, x.shape[-1:])
        return self.sharpness * (normed @ self.head.T)

    def _attention(
        self, x: torch.Tensor, layer: dict[str, torch.Tensor], kept: torch.Tensor, start: int
    ) -> torch.Tensor:
        n, heads = len(x), self.sizes.heads
        q, k, v = (part.view(n, heads, -1).transpose(0, 1) for part in (x @ layer["qkv"].T).chunk(3, dim=-1))
        kept[0, :, start : start + n], kept[1, :, start : start + n] = k, v
        keys, values = kept[0, :, : start + n], kept[1, :, : start + n]
        mask = None
        if n > 1:
            rows = torch.arange(start, start + n, device=x.device)[:, None]
            mask = torch.arange(start + n, device=x.device)[None, :] <= rows
        out: Any = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return torch.as_tensor(out.transpose(0, 1).reshape(n, -1) @ layer["out"].T)
