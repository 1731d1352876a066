"""Generation against an endpoint that misbehaves in every way it can, killed in the middle and resumed.

The endpoint is a scripted server with a played model (`generators.chat.played`) behind `runtime.chat.unruly`; the
client is the command line in a process of its own, with real sandboxes. What is counted:

- every admitted candidate ends in exactly one terminal record, a rejected one with its reason;
- what the server was paid for and what the ledger holds are held against each other, call by call;
- nothing that the ledger held when the process was killed is asked again. What can be paid twice is what was in flight
  in that moment: answered by the server, never recorded by the client.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import msgspec

from generators.chat.played import PlayedModel
from generators.messages import Published
from generators.outdir import RunPlace, place_of
from generators.stages import STAGES
from runtime.chat.script import LogNormal, Said
from runtime.chat.scripted import ScriptedServer, Seen
from runtime.chat.unruly import Unruly
from runtime.routes import Routes
from runtime.stage import Rejected
from runtime.store import Store

_LEDGER_NAME_CHARS = 24
"""The part of a call's key that the server is told."""
_PROGRAM = "from runtime.cli import main; main()"
_EPISODES = ("solve", "cheat")
SETS = (
    "generate.author=chat",
    "generate.candidates_per_task=1",
    "generate.attempts=4",
    "generate.attempts_least=2",
    "generate.certificate_repeats=2",
    "chat.model=played",
    "chat.attempt_timeout_s=10",
)


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted."""

    admitted: int
    ended: int
    """Candidates with a terminal record; each has one, by the store's own index."""
    published: int
    screened: int
    """Certified, and too much like another one."""
    rejected: dict[str, int]
    """By `stage: reason`."""
    requests: int
    misbehaved: dict[str, int]
    paid: int
    """Calls that the server answered, each counted once."""
    ledger: int
    in_flight_at_kill: int
    recorded_at_kill: int
    asked_again: int
    """Calls that the ledger held at the kill and that reached the server after it: must be 0."""
    paid_twice: tuple[str, ...]
    lost_at_kill: tuple[str, ...]
    """Answered before the kill, not in the ledger then: the only calls that may be paid twice because of it."""
    unrecorded: int
    """Answered, and never in the ledger: attempts that were given up while the answer travelled."""
    redrawn: int
    """Turns of an episode that were asked with another prompt after the kill: a command printed something else."""
    seconds: float


class _Alarm:
    """A script that tells when a call arrives."""

    def __init__(self, script: Unruly, at: int) -> None:
        self._script, self._at = script, at
        self.rung = anyio.Event()

    def __call__(self, request: dict[str, Any], number: int) -> Said:
        if number == self._at:
            self.rung.set()
        return self._script(request, number)


async def prove(
    folder: Path, *, tasks: int, kill_at: int, share: float = 0.2, seed: int = 0, bad: float = 0.05
) -> Proof:
    """Run, kill when the server has seen `kill_at` calls, resume to the end, count."""
    began = time.perf_counter()
    unruly = Unruly(PlayedModel(bad=bad), share=share, seed=seed)
    alarm = _Alarm(unruly, kill_at)
    out, state = folder / "out", folder / "state"
    async with ScriptedServer(alarm, latency=LogNormal(median_s=0.1, seed=seed)) as server:
        sets = [*SETS, f"generate.count={tasks}", f"paths.state={state}", f"chat.base_url={server.base_url}"]
        command = [sys.executable, "-c", _PROGRAM, "generate", "--here", "--out", str(out), "--sandbox", "namespace"]
        command += [part for one in sets for part in ("--set", one)]
        in_flight = await _kill(command, folder / "killed.log", alarm, server)
        before, held = len(server.requests), _ledger(place_of(out, state))
        with (folder / "resumed.log").open("wb") as log:
            code = (await anyio.run_process([*command, "--resume"], stdout=log, stderr=log, check=False)).returncode
        assert code in (0, 1), f"the resumed run ended with {code}, see {folder}/resumed.log"
        ends = await _ends(place_of(out, state))
        return Proof(
            **ends,
            **_account(server.requests, server.paid, before=before, held=held, ledger=_ledger(place_of(out, state))),
            misbehaved=dict(sorted(unruly.counts.items())),
            in_flight_at_kill=in_flight,
            seconds=time.perf_counter() - began,
        )


async def _kill(command: Sequence[str], log: Path, alarm: _Alarm, server: ScriptedServer) -> int:
    """Start the command and kill it at the alarm; how many calls were in flight then."""
    with log.open("wb") as output:
        async with await anyio.open_process(command, stdout=output, stderr=output) as process:
            async with anyio.create_task_group() as group:

                async def give_up() -> None:
                    code = await process.wait()
                    assert alarm.rung.is_set(), f"it ended with {code} before it could be killed, see {log}"

                group.start_soon(give_up)
                await alarm.rung.wait()
                in_flight = server.in_flight
                os.kill(process.pid, signal.SIGKILL)
            assert process.returncode == -signal.SIGKILL, f"it ended with {process.returncode}, see {log}"
    return in_flight


def _ledger(place: RunPlace) -> set[str]:
    with closing(sqlite3.connect(place.store)) as connection:
        return {key[:_LEDGER_NAME_CHARS] for (key,) in connection.execute("SELECT key FROM calls")}


async def _ends(place: RunPlace) -> dict[str, Any]:
    routes = Routes(STAGES)
    async with Store(place.store) as store:
        items = {item for item in await store.items(place.run_id) if not item.endswith("-publish")}
        ends = [routes.decode(entry.body) for entry in await store.terminal(place.run_id)]
    candidates = [message for message in ends if message.item in items]
    assert len(candidates) == len({message.item for message in candidates}), "an item ended twice"
    published = sum(isinstance(message, Published) for message in ends)
    rejected = Counter(f"{m.stage}: {m.reason.partition(':')[0]}" for m in candidates if isinstance(m, Rejected))
    return {
        "admitted": len(items),
        "ended": len(candidates),
        "published": published,
        "screened": len(candidates) - rejected.total() - published,
        "rejected": dict(sorted(rejected.items())),
    }


def _account(
    requests: Sequence[Seen], paid: Sequence[Seen], *, before: int, held: set[str], ledger: set[str]
) -> dict[str, Any]:
    """The server's book against the ledger; `before` is the number of the last request before the kill."""
    times = Counter(seen.call for seen in paid)
    asked_after = {seen.call for seen in requests[before:]}
    draws: dict[str, set[str]] = {}
    for seen in paid:
        if seen.purpose in _EPISODES:
            draws.setdefault(seen.draw, set()).add(seen.call)
    return {
        "requests": len(requests),
        "paid": len(times),
        "ledger": len(ledger),
        "recorded_at_kill": len(held),
        "asked_again": len(asked_after & held),
        "paid_twice": tuple(sorted(call for call, count in times.items() if count > 1)),
        "lost_at_kill": tuple(sorted({seen.call for seen in paid if seen.number <= before} - held)),
        "unrecorded": len(times.keys() - ledger),
        "redrawn": sum(len(calls) - 1 for calls in draws.values()),
    }


async def measure(folder: Path, *, tasks: int, share: float, seed: int) -> None:
    """Print the count."""
    await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
    proof = await prove(folder, tasks=tasks, kill_at=tasks * 12, share=share, seed=seed)
    for name, value in msgspec.structs.asdict(proof).items():
        shown = f"{len(value)}" if isinstance(value, tuple) else value
        print(f"{name.replace('_', ' '):20} {shown}")
    spare = set(proof.paid_twice) - set(proof.lost_at_kill)
    print(f"{'paid twice otherwise':20} {len(spare)}")
