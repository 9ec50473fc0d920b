"""The output of a run: a line for each step, and a plot at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

Step = dict[str, float]

COLUMNS = (
    ("step", "{step:.0f}", 4),
    ("reward", "{reward:.3f}", 6),
    ("|ratio-1|", "{ratio_error_fresh:.1e}", 9),
    ("clipped", "{clip_share:.1%}", 7),
    ("rows", "{rows:.0f}", 5),
    ("exact", "{exact_rows:.0%}", 5),
    ("straddling", "{straddling_rows:.0f}", 10),
    ("their ratio", "{ratio_mean_straddling:.3f}", 11),
    ("tokens/s", "{tokens_per_second:.0f}", 8),
)


def header() -> str:
    """Returns the names of the columns."""
    return "  ".join(f"{name:>{width}}" for name, _, width in COLUMNS)


def line(step: Step) -> str:
    """Returns the line of a step, with a dash for a ratio without rows."""
    shown = []
    for _, form, width in COLUMNS:
        kind = "straddling" if "straddling" in form else "fresh" if "fresh" in form else None
        is_there = kind is None or step[f"{kind}_rows"] or "rows" in form
        shown.append(f"{form.format(**step) if is_there else '-':>{width}}")
    return "  ".join(shown)


def smoothed(values: Sequence[float], over: int = 3) -> list[float]:
    """Returns the mean of each value and the ``over - 1`` values before it."""
    return [
        sum(values[max(0, i - over + 1) : i + 1]) / (i + 1 - max(0, i - over + 1)) for i in range(len(values))
    ]


def plot_arms(arms: dict[str, list[list[Step]]], path: Path) -> None:
    """Plots reward, ratio and clipped share over steps: the mean of an arm's seeds, and their range."""
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.5), layout="constrained")
    panels = (
        ("reward", "mean reward (over 3 steps)"),
        ("ratio_error_fresh", "largest |ratio - 1| before the first update"),
        ("clip_share", "share of tokens clipped"),
    )
    for axis, (name, title) in zip(axes, panels, strict=True):
        for label, runs in arms.items():
            values = [smoothed([step[name] for step in steps]) for steps in runs]
            columns = list(zip(*values, strict=True))
            middle = axis.plot([sum(column) / len(column) for column in columns], label=label, linewidth=1.6)
            bounds = [min(column) for column in columns], [max(column) for column in columns]
            axis.fill_between(
                range(len(columns)), *bounds, color=middle[0].get_color(), alpha=0.1, linewidth=0
            )
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
    axes[0].set_ylim(0, 1)
    axes[1].set_yscale("log")
    axes[2].set_ylim(bottom=0)
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def plot(runs: dict[str, list[Step]], path: Path) -> None:
    """Plots four figures over steps, with a line for each run."""
    panels = (
        ("reward", "mean reward, and its mean over 3 steps"),
        ("ratio_error_fresh", "largest |ratio - 1| before the first update"),
        ("clip_share", "share of tokens clipped"),
        ("tokens_per_second", "tokens sampled per second"),
    )
    figure, axes = plt.subplots(2, 2, figsize=(10, 6), sharex=True, layout="constrained")
    exact = min(step["exact_rows"] for steps in runs.values() for step in steps)
    figure.suptitle(f"exact rows: {exact:.0%}", fontsize=10)
    for axis, (name, title) in zip(axes.flat, panels, strict=True):
        for label, steps in runs.items():
            chosen = [step for step in steps if name != "ratio_error_fresh" or step["fresh_rows"]]
            places, values = [step["step"] for step in chosen], [step[name] for step in chosen]
            drawn = axis.plot(
                places, smoothed(values) if name == "reward" else values, label=label, linewidth=1.6
            )
            if name == "reward":
                axis.plot(places, values, color=drawn[0].get_color(), linewidth=0.8, alpha=0.3)
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylim(0, 1)
    axes[0, 0].legend(fontsize=8)
    axes[0, 1].set_yscale("log")
    axes[0, 1].set_ylim(1e-8, 1)
    axes[0, 1].axhline(1e-4, color="grey", linestyle=":", linewidth=1)
    for axis in axes[1]:
        axis.set_ylim(bottom=0)
        axis.set_xlabel("step")
    figure.savefig(path, dpi=110)
    plt.close(figure)
