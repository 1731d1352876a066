"""`termloom ctl`: see what a daemon does, and steer it.

Everything shown comes from the daemon at that moment; ages tell what has not moved.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from runtime.errors import UserError
from runtime.options import Common
from runtime.plain_text import printable

if TYPE_CHECKING:
    from runtime.daemon.client import DaemonClient

Action = Literal["ps", "explain", "cancel", "requeue", "resume", "pause", "unpause", "drain", "set", "dead-letters"]
_PLAIN_WIDTH = 160
_STEP = ("step", "reward", "held_out_pass_rate", "approx_kl", "staleness_mean", "behaviour_gap", "tokens_per_s")
"""Of the newest training step."""


async def ctl(action: Action, /, *arguments: str, common: Common = Common()) -> int:
    """See and steer a running daemon: ps, explain ID, cancel ID, requeue ID, pause, drain, set KEY=VALUE, dead-letters.

    ps               jobs with their stages, limits and sandboxes
    explain ID       where a job or an item (ITEM, JOB/ITEM) is, and what it waits for
    cancel ID        stop a job, or end one item as JOB/ITEM
    requeue ID       put a dead letter back, as JOB/ITEM
    resume JOB       go on with a job that stopped before its end
    pause [JOB]      take up nothing new; unpause undoes it
    drain [JOB]      finish what is in work and stop
    set KEY=VALUE    change a limit: limits.build=4
    dead-letters     what was given up, with the reason

    Args:
        action: What to do.
        arguments: What with.
    """
    settings = common.settings()
    if common.dry_run:
        return common.show(settings)
    from runtime.daemon.client import require_client

    client = require_client(settings.paths.state)
    told = await _ACTIONS[action](client, arguments)
    if common.json:
        sys.stdout.write(json.dumps(told, ensure_ascii=False) + "\n")
    else:
        _SHOWN.get(action, _show_done)(told)
    return 0


async def _ps(client: DaemonClient, arguments: Sequence[str]) -> Any:
    return await client.get("state")


async def _explain(client: DaemonClient, arguments: Sequence[str]) -> Any:
    return await client.get("explain", _one(arguments, "explain"))


async def _cancel(client: DaemonClient, arguments: Sequence[str]) -> Any:
    job, _, item = _one(arguments, "cancel").partition("/")
    path = ("jobs", job, "items", item, "cancel") if item else ("jobs", job, "cancel")
    return await client.post(*path)


async def _requeue(client: DaemonClient, arguments: Sequence[str]) -> Any:
    job, _, item = _one(arguments, "requeue").partition("/")
    if not item:
        raise UserError("requeue", f"'{job}' names no item", "Write JOB/ITEM, as dead-letters shows it")
    return await client.post("jobs", job, "items", item, "requeue")


def _on_jobs(verb: str) -> Callable[[DaemonClient, Sequence[str]], Awaitable[Any]]:
    async def act(client: DaemonClient, arguments: Sequence[str]) -> Any:
        """Of the jobs named, or of all in work."""
        state = await client.get("state")
        names = arguments or [job["job"]["job"] for job in state["jobs"] if job["job"]["state"] == "running"]
        return [await client.post("jobs", name, verb) for name in names]

    return act


async def _resume(client: DaemonClient, arguments: Sequence[str]) -> Any:
    return await client.post("jobs", _one(arguments, "resume"), "resume")


async def _drain(client: DaemonClient, arguments: Sequence[str]) -> Any:
    return await (_on_jobs("drain")(client, arguments) if arguments else client.post("drain"))


async def _set(client: DaemonClient, arguments: Sequence[str]) -> Any:
    if not arguments or not all("=" in argument for argument in arguments):
        raise UserError("set", "takes KEY=VALUE", "Write, say, termloom ctl set limits.build=4")
    return await client.post("set", body=dict(argument.split("=", 1) for argument in arguments))


async def _dead_letters(client: DaemonClient, arguments: Sequence[str]) -> Any:
    return await client.get("dead-letters")


def _one(arguments: Sequence[str], action: str) -> str:
    if len(arguments) != 1:
        raise UserError(action, "takes one ID", "See termloom ctl ps")
    return arguments[0]


_ACTIONS: dict[str, Callable[[DaemonClient, Sequence[str]], Awaitable[Any]]] = {
    "ps": _ps,
    "explain": _explain,
    "cancel": _cancel,
    "requeue": _requeue,
    "resume": _resume,
    "pause": _on_jobs("pause"),
    "unpause": _on_jobs("unpause"),
    "drain": _drain,
    "set": _set,
    "dead-letters": _dead_letters,
}


def _show_ps(state: Mapping[str, Any]) -> None:
    draining = ", draining" if state["draining"] else ""
    unknown, lag = state["sandboxes_unknown"], state["lag_p99_s"] * 1000
    sandboxes = "unknown" if unknown else len(state["sandboxes"])
    _line(f"{state['engine']} engine, {sandboxes} sandboxes, up {_age(state['up_s'])}, lag p99 {lag:.0f} ms{draining}")
    if unknown:
        _line(f"the engine does not say which sandboxes there are: {unknown}")
    rows = [_job_row(job) for job in state["jobs"]]
    _table(("job", "kind", "state", "since", "still", "in work", "ended", "out"), rows)
    for job in state["jobs"]:
        if job["job"]["state"] == "running":
            _show_stages(job)
    if unknown := state["queues_unknown"]:
        _line(f"the bus does not say what its queues hold: {unknown}")
    elif state["queues"]:
        _show_queues(state["queues"])
    _table(
        ("limit", "size", "holding", "waiting", "longest wait"),
        [
            (
                limit["limit"],
                str(limit["size"]),
                str(limit["holding"]),
                str(limit["waiting"]),
                _age(limit["longest_wait_s"]),
            )
            for limit in state["limits"]
        ],
    )


def _job_row(job: Mapping[str, Any]) -> tuple[str, ...]:
    record, stages = job["job"], job["stages"]
    state = "paused" if job["paused"] else record["state"]
    since = time.time() - (record["ended_at"] or record["started_at"] or record["created_at"])
    rejected = sum(sum(stage["rejected"].values()) for stage in stages)
    passed = stages[-1]["passed"] if stages else 0
    in_work = sum(stage["working"] for stage in stages)
    still = _age(job["still_s"]) if record["state"] == "running" else ""
    ended = f"{passed} passed, {rejected} rejected" if stages else ""
    return (record["job"], record["kind"], state, _age(since), still, str(in_work), ended, record["out"])


def _show_stages(job: Mapping[str, Any]) -> None:
    rows = [
        (
            stage["stage"],
            str(stage["ready"]),
            str(stage["delayed"]),
            str(stage["working"]),
            str(stage["passed"]),
            ", ".join(f"{count} {reason}" for reason, count in stage["rejected"].items()),
            f"{stage['per_min']:.0f}",
            _age(stage["oldest_s"]) if stage["ready"] or stage["delayed"] or stage["working"] else "",
        )
        for stage in job["stages"]
    ]
    _table(
        ("stage", "ready", "delayed", "working", "passed", "rejected", "per min", "oldest"),
        rows,
        title=job["job"]["job"],
    )

    if numbers := job["numbers"]:
        shown = [name for name in _STEP if name in numbers]
        _table(shown, [[f"{numbers[name]:.4g}" for name in shown]], title="newest step")
    if calls := job["calls"]:
        _line(
            f"model calls: {calls['answered']} answered ({calls['per_min']:.0f} a minute),"
            f" {calls['told_to_slow_down']} told to slow down, {calls['failed']} failed;"
            f" p50 {calls['p50_s']:.2f} s, p95 {calls['p95_s']:.2f} s"
        )


def _show_queues(queues: Sequence[Mapping[str, Any]]) -> None:
    columns = ("ready", "leased", "delayed", "dead")
    rows = [(queue["queue"], *(str(queue[column]) for column in columns), _age(queue["oldest_s"])) for queue in queues]
    _table(("queue between machines", *columns, "oldest"), rows)


def _show_explain(told: Mapping[str, Any]) -> None:
    for job in told["jobs"]:
        _table(("job", "kind", "state", "since", "still", "in work", "ended", "out"), [_job_row(job)])
        _show_stages(job)
        if job["job"]["detail"]:
            _line(job["job"]["detail"])
    for place in told["items"]:
        waits = "".join(f"; {wait}" for wait in place["waits_for"])
        _line(f"{place['job']}/{place['item']}: {place['place']} for {_age(place['for_s'])}{waits}")
        _line(f"  {place['attempts']} failed attempts")
        for note in place["journal"]:
            moment = time.strftime("%H:%M:%S", time.localtime(note["at"]))
            detail = note.get("detail", "").strip().rpartition("\n")[2]
            _line(f"  {moment} {note['kind']:8} {note.get('stage', '')} {detail}".rstrip())


def _show_set(limits: Sequence[Mapping[str, Any]]) -> None:
    for limit in limits:
        _line(f"limits.{limit['limit']} = {limit['size']}")


def _show_dead(letters: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        (f"{letter['job']}/{letter['item']}", letter["queue"], _age(time.time() - letter["at"]), letter["reason"])
        for letter in letters
    ]
    _table(("item", "queue", "since", "reason"), rows)


def _show_done(told: Any) -> None:
    for one in told if isinstance(told, list) else [told]:
        if "stages" in one:
            record = one["job"]
            _line(f"{record['job']}: {'paused' if one['paused'] else record['state']}")
        elif "item" in one:
            _line(f"{one['job']}/{one['item']}")
        else:
            _line("draining")


_SHOWN: dict[str, Callable[[Any], None]] = {
    "ps": _show_ps,
    "explain": _show_explain,
    "set": _show_set,
    "dead-letters": _show_dead,
}


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
    from rich.console import Console

    from runtime.progress import table

    Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH).print(table(columns, rows, title=title))


def _line(text: str) -> None:
    sys.stdout.write(printable(text) + "\n")
