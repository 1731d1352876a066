"""Faults of the runtime.

RuntimeFault
├── UserError            bad input: names the file or option, the key, the value and the remedy; exit code 2
├── TaskInvalid          a task directory that cannot be read: all problems at once
├── BusClosed            publish or consume after the bus was closed: a broken invariant
├── BusSilent            the bus's server does not say what a queue holds: all else is shown without it
├── StoreError           the store cannot be used (locked, newer schema, disk full): ends the run
├── WorkRefused          another process cannot do a run's work before its user mends something: ends the run
├── WorkTakenBack        the run drains, and no other process had taken its work up: the item stays pending
├── WorkUnreadable       another process did a run's work in a way that cannot be read: again, then drains the run
├── MachineRefused       the machine has no room, right or handle left, anywhere else: ends the run
└── ChatError            one model call that finally failed; the subclass is the failure class
    ├── ChatUnavailable      refused, timed out, 5xx or 429 until the deadline: retried by the stage, then drains
    ├── ChatRejected         4xx: bad request, key or model: ends the run, the remedy is the user's
    ├── ContextOverflow      the prompt does not fit: terminal for that item, never retried
    ├── ContentFiltered      the endpoint refused the content: terminal for that item
    └── BudgetExhausted      the run's ceiling is reached: drains the run, nothing is lost
"""

from __future__ import annotations

from collections.abc import Sequence


class RuntimeFault(Exception):
    """Base of every fault in this package."""


class UserError(RuntimeFault):
    """Something the user wrote cannot be used."""

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        self.where, self.problem, self.remedy = where, problem, remedy
        super().__init__(f"{where}: {problem}. {remedy}")


class TaskInvalid(RuntimeFault):
    """A task directory has one or more problems."""

    def __init__(self, directory: str, problems: Sequence[str]) -> None:
        self.directory, self.problems = directory, tuple(problems)
        super().__init__(f"{directory}: " + "; ".join(self.problems))


class TrajectoryInvalid(RuntimeFault):
    """A trajectory document has one or more problems."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.source, self.problems = source, tuple(problems)
        super().__init__(f"{source}: " + "; ".join(self.problems))


class BusClosed(RuntimeFault):
    """The bus was used after it was closed."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"the bus is closed (queue '{queue}')")


class BusSilent(RuntimeFault):
    """The bus's server does not say what a queue holds."""

    def __init__(self, queue: str, reason: str) -> None:
        self.queue, self.reason = queue, reason
        super().__init__(f"the bus does not answer (queue '{queue}'): {reason}")


class ItemConflict(RuntimeFault):
    """An item can be in one queue at a time, and in each queue once."""

    def __init__(self, queue: str, item: str) -> None:
        self.queue, self.item = queue, item
        super().__init__(f"item '{item}' cannot go to queue '{queue}': it was there before, or is in another one")


class StoreError(RuntimeFault):
    """The store cannot be used."""

    def __init__(self, path: str, reason: str, remedy: str) -> None:
        self.path, self.reason, self.remedy = path, reason, remedy
        super().__init__(f"{path}: {reason}. {remedy}")


class MachineRefused(RuntimeFault):
    """The machine itself says no: a full or read-only disk, a missing right, too many open files."""

    def __init__(self, where: str, reason: str, remedy: str) -> None:
        self.where, self.reason, self.remedy = where, reason, remedy
        super().__init__(f"{where}: {reason}. {remedy}")


class WorkRefused(RuntimeFault):
    """What a process on another machine said of the work that it was sent: only the user can mend it."""


class WorkTakenBack(RuntimeFault):
    """A run that drains does not wait for work that no process on any machine has taken up."""

    def __init__(self, call: str) -> None:
        super().__init__(f"the run drains, and no worker had taken '{call}'")


class WorkUnreadable(RuntimeFault):
    """What a process on another machine made of its work cannot be read here: it is of another version."""

    def __init__(self, version: str, problem: str) -> None:
        super().__init__(
            f"this daemon (termloom {version}) cannot read a worker's answer: {problem}. "
            "Run the same version of termloom on every machine"
        )


class AnswerUnusable(RuntimeFault):
    """A model's answer has not the form asked for. `text` is the whole answer, kept for whoever looks for the cause."""

    def __init__(self, problems: Sequence[str], *, text: str, finish: str = "stop") -> None:
        self.problems, self.text, self.finish = tuple(problems), text, finish
        super().__init__(f"unusable answer ({len(text)} characters, finish '{finish}'): " + "; ".join(self.problems))


class ChatError(RuntimeFault):
    """One model call finally failed."""

    def __init__(self, endpoint: str, reason: str, *, status: int | None = None) -> None:
        self.endpoint, self.reason, self.status = endpoint, reason, status
        super().__init__(f"{endpoint}: {reason}" + (f" (HTTP {status})" if status else ""))


class ChatUnavailable(ChatError):
    """No answer within the deadline, whatever the number of tries."""


class ChatRejected(ChatError):
    """The endpoint will never accept this request."""


class ContextOverflow(ChatError):
    """The prompt is longer than the model's context."""


class ContentFiltered(ChatError):
    """The endpoint refused the content."""


class BudgetExhausted(ChatError):
    """The ceiling of the run is reached."""
