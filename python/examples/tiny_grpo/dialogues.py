"""Dialogues of the pre-training: the chat template, and a tool that is used now and then.

The teacher makes mistakes on purpose: it guesses and gives up early, so that training can improve the policy. It splits
some texts into other tokens than the tokenizer does, as a sampling model does.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from .tasks import SYSTEM, TOOLS, Task, draw_task
from .text import encode, render, tokenizer

#: The probability that a message of the teacher is right.
CARE = 0.6
#: The probability that a text is split into other tokens than the tokenizer's, and then that of each token.
LOOSE_TEXTS, LOOSE_TOKENS = 0.3, 0.1
OPENINGS = ("", "", "Let me see.", "Let me see. ", "One step at a time.\n")


def draw_dialogue(
    dice: random.Random, draw: Callable[[random.Random], Task] = draw_task, *, careful: bool = False
) -> tuple[list[int], list[int]]:
    """Returns a conversation about a task as ids, and a mask that is 1 on the assistant's tokens.

    :param careful: the teacher makes no mistake, and splits texts as the tokenizer does
    """
    ids: list[int] = []
    mask: list[int] = []

    def add(text: str, bit: int, *, loosely: bool = False) -> None:
        part = split_loosely(encode(text), dice) if loosely else encode(text)
        ids.extend(part)
        mask.extend([bit] * len(part))

    task = draw(dice)
    add(render(_opening(task), TOOLS, open_turn=True), 0)
    for message, result in _teach(task, dice, 1.0 if careful else CARE):
        add(f"{message}<|im_end|>", 1, loosely=not careful and dice.random() < LOOSE_TEXTS)
        if result is not None:
            tool = [{"role": "tool", "content": result}]
            add("\n" + render(tool, None, open_turn=True), 0)
    return ids, mask


def split_loosely(ids: list[int], dice: random.Random) -> list[int]:
    """Returns other ids of the same text: some tokens are split in two where the vocabulary has both parts."""
    loose = []
    for token in ids:
        name = tokenizer.id_to_token(token)
        cut = dice.randrange(1, len(name)) if len(name) > 1 and dice.random() < LOOSE_TOKENS else 0
        parts = [tokenizer.token_to_id(name[:cut]), tokenizer.token_to_id(name[cut:])] if cut else [None]
        loose += [token] if None in parts else parts
    return loose


def _opening(task: Task) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.question}]


def _teach(task: Task, dice: random.Random, care: float) -> list[tuple[str, str | None]]:
    """Returns pairs of an assistant's message and its tool's result."""
    talk: list[tuple[str, str | None]] = []
    value = task.steps[0][0].split()[0]
    for step, result in task.steps:
        if dice.random() >= care:
            # A guess in the first turn; in the second, giving up half-way.
            guess = value if talk else str(dice.randint(0, 18))
            return [*talk, (f"The answer is {guess}.", None)]
        arguments = json.dumps({"expression": step}, separators=dice.choice([(", ", ": "), (",", ":")]))
        opening = dice.choice(OPENINGS)
        if opening and not opening.endswith("\n"):
            opening += "\n"
        call = f'{opening}<tool_call>\n{{"name": "calculator", "arguments": {arguments}}}\n</tool_call>'
        talk.append((call, result))
        value = result
    return [*talk, (f"The answer is {value}.", None)]
