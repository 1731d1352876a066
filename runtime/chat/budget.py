"""What a run may spend: a soft ceiling that stops new work, a hard one that no call passes.

Invariants:
- A call is counted before it flies, at its worst: its prompt as estimated and its full `max_tokens`. What is spent and
  what is in flight together never pass the ceiling; the only slack is the error in the prompt's estimate.
- A call that would fit once those in flight have settled waits for them; one that cannot fit any more raises
  BudgetExhausted.
- Calls answered by the ledger cost nothing.
- `on_soft` is called once.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import msgspec
from pydantic import BaseModel, ConfigDict, Field

from runtime.errors import BudgetExhausted, UserError


class Price(BaseModel):
    """What a model costs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_usd_per_mtok: float = Field(ge=0)
    output_usd_per_mtok: float = Field(ge=0)

    def cost_usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        return (prompt_tokens * self.input_usd_per_mtok + completion_tokens * self.output_usd_per_mtok) / 1e6


class BudgetSettings(BaseModel):
    """Ceilings of one run. None means no ceiling."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: int | None = Field(default=None, gt=0)
    max_usd: float | None = Field(default=None, gt=0)
    soft_share: float = Field(default=0.9, gt=0, le=1)
    """At this share of a ceiling no new item is begun, so that those begun can finish below the hard one."""
    prices: dict[str, Price] = {}
    """By model name. A ceiling in money needs the price of every model that is called."""


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and money."""

    tokens: int = 0
    usd: float = 0.0

    def plus(self, other: Spending) -> Spending:
        return Spending(tokens=self.tokens + other.tokens, usd=self.usd + other.usd)

    def minus(self, other: Spending) -> Spending:
        return Spending(tokens=self.tokens - other.tokens, usd=self.usd - other.usd)


class Admission(enum.Enum):
    """Whether a call may fly."""

    GRANTED = "granted"
    WAIT = "wait"
    EXHAUSTED = "exhausted"


class Hold:
    """What one call may cost at most, until it says what it did cost."""

    def __init__(self, reserved: Spending) -> None:
        self.reserved = reserved
        self.actual = Spending()


class Budget:
    """Counts what is spent. The decisions are synchronous; `hold` waits where one says so."""

    def __init__(
        self,
        settings: BudgetSettings,
        *,
        spent: Spending = Spending(),  # noqa: B008  (immutable)
        on_soft: Callable[[Spending], None] | None = None,
    ) -> None:
        """`spent` is what the ledger of an earlier run of the same item list already holds."""
        self.settings = settings
        self.spent = spent
        self.by_purpose: dict[str, Spending] = {}
        self._reserved = Spending()
        self._on_soft = on_soft
        self._warned = False
        self._settled = anyio.Event()

    def require_price(self, model: str) -> None:
        """Raises: UserError when a ceiling in money is set and this model has no price."""
        if self.settings.max_usd is not None and model not in self.settings.prices:
            raise UserError(
                "budget.prices",
                f"no price for model '{model}', but budget.max_usd is set",
                f'Add budget.prices."{model}"',
            )

    def cost(self, model: str, prompt_tokens: int, completion_tokens: int) -> Spending:
        price = self.settings.prices.get(model)
        usd = price.cost_usd(prompt_tokens, completion_tokens) if price else 0.0
        return Spending(tokens=prompt_tokens + completion_tokens, usd=usd)

    @property
    def soft_reached(self) -> bool:
        """No new item should be begun."""
        return self._passes(self.spent, self.settings.soft_share)

    def decide(self, worst: Spending) -> Admission:
        """Whether a call that costs `worst` at most may fly now."""
        if self._passes(self.spent.plus(worst)):
            return Admission.EXHAUSTED
        return Admission.WAIT if self._passes(self.spent.plus(self._reserved).plus(worst)) else Admission.GRANTED

    def _passes(self, spending: Spending, share: float = 1.0) -> bool:
        tokens, usd = self.settings.max_tokens, self.settings.max_usd
        return (tokens is not None and spending.tokens > tokens * share) or (
            usd is not None and spending.usd > usd * share
        )

    @asynccontextmanager
    async def hold(self, worst: Spending, *, purpose: str, endpoint: str) -> AsyncIterator[Hold]:
        """Reserve `worst` for the time of one call. Raises: BudgetExhausted."""
        while (admission := self.decide(worst)) is not Admission.GRANTED:
            if admission is Admission.EXHAUSTED:
                raise BudgetExhausted(endpoint, self._exhausted_reason())
            await self._settled.wait()
        self._reserved = self._reserved.plus(worst)
        hold = Hold(worst)
        try:
            yield hold
        finally:
            self._settle(hold, purpose)

    def _settle(self, hold: Hold, purpose: str) -> None:
        self._reserved = self._reserved.minus(hold.reserved)
        self.spent = self.spent.plus(hold.actual)
        self.by_purpose[purpose] = self.by_purpose.get(purpose, Spending()).plus(hold.actual)
        self._settled.set()
        self._settled = anyio.Event()
        if self.soft_reached and not self._warned:
            self._warned = True
            if self._on_soft:
                self._on_soft(self.spent)

    def _exhausted_reason(self) -> str:
        limits = self.settings
        ceiling = ", ".join(
            text
            for text in (
                f"max_tokens={limits.max_tokens}" if limits.max_tokens is not None else "",
                f"max_usd={limits.max_usd}" if limits.max_usd is not None else "",
            )
            if text
        )
        return (
            f"the budget ({ceiling}) has no room for another call: {self.spent.tokens} tokens and "
            f"${self.spent.usd:.4f} are spent. Raise the ceiling and resume; nothing is paid twice"
        )
