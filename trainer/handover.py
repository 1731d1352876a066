"""The hand-over of weights: versioned directories on one side, several serving engines on the other.

Invariants:
- `v00000012` appears by one rename, whole and on disk; its manifest holds the hash of every file and a fingerprint:
  what the learner's own weights say of a probe. No directory is removed while an engine serves from it.
- All or nothing for each engine: it is given checked weights, and gets requests again only when its checksums and its
  log-probabilities of the probe are the learner's, and no newer weights were given meanwhile. One deadline holds for
  all engines together.
- An engine that is out (it was not there at the start, failed a hand-over, or requests in a row) is nursed: given the
  newest weights again and again until it passes. Neither requests nor hand-overs wait for it while another one is in
  routing. With none, they wait.
- A request loses nothing when its engine dies: it is sent to another one, first to those of the pool's version. What
  comes back says for each token which version it came from, and counts lost tries as waiting.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import anyio
import msgspec
from anyio import to_thread
from torch import nn

from runtime.errors import UserError
from trainer.checkpoint import synced_digest
from trainer.model import ids_logprobs, save_model
from trainer.policy.protocol import (
    Continuation,
    HandoverFailed,
    PolicyClient,
    PolicyUnavailable,
    RequestRefused,
    Sampling,
)
from trainer.routing import Router, Seat

MANIFEST = "manifest.json"
SCHEMA = 1
TOLERANCE = 1e-3
"""Nats: float32 engines are within 2e-5 of the learner, other weights are far outside."""
PAUSE_S = 5.0
"""Between two tries of an engine that is out."""
_ANY_IDS = (0, 1)


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
                "files": {p.name: synced_digest(p) for p in sorted(temporary.iterdir())},
            }
            (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True))
            synced_digest(temporary / MANIFEST)
            shutil.rmtree(final, ignore_errors=True)
            temporary.rename(final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return final

    def path(self, version: int) -> Path:
        return self.root / f"v{version:08d}"

    def prune(self, in_use: Collection[int]) -> None:
        """Remove all versions but those in use, and what a killed writer left."""
        keep = {self.path(version).name for version in in_use}
        for directory in self.root.iterdir():
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
        bad = [name for name, digest in manifest["files"].items() if synced_digest(directory / name) != digest]
        fingerprint = Fingerprint(ids=tuple(manifest["probe"]["ids"]), logprobs=tuple(manifest["probe"]["logprobs"]))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{directory}: {error}") from error
    if bad:
        raise ValueError(f"{directory}: {bad[0]} is damaged")
    return fingerprint


@dataclass(frozen=True, kw_only=True)
class Check:
    """What an engine serves, held against the learner's weights."""

    gaps: tuple[float, ...]
    """Nats between engine and learner on each token of the probe."""
    missing: int = 0
    """Tokens of the probe that it did not score."""
    unlike: tuple[str, ...] | None = None
    """Tensors whose checksum differs; None where the engine cannot tell."""

    def fault(self, tolerance: float) -> str:
        """Why these are not the learner's weights; empty when they are."""
        if self.missing:
            return f"it left {self.missing} tokens of the probe unscored"
        if self.unlike:
            return f"its checksums differ from the learner's: {', '.join(self.unlike[:3])}"
        gap = max(self.gaps, default=0.0)
        if gap <= tolerance:
            return ""
        return f"its log-probabilities of the probe are {gap:.3g} off the learner's (limit {tolerance:g})"


@dataclass(frozen=True, kw_only=True)
class _Version:
    """What engines are given: at a hand-over, and again when they come back."""

    directory: Path
    number: int
    fingerprint: Fingerprint


