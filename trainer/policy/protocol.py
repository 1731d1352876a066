"""The policy client: token ids in, token ids out.

Contract (one suite, `tests/trainer/policy/contract.py`, run against every implementation):
- `generate` returns exactly what was sampled: ids with their log-probabilities of `softmax(logits / temperature)`
  over the whole vocabulary (no top-p, no top-k), the stop token included, and for each token the version of the
  weights that produced it.
- Cancelling `generate` aborts the request where it runs; a cancelled request costs no further tokens.
- `update` is all or nothing: after it returns, every new token comes from the new weights; when it raises, none
  does, or the engine answers no more requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol, Self

import msgspec

from runtime.errors import RuntimeFault


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How to sample one continuation."""

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy; log-probabilities are then those at temperature 1."""
    stop_ids: tuple[int, ...] = ()
    seed: int | None = None
    """Makes the draw a function of (weights, ids, seed) where the engine can."""


class Continuation(msgspec.Struct, frozen=True, kw_only=True):
    """What was sampled."""

    ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: Literal["stop", "length", "abort"]
    queue_s: float = 0.0
    """Time spent waiting for the engine, on nobody's clock."""


class PolicyClient(Protocol):
    """One serving engine, or several behind a router. Use as an async context manager."""

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Continuation:
        """Continue `ids`.

        Raises: PolicyUnavailable when no engine answers within its deadline; RequestRefused and PromptTooLong;
        ValueError on an empty prompt.
        """
        ...

    async def score(self, ids: Sequence[int]) -> list[float]:
        """Log-probabilities of `ids[1:]` under the served weights, at temperature 1: the engine's side of a
        fingerprint.

        Raises: PolicyUnavailable.
        """
        ...

    async def unlike(self, weights: Path) -> list[str] | None:
        """Names of tensors that are served otherwise than a directory has them, by checksum; None where the engine
        cannot tell.

        Raises: PolicyUnavailable.
        """
        ...

    async def update(self, weights: Path, version: int) -> None:
        """Take over the weights of a Hugging Face directory.

        Raises: HandoverFailed when they are refused; PolicyUnavailable when the engine cannot be reached.
        """
        ...

    @property
    def version(self) -> int:
        """Version of the weights that new requests will see."""
        ...

    async def __aenter__(self) -> Self:
        """Raises: PolicyUnavailable when the engine cannot be reached; it may be entered again then, from any task."""
        ...

    async def __aexit__(self, *exc: object) -> None: ...


class PolicyUnavailable(RuntimeFault):
    """No engine could answer: infrastructure, the episode is retried and has no reward."""

    def __init__(self, endpoint: str, reason: str) -> None:
        self.endpoint, self.reason = endpoint, reason
        super().__init__(f"policy {endpoint}: {reason}")


class RequestRefused(PolicyUnavailable):
    """The engine answers and will not take this one request: no sign that the engine is ill."""


class PromptTooLong(RuntimeFault):
    """The prompt, or what was asked for after it, does not fit the engine's context."""

    def __init__(self, endpoint: str, reason: str) -> None:
        self.endpoint, self.reason = endpoint, reason
        super().__init__(f"policy {endpoint}: {reason}")


class HandoverFailed(RuntimeFault):
    """New weights did not arrive whole; the engine stays out of routing until they do."""

    def __init__(self, endpoint: str, version: int, reason: str) -> None:
        self.endpoint, self.version, self.reason = endpoint, version, reason
        super().__init__(f"policy {endpoint}: hand-over of version {version} failed: {reason}")
