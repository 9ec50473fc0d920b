"""The policy: a causal transformer that can be read, run with a cache of keys and values, and trained."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from .text import PADDING, VOCABULARY

#: How many tokens, itself included, a position reads at the input.
REACH = 3


@dataclasses.dataclass(frozen=True)
class Shape:
    """How large a model is."""

    width: int = 64
    layers: int = 3
    heads: int = 4
    context: int = 224


class Cache:
    """Keys and values of sequences that grow: ``[layer, key or value, sequence, head, position, channel]``."""

    def __init__(self, shape: Shape, sequences: int) -> None:
        channels = shape.width // shape.heads
        self.kept = torch.zeros(shape.layers, 2, sequences, shape.heads, shape.context, channels)


class Block(nn.Module):
    """Attention and a feed-forward layer, both normalised before and added to what came in."""

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
        self, x: Tensor, kept: Tensor | None = None, rows: Tensor | None = None, at: Tensor | None = None
    ) -> Tensor:
        """``x`` is ``[sequence, position, channel]``; with a cache, its rows and the position of each one token."""
        count, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(count, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if kept is None:
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            kept[0, rows, :, at], kept[1, rows, :, at] = k.squeeze(2), v.squeeze(2)
            longest = int(at.max()) + 1
            visible = torch.arange(longest) <= at[:, None]
            past = kept[:, :, :, :longest][:, rows]
            seen = functional.scaled_dot_product_attention(
                q, past[0], past[1], attn_mask=visible[:, None, None]
            )
        x = x + self.out(seen.transpose(1, 2).reshape(count, length, width))
        return x + self.feed(self.norm2(x))


class Policy(nn.Module):
    """Token ids in, what the next one may be out. The embedding is the head as well."""

    def __init__(self, shape: Shape = Shape()) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(VOCABULARY, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)
        # Each token knows the two before it. That is most of what copying needs, and is learnt in a minute.
        self.mix = nn.Linear(REACH * shape.width, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=shape.width**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Hidden states of whole sequences ``[sequence, position]``; padding at their ends does no harm."""
        x = self._embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def _embed(self, ids: Tensor) -> Tensor:
        windows = functional.pad(ids, (REACH - 1, 0), value=PADDING).unfold(1, REACH, 1)
        return self.mix(self.tokens(windows).flatten(2)) + self.places(torch.arange(ids.shape[1]))

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token."""
        return hidden @ self.tokens.weight.T

    def step(self, ids: Tensor, cache: Cache, rows: Tensor, at: Tensor) -> Tensor:
        """Logits after one more token for each of some sequences: row ``rows[i]`` of the cache, position ``at[i]``.

        :param ids: the last tokens of each, as many as one knows of
        """
        x = (self.mix(self.tokens(ids).flatten(1)) + self.places(at))[:, None]
        for block, kept in zip(self.blocks, cache.kept, strict=True):
            x = block(x, kept, rows, at)
        return self.logits(self.norm(x[:, 0]))

    def prefill(self, ids: Tensor, lengths: Tensor, cache: Cache, rows: Tensor) -> Tensor:
        """Reads whole prompts into the cache; logits after the last token of each."""
        x = self._embed(ids)
        for block, kept in zip(self.blocks, cache.kept, strict=True):
            _, k, v = block.qkv(block.norm1(x)).view(*ids.shape, 3, block.heads, -1).permute(2, 0, 3, 1, 4)
            kept[0, rows, :, : ids.shape[1]], kept[1, rows, :, : ids.shape[1]] = k, v
            x = block(x)
        return self.logits(self.norm(x[torch.arange(len(ids)), lengths - 1]))

    def logprobs(self, ids: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the tokens at ``where`` (a mask like ``ids``), and all logits that they come from."""
        hidden = self(ids)[:, :-1][where[:, 1:]]
        logits = self.logits(hidden)
        taken = ids[:, 1:][where[:, 1:]]
        return logits.log_softmax(-1).gather(-1, taken[:, None]).squeeze(-1), logits


def load(path: Path) -> Policy:
    """The policy in a file, its shape with it."""
    saved = torch.load(path, weights_only=True)
    policy = Policy(Shape(**saved["shape"]))
    policy.load_state_dict(saved["weights"])
    return policy


def save(policy: Policy, path: Path) -> None:
    """Writes the policy so that whoever reads the file meanwhile sees the old one or the new one."""
    part = path.with_suffix(".part")
    torch.save({"shape": dataclasses.asdict(policy.shape), "weights": policy.state_dict()}, part)
    part.replace(path)