class PolicyPool:
    """Several engines as one policy client. Use as an async context manager: it enters and leaves the clients, and
    fails when none of them can be reached.

    Args:
        clients: by name, in the order of preference.
        deadline_s: for one whole hand-over to all engines.
        patience_s: how long a request waits while no engine is in routing.
        tolerance: nats between engine and learner on a token of the probe; engines in bfloat16 need about 0.1.
        sleep: the pause between tries of an engine that is out.
    """

    def __init__(
        self,
        clients: Mapping[str, PolicyClient],
        *,
        deadline_s: float = 600.0,
        patience_s: float = 600.0,
        tolerance: float = TOLERANCE,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        if not clients:
            raise ValueError("a pool needs at least one engine")
        self.router = Router([Seat(name, client) for name, client in clients.items()])
        self._deadline_s, self._patience_s, self._tolerance, self._sleep = deadline_s, patience_s, tolerance, sleep
        self._version = 0
        self._given: _Version | None = None
        self._checks: dict[str, Check] = {}
        self._refused: set[Seat] = set()
        """Engines that can be reached, and did not take what was given last."""
        self._giving: dict[Seat, int] = {}
        """Hand-overs under way, with their version."""
        self._awaited: set[Seat] = set()
        """Engines whose hand-over an update waits for: they are out, and not nursed."""
        self._trials: dict[Seat, anyio.CancelScope] = {}
        """Engines that are out and nursed, each with its try that is under way."""
        self._absent: set[Seat] = set()
        """Engines that could not be reached so far: their clients are not entered yet."""
        self._decided = anyio.Event()
        """Set when an engine is back in routing or was given weights in vain; a new one takes its place."""
        self._stack = AsyncExitStack()

    @property
    def version(self) -> int:
        return self._version

    @property
    def in_use(self) -> set[int]:
        """Versions that an engine may serve, or be reloaded from."""
        return {self._version, *self._giving.values()} | {seat.client.version for seat in self.router.seats}

    @property
    def out(self) -> dict[str, str]:
        """Engines that get no requests, with the reason."""
        return {seat.name: seat.out for seat in self.router.seats if seat.out}

    @property
    def checked(self) -> dict[str, float]:
        """What the last hand-over found of the engines in routing: the probe's gaps in nats, checksums that agree."""
        checks = [self._checks[s.name] for s in self.router.seats if not s.out and s.name in self._checks]
        gaps = [gap for check in checks for gap in check.gaps]
        told = [check.unlike is not None for check in checks]
        return {
            "engines_out": float(len(self.out)),
            "probe_gap_max": max(gaps, default=0.0),
            "probe_gap_mean": sum(gaps) / max(1, len(gaps)),
            "checksums_equal": float(bool(told) and all(told)),
        }

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Continuation:
        tried: set[Seat] = set()
        reason, asked = "no engine is in routing", time.monotonic()
        while True:
            if self.router.closed:
                await self._wait_for_an_engine()
                tried.clear()
            seat = self.router.choose(version=self._version, tried=tried)
            if seat is None:
                raise PolicyUnavailable("pool", reason)
            tried.add(seat)
            lost_s = time.monotonic() - asked
            try:
                with self.router.using(seat):
                    got = await seat.client.generate(ids, sampling, request_id=request_id)
            except RequestRefused as error:
                reason = str(error)
            except PolicyUnavailable as error:
                self._failed(seat, error.reason)
                reason = str(error)
            else:
                self.router.answered(seat)
                return msgspec.structs.replace(got, queue_s=got.queue_s + lost_s)

    async def score(self, ids: Sequence[int]) -> list[float]:
        return await self._any().client.score(ids)

    async def unlike(self, weights: Path) -> list[str] | None:
        return await self._any().client.unlike(weights)

    async def update(self, weights: Path, version: int) -> None:
        """Hand a published version to every engine in routing, all under one deadline; the others are nursed with it.

        While no engine has it, those that cannot be reached are waited for.

        Raises: HandoverFailed when it is damaged, or no engine took it.
        """
        try:
            fingerprint = await to_thread.run_sync(read_weights, weights)
        except ValueError as error:
            raise HandoverFailed("pool", version, str(error)) from error
        self._given = given = _Version(directory=weights, number=version, fingerprint=fingerprint)
        self._checks.clear()
        self._refused.clear()
        for trial in self._trials.values():
            trial.cancel()
        with anyio.move_on_after(self._deadline_s) as limit:
            await self._hand_over_to_routed(given)
        for seat in self.router.seats:
            self._nurse_if_out(seat)
        with anyio.CancelScope(deadline=limit.deadline):
            while self.router.closed and len(self._refused) < len(self.router.seats):
                await self._decided.wait()
        if self.router.closed:
            raise HandoverFailed("pool", version, "; ".join(f"{name}: {why}" for name, why in self.out.items()))
        self._version = version

    async def _hand_over_to_routed(self, given: _Version) -> None:
        self._awaited = {seat for seat in self.router.seats if not seat.out}
        late = f"the hand-over of version {given.number} was not done in {self._deadline_s:g} s"
        try:
            for seat in self._awaited:
                self.router.leave(seat, late)
            async with anyio.create_task_group() as group:
                for seat in self._awaited:
                    group.start_soon(self._hand_over, seat, given)
        finally:
            self._awaited = set()

    async def _hand_over(self, seat: Seat, given: _Version) -> None:
        """Give an engine a version; it is in routing when what it then serves is the learner's, and the newest."""
        self._refused.discard(seat)
        self._giving[seat] = given.number
        try:
            await seat.client.update(given.directory, given.number)
            check = await _inspect(seat.client, given)
            fault, reached = check.fault(self._tolerance), True
        except (HandoverFailed, PolicyUnavailable) as error:
            check, fault, reached = None, error.reason, isinstance(error, HandoverFailed)
        finally:
            del self._giving[seat]
        if given is not self._given:
            return
        if check is not None:
            self._checks[seat.name] = check
        if not fault:
            self._enter(seat)
            return
        self.router.leave(seat, fault)
        if reached:
            self._refused.add(seat)
        self._decide()

    def _enter(self, seat: Seat) -> None:
        self.router.enter(seat)
        self._decide()

    def _decide(self) -> None:
        self._decided.set()
        self._decided = anyio.Event()

    def _failed(self, seat: Seat, reason: str) -> None:
        self.router.failed(seat, reason)
        self._nurse_if_out(seat)

    def _nurse_if_out(self, seat: Seat) -> None:
        if seat.out and seat not in self._awaited and seat not in self._trials:
            self._trials[seat] = anyio.CancelScope()
            self._group.start_soon(self._nurse, seat)

    async def _nurse(self, seat: Seat) -> None:
        """Try an engine again and again until it serves the learner's weights."""
        while seat.out:
            await self._sleep(PAUSE_S)
            with anyio.move_on_after(self._deadline_s) as self._trials[seat]:
                await self._readmit(seat)
        del self._trials[seat]

    async def _readmit(self, seat: Seat) -> None:
        try:
            if seat in self._absent:
                await self._clients.enter_async_context(seat.client)
                self._absent.discard(seat)
            if self._given is None:  # nothing was ever handed over: it serves what it was started with
                await seat.client.score(_ANY_IDS)
        except PolicyUnavailable as error:
            self.router.leave(seat, error.reason)
            return
        except UserError as error:  # it came late and is unfit: the others carry the run
            self.router.leave(seat, str(error))
            return
        if self._given is not None:
            await self._hand_over(seat, self._given)
        elif seat.client.version < self._version:
            self.router.leave(seat, f"it serves version {seat.client.version}, not {self._version}")
        else:
            self._enter(seat)

    async def _wait_for_an_engine(self) -> None:
        """Raises: PolicyUnavailable when none came back in time."""
        with anyio.move_on_after(self._patience_s):
            while self.router.closed:
                await self._decided.wait()
            return
        raise PolicyUnavailable("pool", "; ".join(f"{name}: {why}" for name, why in self.out.items()))

    def _any(self) -> Seat:
        seat = self.router.choose(version=self._version)
        if seat is None:
            raise PolicyUnavailable("pool", "no engine is in routing")
        return seat

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._clients = await stack.enter_async_context(AsyncExitStack())
            await self._enter_clients()
            self._group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(self._group.cancel_scope.cancel)
            self._stack = stack.pop_all()
        self._version = max(seat.client.version for seat in self.router.seats if not seat.out)
        for seat in self.router.seats:
            self._nurse_if_out(seat)
        return self

    async def _enter_clients(self) -> None:
        """Engines that cannot be reached begin out. Raises: PolicyUnavailable when that is all of them."""
        errors = []
        for seat in self.router.seats:
            try:
                await self._clients.enter_async_context(seat.client)
            except PolicyUnavailable as error:
                self._absent.add(seat)
                self.router.leave(seat, error.reason)
                errors.append(error)
        if self.router.closed:
            raise errors[0]

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()


async def _inspect(client: PolicyClient, given: _Version) -> Check:
    """Raises: PolicyUnavailable."""
    wanted = given.fingerprint.logprobs
    got = await client.score(given.fingerprint.ids)
    unlike = await client.unlike(given.directory)
    return Check(
        gaps=tuple(abs(a - b) for a, b in zip(got, wanted, strict=False)),
        missing=abs(len(wanted) - len(got)),
        unlike=None if unlike is None else tuple(unlike),
    )
