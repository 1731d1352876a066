"""The buffer between rollouts and learner: who may start, what may be trained on.

A plain state machine: it decides, an async shell acts. Invariants:
- Admission is paced to staleness: what runs, waits and is being trained on never exceeds `(1 + bound)` batches
  (rounded up to whole groups), so that what is started now is young enough when its turn comes. At bound 0 nothing
  starts until the new weights are there.
- Staleness is checked for each sample when it is *taken*, whatever time it spent queueing: `version -
  oldest_version <= bound`. An older one is dropped and counted, and makes room for one more admission. It is never
  put back.
- admitted = running + ready + trained + dropped + failed, always.
- A batch is a function of the groups in it: groups are taken whole, oldest admission first, members in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainer.sample import Sample


@dataclass
class _Group:
    admitted: int
    size: int
    samples: dict[str, Sample] = field(default_factory=dict)
    departed: int = 0
    """Members that failed or were dropped."""

    @property
    def complete(self) -> bool:
        return len(self.samples) + self.departed == self.size


class Buffer:
    """Groups of episodes on their way to the learner.

    Args:
        batch: episodes per update, a multiple of `group_size`.
        group_size: episodes drawn together for one task.
        bound: how many versions older than the learner a sample may be when it is taken.
    """

    def __init__(self, *, batch: int, group_size: int, bound: int) -> None:
        if batch % group_size or bound < 0:
            raise ValueError(f"batch {batch} must be a multiple of group_size {group_size}, bound {bound} at least 0")
        self.batch, self.group_size, self.bound = batch, group_size, bound
        self.version = 0
        self.counts: Counter[str] = Counter()
        self._groups: dict[str, _Group] = {}
        self._training = False

    def go_on(self, counts: Mapping[str, int]) -> None:
        """Count on from an earlier start of the run. What was in work when that one ended comes again."""
        self.counts.update(counts)
        self.counts["admitted"] = self.counts["trained"] + self.counts["dropped"] + self.counts["failed"]

    def room(self) -> int:
        """How many more groups may be admitted now."""
        ahead = self.running + self.ready + (self.batch if self._training else 0)
        return max(0, -(-((1 + self.bound) * self.batch - ahead) // self.group_size))

    def admit(self, group: str) -> None:
        """A group of `group_size` episodes starts. Raises: ValueError when there is no room, or it is already here."""
        if not self.room() or group in self._groups:
            raise ValueError(f"group {group} cannot be admitted")
        self._groups[group] = _Group(admitted=self.counts["groups"], size=self.group_size)
        self.counts["groups"] += 1
        self.counts["admitted"] += self.group_size

    def finish(self, sample: Sample) -> None:
        """An episode ended with a real reward. A second delivery of the same sample changes nothing."""
        group = self._groups.get(sample.group)
        if group is not None and sample.id not in group.samples:
            group.samples[sample.id] = sample

    def fail(self, group: str, reason: str) -> None:
        """An episode ended without a reward (infrastructure).

        It is left out of everything and makes room for another.
        """
        self._groups[group].departed += 1
        self.counts["failed"] += 1
        self.counts[f"failed/{reason}"] += 1

    def take(self) -> list[Sample] | None:
        """The next batch for the learner at its current version, or None while there are not enough samples.

        Only complete groups are taken, so a batch can hold slightly more than `batch` episodes only when failures have
        left earlier groups short.
        """
        self._drop_stale()
        chosen: list[str] = []
        count = 0
        for name, group in sorted(self._groups.items(), key=lambda item: item[1].admitted):
            if not group.complete:
                if self.bound == 0:
                    break
                continue
            chosen.append(name)
            count += len(group.samples)
            if count >= self.batch:
                break
        if count < self.batch:
            return None
        samples = [s for name in chosen for _, s in sorted(self._groups.pop(name).samples.items())]
        self.counts["trained"] += len(samples)
        self._training = True
        return samples

    def advance(self, version: int) -> None:
        """The learner has published new weights. Raises: ValueError when the version does not grow."""
        if version <= self.version:
            raise ValueError(f"version {version} after {self.version}")
        self.version, self._training = version, False

    def ages(self, samples: Sequence[Sample]) -> list[int]:
        """Staleness of each sample at the current version."""
        return [self.version - s.oldest_version for s in samples]

    @property
    def running(self) -> int:
        """Episodes that have neither ended nor failed."""
        return sum(g.size - len(g.samples) - g.departed for g in self._groups.values())

    @property
    def ready(self) -> int:
        """Finished episodes that wait to be taken."""
        return sum(len(g.samples) for g in self._groups.values())

    def check(self) -> None:
        """Raises: AssertionError when the accounts do not balance."""
        c = self.counts
        assert c["admitted"] == self.running + self.ready + c["trained"] + c["dropped"] + c["failed"], (
            dict(c),
            self.running,
        )

    def _drop_stale(self) -> None:
        for name, group in list(self._groups.items()):
            stale = [s for s in group.samples.values() if self.version - s.oldest_version > self.bound]
            for sample in stale:
                del group.samples[sample.id]
                group.departed += 1
            self.counts["dropped"] += len(stale)
            if group.complete and not group.samples:
                del self._groups[name]
