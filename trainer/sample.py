"""What the learner learns from: token ids as they were sampled, never text that would have to be tokenised again.

Invariants: all per-token lists of a record have the length of `ids`; `mask` is 1 exactly at tokens that the policy
sampled; at every other position `logprobs` is 0.0 and `versions` is -1. A record always has a real reward: an
infrastructure failure never becomes a `Sample`.
"""

from __future__ import annotations

import msgspec


class Sample(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One finished episode of a policy."""

    id: str
    """Unique in the run: `<task>/<epoch>/<member>`."""
    group: str
    """Episodes of one task drawn together: the unit of group-relative baselines."""
    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    """Behaviour log-probabilities, at the sampler's temperature."""
    versions: list[int]
    """Version of the weights that sampled each token."""
    reward: float
    failure: str = "ok"
    turns: int = 0

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.mask), len(self.logprobs), len(self.versions)}
        if len(lengths) != 1:
            raise ValueError(f"sample {self.id}: per-token lists of different lengths {sorted(lengths)}")

    @property
    def oldest_version(self) -> int:
        """The oldest version that any trainable token came from; -1 without trainable tokens."""
        return min((v for v, m in zip(self.versions, self.mask, strict=True) if m), default=-1)


class Example(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One demonstration for supervised fine-tuning."""

    id: str
    ids: list[int]
    weights: list[float]
    """Loss weight of each token as a target: 0 for prompts, observations and masked mistakes."""

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.weights):
            raise ValueError(f"example {self.id}: {len(self.ids)} ids and {len(self.weights)} weights")
