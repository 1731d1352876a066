"""The hand-over of weights: versioned directories on one side, several serving engines on the other.

Invariants:
- `v00000012` appears by one rename, whole and on disk; its manifest holds the hash of every file and a fingerprint:
  what the learner's own weights say of a probe. No directory is removed while an engine serves from it.
- All or nothing for each engine: it is given checked weights, and gets requests again only when its log-probabilities
  of the probe are the learner's. One that fails stays out of routing until a later hand-over succeeds; the others go
  on.
- A request loses nothing when its engine dies: it is sent to another one, first to those of the pool's version. What
  comes back says for each token which version it came from.
- An engine that fails requests in a row is left alone for a while, then tried with one request (a circuit breaker).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import anyio
from anyio import to_thread
from torch import nn

from trainer.model import ids_logprobs, save_model
from trainer.policy.protocol import Continuation, HandoverFailed, PolicyClient, PolicyUnavailable, Sampling

MANIFEST = "manifest.json"
SCHEMA = 1
TOLERANCE = 1e-3
"""Nats: float32 engines are within 2e-5 of the learner, other weights are far outside."""
FAILURES = 3
"""Requests in a row that fail before an engine is left alone."""
COOL_S = 30.0


class WeightStore:
    """A directory of versioned weights. Methods block: call them in a worker thread."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def publish(self, model: nn.Module, version: int, *, probe: Sequence[int]) -> Path:
        """Write a version whole. Raises: OSError when the disk is full: nothing appears."""
        final = self.path(version)
        temporary = self.root / f".{final.name}.{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            save_model(model, temporary)
            manifest = {
                "schema": SCHEMA,
                "version": version,
                "probe": {"ids": list(probe), "logprobs": ids_logprobs(model, probe)},
                "files": {p.name: _digest(p) for p in sorted(temporary.iterdir())},
            }
            (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True))
            _digest(temporary / MANIFEST)
            shutil.rmtree(final, ignore_errors=True)
            temporary.rename(final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return final

    def path(self, version: int) -> Path:
        return self.root / f"v{version:08d}"

    def prune(self, in_use: Collection[int]) -> None:
        """Remove all versions but those in use."""
        keep = {self.path(version).name for version in in_use}
        for directory in self.root.glob("v*"):
            if directory.name not in keep:
                shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What the learner's weights say of a probe."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def read_weights(directory: Path) -> Fingerprint:
    """Check every file of a version against its manifest. Raises: ValueError when anything is missing or damaged."""
    try:
        manifest: dict[str, Any] = json.loads((directory / MANIFEST).read_bytes())
        bad = [name for name, digest in manifest["files"].items() if _digest(directory / name) != digest]
        fingerprint = Fingerprint(ids=tuple(manifest["probe"]["ids"]), logprobs=tuple(manifest["probe"]["logprobs"]))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{directory}: {error}") from error
    if bad:
        raise ValueError(f"{directory}: {bad[0]} is damaged")
    return fingerprint


@dataclass(eq=False)
class _Seat:
    """One engine as the router sees it."""

    name: str
    client: PolicyClient
    running: int = 0
    failures: int = 0
    resting_until: float = 0.0
    out: str = ""
    """Why its weights are not to be trusted; empty when they are."""


class Router:
    """Which engine takes the next request: a plain state machine, the clock is handed in."""

    def __init__(self, seats: Sequence[_Seat], clock: Callable[[], float]) -> None:
        self.seats, self._clock = tuple(seats), clock

    def choose(self, *, version: int, tried: Collection[_Seat]) -> _Seat | None:
        """The least loaded engine that may take a request, those of `version` first; None when there is none."""
        fit = [seat for seat in self.seats if seat not in tried and not seat.out and self._rested(seat)]
        return min(fit, key=lambda seat: (seat.client.version != version, seat.running), default=None)

    def failed(self, seat: _Seat) -> None:
        seat.failures += 1
        if seat.failures >= FAILURES:
            seat.resting_until = self._clock() + COOL_S

    def answered(self, seat: _Seat) -> None:
        seat.failures, seat.resting_until = 0, 0.0

    def _rested(self, seat: _Seat) -> bool:
        """Closed; or its rest is over and nobody tries it at the moment."""
        return seat.failures < FAILURES or (self._clock() >= seat.resting_until and not seat.running)

    @contextmanager
    def using(self, seat: _Seat) -> Iterator[None]:
        seat.running += 1
        try:
            yield
        finally:
            seat.running -= 1


class PolicyPool:
    """Several engines as one policy client. Use as an async context manager: it enters and leaves the clients.

    Args:
        clients: by name, in the order of preference.
        deadline_s: for one whole hand-over to all engines.
        tolerance: nats between engine and learner on a token of the probe; engines in bfloat16 need about 0.1.
    """

    def __init__(
        self,
        clients: dict[str, PolicyClient],
        *,
        deadline_s: float = 600.0,
        tolerance: float = TOLERANCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not clients:
            raise ValueError("a pool needs at least one engine")
        self.router = Router([_Seat(name, client) for name, client in clients.items()], clock)
        self._deadline_s, self._tolerance = deadline_s, tolerance
        self._version = 0
        self._stack = AsyncExitStack()

    @property
    def version(self) -> int:
        return self._version

    @property
    def in_use(self) -> set[int]:
        """Versions that an engine may serve, or be reloaded from."""
        return {self._version} | {seat.client.version for seat in self.router.seats}

    @property
    def out(self) -> dict[str, str]:
        """Engines that get no requests because of their weights, with the reason."""
        return {seat.name: seat.out for seat in self.router.seats if seat.out}

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Continuation:
        tried: set[_Seat] = set()
        reason = "no engine is in routing"
        while (seat := self.router.choose(version=self._version, tried=tried)) is not None:
            tried.add(seat)
            try:
                with self.router.using(seat):
                    got = await seat.client.generate(ids, sampling, request_id=request_id)
            except PolicyUnavailable as error:
                self.router.failed(seat)
                reason = str(error)
            else:
                self.router.answered(seat)
                return got
        raise PolicyUnavailable("pool", reason)

    async def score(self, ids: Sequence[int]) -> list[float]:
        seat = self.router.choose(version=self._version, tried=())
        if seat is None:
            raise PolicyUnavailable("pool", "no engine is in routing")
        return await seat.client.score(ids)

    async def update(self, weights: Path, version: int) -> None:
        """Hand a published version to every engine. Raises: HandoverFailed when it is damaged or no engine took it."""
        try:
            fingerprint = await to_thread.run_sync(read_weights, weights)
        except ValueError as error:
            raise HandoverFailed("pool", version, str(error)) from error
        async with anyio.create_task_group() as group:
            for seat in self.router.seats:
                group.start_soon(self._hand_over, seat, weights, version, fingerprint)
        if all(seat.out for seat in self.router.seats):
            raise HandoverFailed("pool", version, "; ".join(f"{name}: {why}" for name, why in self.out.items()))
        self._version = version

    async def _hand_over(self, seat: _Seat, weights: Path, version: int, fingerprint: Fingerprint) -> None:
        try:
            with anyio.fail_after(self._deadline_s):
                await seat.client.update(weights, version)
                got = await seat.client.score(fingerprint.ids)
        except (HandoverFailed, PolicyUnavailable) as error:
            seat.out = error.reason
        except TimeoutError:
            seat.out = f"the hand-over was not done within {self._deadline_s:g} s"
        else:
            seat.out = _difference(got, fingerprint.logprobs, self._tolerance)
            if not seat.out:
                self.router.answered(seat)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for seat in self.router.seats:
                await stack.enter_async_context(seat.client)
            self._stack = stack.pop_all()
        self._version = max(seat.client.version for seat in self.router.seats)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()


def _difference(got: Sequence[float], wanted: Sequence[float], tolerance: float) -> str:
    """Why an engine's log-probabilities are not the learner's; empty when they are."""
    if len(got) != len(wanted):
        return f"it scored {len(got)} of {len(wanted)} tokens of the probe"
    gap = max((abs(a - b) for a, b in zip(got, wanted, strict=True)), default=0.0)
    return (
        ""
        if gap <= tolerance
        else f"its log-probabilities of the probe are {gap:.3g} off the learner's (limit {tolerance:g})"
    )


def _digest(path: Path) -> str:
    """Hash of a file, which is on disk when this returns."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()
