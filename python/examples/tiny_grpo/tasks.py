"""The tasks: sums of one or two steps, the calculator that does one step at a time, and who is right."""

from __future__ import annotations

import dataclasses
import random
import re

SYSTEM = "Use the calculator."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Adds or subtracts two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string", "description": "For example 3 + 4"}},
                "required": ["expression"],
            },
        },
    }
]


@dataclasses.dataclass(frozen=True)
class Task:
    """A question and its steps: ``[("3 + 4", "7"), ("7 - 5", "2")]``."""

    question: str
    steps: list[tuple[str, str]]

    @property
    def answer(self) -> str:
        """What the last step gives."""
        return self.steps[-1][1]


def draw_task(dice: random.Random) -> Task:
    """A sum of two numbers of one digit, or of three."""
    value = dice.randint(1, 9)
    text, steps = str(value), []
    for _ in range(dice.choice((1, 2))):
        sign, other = dice.choice("+-"), dice.randint(1, 9)
        if sign == "-" and other > value:
            sign = "+"
        step = f"{value} {sign} {other}"
        steps.append((step, calculate(step)))
        text, value = f"{text} {sign} {other}", int(steps[-1][1])
    return Task(f"What is {text}?", steps)


def calculate(expression: str) -> str:
    """One step: two whole numbers and a sign. What it cannot read is an error that the model gets to see."""
    found = re.fullmatch(r"\s*(\d{1,9})\s*([+-])\s*(\d{1,9})\s*", expression)
    if found is None:
        return "error"
    left, sign, right = found.groups()
    return str(int(left) + int(right) if sign == "+" else int(left) - int(right))


def judge(answer: str, right: str) -> float:
    """1 if the last number of the answer is the right one, else 0."""
    numbers = re.findall(r"-?\d+", answer)
    return 1.0 if numbers and numbers[-1] == right else 0.0
