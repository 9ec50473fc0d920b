"""The tasks: sums of one or two steps, a calculator that does one step at a time, and the reward."""

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
        """The result of the last step."""
        return self.steps[-1][1]


def draw_task(dice: random.Random) -> Task:
    """Draws a sum of two or three numbers of one digit."""
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
    """Returns the result of one step, two whole numbers and a sign; other expressions return ``error`` to the model."""
    found = re.fullmatch(r"\s*(\d{1,9})\s*([+-])\s*(\d{1,9})\s*", expression)
    if found is None:
        return "error"
    left, sign, right = found.groups()
    return str(int(left) + int(right) if sign == "+" else int(left) - int(right))


def judge(answer: str, right: str) -> float:
    """Returns 1 if the last number of the answer is right, else 0."""
    numbers = re.findall(r"-?\d+", answer)
    return 1.0 if numbers and numbers[-1] == right else 0.0
