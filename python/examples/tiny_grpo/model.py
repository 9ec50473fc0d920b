"""The policy: a small causal transformer, for training, and for sampling with a cache of keys and values."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from .text import PADDING, VOCABULARY

#: Tokens that a position reads at the input, itself included.
REACH = 3


@dataclasses.dataclass(frozen=True)
class Shape:
    """The size of a model."""

    width: int = 64
    layers: int = 3
    heads: int = 4
    context: int = 224


#: Sizes by name: 0.3, 20 and 87 million parameters. ``tiny`` trains on a laptop, the others need a GPU.
SIZES = {
    "tiny": Shape(),
    "20m": Shape(width=512, layers=6, heads=8),
    "87m": Shape(width=768, layers=12, heads=12),
}


@dataclasses.dataclass(frozen=True)
class Placement:
    """The device of a model and the type of its weights."""

    device: str = "cpu"
    dtype: str = "float32"

    @property
    def options(self) -> dict[str, torch.device | torch.dtype]:
        """Arguments of ``torch.zeros`` and ``Module.to``."""
        return {"device": torch.device(self.device), "dtype": getattr(torch, self.dtype)}


class Cache:
    """Keys and values of growing sequences: ``[layer, key or value, sequence, head, position, channel]``."""

    def __init__(self, policy: Policy, sequences: int) -> None:
        shape, weight = policy.shape, policy.tokens.weight
        size = (shape.layers, 2, sequences, shape.heads, shape.context, shape.width // shape.heads)
        self.states = torch.zeros(size, device=weight.device, dtype=weight.dtype)


class Block(nn.Module):
    """Attention and a feed-forward layer, each normalised before and added to its input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.feed = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width)
        )

    def forward(
        self,
        x: Tensor,
        states: Tensor | None = None,
        rows: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Returns the hidden states ``[sequence, position, channel]`` after this block.

        :param states: this layer's part of the cache; ``x`` then has one token for each of its ``rows``
        """
        count, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(count, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if states is None:
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            states[0, rows, :, positions], states[1, rows, :, positions] = k.squeeze(2), v.squeeze(2)
            longest = int(positions.max()) + 1
            visible = torch.arange(longest, device=x.device) <= positions[:, None]
            past = states[:, :, :, :longest][:, rows]
            attended = functional.scaled_dot_product_attention(
                q, past[0], past[1], attn_mask=visible[:, None, None]
            )
        x = x + self.out(attended.transpose(1, 2).reshape(count, length, width))
        return x + self.feed(self.norm2(x))


class Policy(nn.Module):
    """A model that predicts the next token. The embedding is the output layer too."""

    def __init__(self, shape: Shape = SIZES["tiny"]) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(VOCABULARY, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)
        # Each position reads the two tokens before it: most of what copying needs, learnt within a minute.
        self.mix = nn.Linear(REACH * shape.width, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=shape.width**-0.5)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.tokens.weight.device

    def forward(self, ids: Tensor) -> Tensor:
        """Returns hidden states of whole sequences ``[sequence, position]``; padding at an end changes nothing."""
        x = self._embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def _embed(self, ids: Tensor) -> Tensor:
        windows = functional.pad(ids, (REACH - 1, 0), value=PADDING).unfold(1, REACH, 1)
        positions = torch.arange(ids.shape[1], device=ids.device)
        return self.mix(self.tokens(windows).flatten(2)) + self.places(positions)

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns scores of the next token in float32, since log-probabilities need more digits than bfloat16 has."""
        return (hidden @ self.tokens.weight.T).float()

    def step(self, ids: Tensor, cache: Cache, rows: Tensor, positions: Tensor) -> Tensor:
        """Returns logits after one more token of some sequences: row ``rows[i]`` of the cache, ``positions[i]``.

        :param ids: the last ``REACH`` tokens of each sequence
        """
        x = (self.mix(self.tokens(ids).flatten(1)) + self.places(positions))[:, None]
        for block, states in zip(self.blocks, cache.states, strict=True):
            x = block(x, states, rows, positions)
        return self.logits(self.norm(x[:, 0]))

    def prefill(self, ids: Tensor, lengths: Tensor, cache: Cache, rows: Tensor) -> Tensor:
        """Reads whole prompts into the cache; returns the logits after the last token of each."""
        x = self._embed(ids)
        for block, states in zip(self.blocks, cache.states, strict=True):
            _, k, v = block.qkv(block.norm1(x)).view(*ids.shape, 3, block.heads, -1).permute(2, 0, 3, 1, 4)
            states[0, rows, :, : ids.shape[1]], states[1, rows, :, : ids.shape[1]] = k, v
            x = block(x)
        return self.logits(self.norm(x[torch.arange(len(ids), device=ids.device), lengths - 1]))

    def logprobs(self, ids: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the log-probabilities of the tokens at ``where`` (a mask like ``ids``), and their logits."""
        hidden = self(ids)[:, :-1][where[:, 1:]]
        logits = self.logits(hidden)
        taken = ids[:, 1:][where[:, 1:]]
        return logits.log_softmax(-1).gather(-1, taken[:, None]).squeeze(-1), logits


def load(path: Path, placement: Placement = Placement()) -> Policy:
    """Returns the policy of a file."""
    saved = torch.load(path, weights_only=True, map_location=placement.device)
    policy = Policy(Shape(**saved["shape"]))
    policy.load_state_dict(saved["weights"])
    return policy.to(**placement.options)


def save(policy: Policy, path: Path) -> None:
    """Writes the policy to a file, atomically: a reader sees the old policy or the new one."""
    part = path.with_suffix(".part")
    torch.save({"shape": dataclasses.asdict(policy.shape), "weights": policy.state_dict()}, part)
    part.replace(path)
