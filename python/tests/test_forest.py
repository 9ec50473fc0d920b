"""Packed forests: unpacking restores the rows, and each token attends to the same tokens as in its row."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from helpers.proxy import start_proxy
from llm_proxy import AsyncClient, Client, Row, TokenForest
from test_client import converse


def create_forest(seed: int) -> tuple[TokenForest, list[Row]]:
    """Creates random nodes, with a row for each leaf and for some inner nodes. One row at most trains a completion."""
    draw = random.Random(seed)
    nodes: list[dict[str, Any]] = []
    for index in range(draw.randint(1, 14)):
        node: dict[str, Any] = {"parent": draw.choice([None, *range(index)]) if index else None}
        node["ids"] = [draw.randint(0, 5) for _ in range(draw.choice([0, 1, 1, 2, 3, 9]))]
        if draw.random() < 0.6:
            node.update(turn_id=f"t{index}", logprobs=[-draw.random() for _ in node["ids"]])
        nodes.append(node)
    parents = {node["parent"] for node in nodes}
    leaves = [index for index in range(len(nodes)) if index not in parents or draw.random() < 0.2]
    trained: set[str] = set()
    rows, full_rows = [], []
    for leaf in draw.sample(leaves, len(leaves)):
        row, lists = create_row(nodes, leaf, trained, draw)
        rows.append(row)
        rest = {
            name: value
            for name, value in row.items()
            if name not in ("leaf", "prompt_tokens", "response_tokens")
        }
        full_rows.append({**rest, **lists})
    rows.append({**rows[0], "leaf": None, "prompt_tokens": 0, "response_tokens": 0, "turns": []})
    sessions = [parse_one_row(row) for row in full_rows]
    return TokenForest(nodes, rows, []), sessions


def create_row(
    nodes: list[dict[str, Any]], leaf: int, trained: set[str], draw: random.Random
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Creates a row as in the forest, and its lists as in the trajectories."""
    path: list[int] = []
    at: int | None = leaf
    while at is not None:
        path.insert(0, at)
        at = nodes[at]["parent"]
    ids = [token for node in path for token in nodes[node]["ids"]]
    prompt = len(nodes[path[0]]["ids"]) if "turn_id" not in nodes[path[0]] else 0
    turns, offset = [], 0
    mask, logprobs = [0] * (len(ids) - prompt), [0.0] * (len(ids) - prompt)
    for node in path:
        length = len(nodes[node]["ids"])
        if (turn_id := nodes[node].get("turn_id")) is not None:
            span = slice(offset - prompt, offset - prompt + length)
            trains = turn_id not in trained and draw.random() < 0.8
            if trains:
                trained.add(turn_id)
                mask[span] = [1] * length
                logprobs[span] = nodes[node]["logprobs"]
            turns.append({"turn_id": turn_id, "start": span.start, "end": span.stop, "trained": trains})
        offset += length
    row = {
        **dict.fromkeys(("finish_reason", "weight_version_min", "weight_version_max")),
        "policy": None,
        "labels": [],
        "num_turns": len(turns),
        "unversioned_turns": 0,
        "reward_components": {},
        "inexact_reason": None,
        "prompt_truncated": False,
        "exact": True,
        "finished": True,
        "truncated": False,
        "line": "main",
        "session_id": f"s{leaf}",
        "reward": draw.choice([None, 0.5, -1.0]),
        "leaf": leaf,
        "turns": [{**turn, "index": 0, "reward": None, **TURN} for turn in turns],
        "prompt_tokens": prompt,
        "response_tokens": len(ids) - prompt,
    }
    lists = {"prompt_ids": ids[:prompt], "response_ids": ids[prompt:]}
    return row, {**lists, "response_mask": mask, "response_logprobs": logprobs}


TURN = {
    **dict.fromkeys(("policy", "finish_reason", "weight_version_start", "weight_version_end")),
    "line": "main",
    "labels": [],
}


def parse_one_row(row: dict[str, Any]) -> Row:
    from llm_proxy.rows import parse_rows

    session_id = row.pop("session_id")
    return parse_rows({"session_id": session_id, "trajectories": [row]})[0]


def sorted_rows(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.session_id, row.prompt_ids, row.response_ids))


@pytest.mark.parametrize("seed", range(200))
def test_unpacking_restores_the_rows_from_one_sequence_or_several(seed: int) -> None:
    forest, rows = create_forest(seed)
    (packed,) = forest.pack()
    assert sorted_rows(packed.unpack()) == sorted_rows(rows)
    longest = max(len(row.prompt_ids) + len(row.response_ids) for row in rows)
    packs = forest.pack(longest + seed % 7)
    assert all(len(pack.ids) <= longest + seed % 7 for pack in packs)
    assert sorted_rows([row for pack in packs for row in pack.unpack()]) == sorted_rows(rows)
    trained = sum(sum(row.response_mask) for row in rows)
    assert packed.loss_mask.sum() == sum(pack.loss_mask.sum() for pack in packs) == trained
    if longest > 0:
        with pytest.raises(ValueError, match="more than"):
            forest.pack(longest - 1)


@pytest.mark.parametrize("seed", range(200))
def test_a_token_attends_to_the_same_tokens_as_in_its_row(seed: int) -> None:
    forest, _ = create_forest(seed)
    (packed,) = forest.pack()
    seen = packed.attention_mask()
    used = sorted({node for row in forest.rows if row["leaf"] is not None for node in forest._get_path(row)})
    assert len(packed.ids) == sum(len(forest.nodes[node]["ids"]) for node in used), "each token once"
    covered = np.zeros(len(packed.ids), bool)
    for row, indices in zip(packed.rows, packed.tokens, strict=True):
        assert packed.positions[indices].tolist() == list(range(len(indices)))
        assert packed.before[indices].tolist() == [-1, *indices[:-1]][: len(indices)]
        for depth, token in enumerate(indices):
            assert np.flatnonzero(seen[token]).tolist() == indices[: depth + 1].tolist()
        covered[indices] = True
        numbers = packed.of_rows(packed.ids)[packed.rows.index(row)]
        assert numbers.tolist() == packed.ids[indices[row["prompt_tokens"] :]].tolist()
    assert covered.all()
    assert np.isnan(packed.rewards[~packed.loss_mask]).all()
    assert (packed.logprobs[~packed.loss_mask] == 0).all()


async def test_a_forest_of_the_real_proxy_has_the_rows_of_its_group(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with start_proxy(tmp_path_factory.mktemp("forest"), mode="local") as proxy, Client(proxy.url) as client:
        rows = []
        for sample in range(3):
            with client.create(metadata={"task": "7"}) as session:
                converse(session.base_url, "any", 3)
                # Another conversation that starts like the first.
                converse(session.base_url, "any", 1)
                session.reward(sample)
            rows += session.rows()
        forest = client.forest(metadata={"task": "7"})
        (packed,) = forest.pack()
        assert sorted_rows(packed.unpack()) == sorted_rows(rows)
        assert len(packed.ids) < sum(len(row.prompt_ids) + len(row.response_ids) for row in rows)
        assert set(packed.rewards[packed.loss_mask]) == {0.0, 1.0, 2.0}
        assert [len(one.rows) for one in (session.forest(), forest)] == [len(session.rows()), len(rows)]
        async with AsyncClient(proxy.url) as other:
            assert (await other.forest(metadata={"task": "7"})).rows == forest.rows
            assert (await other.session(session.id).forest()).rows == session.forest().rows
