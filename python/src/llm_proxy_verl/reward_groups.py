"""Rewards of samples without a reward: the mean of their group, which they therefore do not change.

verl requires a reward for each sample: if one is missing, it drops the rewards of the batch (0.7 to 0.9,
``_postprocess``) or calls its own reward function. A reward of 0 would count as a failure of the agent, and a failed
machine would change the advantages of the other samples of the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean


@dataclass
class _Group:
    #: The number of members that have neither reported a reward nor left.
    running: int = 0
    rewards: list[float] = field(default_factory=list)
    settled: asyncio.Event = field(default_factory=asyncio.Event)


class RewardGroups:
    """Groups of samples of one prompt (verl's ``uid``) that run in one event loop.

    verl starts all samples of a process before any of them ends, so a group has all of its samples, unless verl
    distributes them to several processes.
    """

    def __init__(self) -> None:
        self._groups: dict[Hashable, _Group] = {}

    @contextmanager
    def join(self, uid: Hashable) -> Iterator[Member]:
        """Adds a sample to the group ``uid``; it counts as running until it reports its reward or the block ends."""
        key = object() if uid is None else uid
        group = self._groups.setdefault(key, _Group())
        group.running += 1
        member = Member(group)
        try:
            yield member
        finally:
            member.report(None)
            if group.running == 0 and self._groups.get(key) is group:
                del self._groups[key]


class Member:
    """One sample of a group."""

    def __init__(self, group: _Group) -> None:
        self._group = group
        self._has_reported = False

    def report(self, reward: float | None) -> None:
        """Reports the reward of this sample, once; later reports are ignored."""
        if self._has_reported:
            return
        self._has_reported = True
        group = self._group
        group.running -= 1
        if reward is not None:
            group.rewards.append(reward)
        if group.running == 0:
            group.settled.set()

    async def reward_or_mean(self, reward: float | None) -> float:
        """Returns ``reward``, or the mean of the group's rewards once all of them are known.

        :returns: 0.0 if no sample of the group has a reward
        """
        self.report(reward)
        if reward is not None:
            return reward
        await self._group.settled.wait()
        return fmean(self._group.rewards) if self._group.rewards else 0.0
