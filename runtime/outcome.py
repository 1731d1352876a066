"""What an attempt at one message came to, and how exceptions map to it.

A handler's exception is one of four things: infrastructure (the message comes again), the item's own end, the end of
admission (a spent budget drains the run), or a bug. What only the user can mend is none of these: it ends the run.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.causes import first_cause
from runtime.errors import (
    BudgetExhausted,
    BusClosed,
    ChatRejected,
    ChatUnavailable,
    ContentFiltered,
    ContextOverflow,
    StoreError,
    UserError,
    WorkRefused,
    WorkTakenBack,
    WorkUnreadable,
)
from runtime.machine import refusal
from runtime.stage import Message, RetryLater
from sandbox.errors import EngineFault, EngineUnavailable, SandboxLost, ServiceUnhealthy

_ENDS_THE_RUN = (UserError, ChatRejected, StoreError, BusClosed, EngineUnavailable, WorkRefused)
_INFRASTRUCTURE = (ChatUnavailable, EngineFault, SandboxLost, ServiceUnhealthy, WorkUnreadable)
_CONCERNS_ALL = (ChatUnavailable, WorkUnreadable)


@dataclass(frozen=True)
class Done:
    """The handler returned."""

    messages: Sequence[Message]


@dataclass(frozen=True)
class Again:
    """Deliver it again, up to the stage's `attempts`."""

    reason: str
    delay_s: float | None = None
    fault: str = ""
    """The traceback when a bug is at fault, not infrastructure."""
    concerns_all: bool = False
    """When the attempts are used up, the run drains and the item stays: the others would fare no better."""


@dataclass(frozen=True)
class Ended:
    """The item is at its end here."""

    reason: str
    detail: str


@dataclass(frozen=True)
class Drain:
    """Nothing more can be done now; the item stays pending."""

    reason: str


Outcome = Done | Again | Ended | Drain


def judge(error: Exception) -> Outcome:
    """What `error`, raised by a handler, comes to. Raises its cause when that ends the run."""
    cause = first_cause(error)
    match cause:
        case RetryLater():
            return Again(cause.reason, cause.delay_s)
        case ContextOverflow():
            return Ended("context_length", str(cause))
        case ContentFiltered():
            return Ended("llm_filtered", str(cause))
        case BudgetExhausted() | WorkTakenBack():
            return Drain(str(cause))
    if isinstance(cause, _ENDS_THE_RUN):
        raise cause
    if refused := refusal(cause):
        raise refused from cause
    if isinstance(cause, _INFRASTRUCTURE):
        return Again(f"{type(cause).__name__}: {cause}", concerns_all=isinstance(cause, _CONCERNS_ALL))
    return Again("fault", fault="".join(traceback.format_exception(error)))
