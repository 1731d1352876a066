"""The endpoint of a run: a client whose calls are paid once, over the run's own ledger and budget."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from runtime.chat.budget import Budget, BudgetSettings, Price, Spending
from runtime.chat.client import ChatClient
from runtime.chat.client import ChatSettings as ClientSettings
from runtime.chat.concurrency import ConcurrencySettings
from runtime.chat.store_ledger import StoreLedger
from runtime.errors import UserError
from runtime.settings import ChatSettings, Settings
from runtime.store import Store


def require_endpoint(settings: ChatSettings, *, otherwise: str) -> None:
    """Raises: UserError when no endpoint or model is given; `otherwise` is what could be done without one."""
    for name in ("base_url", "model"):
        if not getattr(settings, name):
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"chat.{name}", "is not set", f"Give {option}, or {otherwise}")


def require_one_ledger(settings: Settings, *sections: str) -> None:
    """Refuse a ceiling over the endpoints of these sections where workers ask them too: each has a ledger of its own.

    Raises: UserError.
    """
    for section in sections if settings.daemon.bus else ():
        for name in ("budget_tokens", "budget_cost"):
            if getattr(getattr(settings, section), name) is not None:
                problem = "cannot be kept: workers of the daemon's bus ask the model as well, each with its own count"
                raise UserError(f"{section}.{name}", problem, "Use --here, or a daemon without a bus, or leave it out")


@asynccontextmanager
async def open_client(settings: ChatSettings, store: Store, *, most: int) -> AsyncIterator[ChatClient]:
    """A client of at most `most` calls at once, its budget less what the store's ledger has spent.

    Raises: UserError when a budget in money lacks the model's price; StoreError.
    """
    _, prompt_tokens, completion_tokens, cost = await store.calls()
    usual = ConcurrencySettings()
    concurrency = ConcurrencySettings(floor=min(usual.floor, most), start=min(usual.start, most), cap=most)
    client = ChatClient(
        base_url=settings.base_url,
        api_key=settings.api_key.get_secret_value() or "none",
        model=settings.model,
        settings=ClientSettings(
            deadline_s=settings.deadline_s, attempt_timeout_s=settings.attempt_timeout_s, concurrency=concurrency
        ),
        ledger=StoreLedger(store),
        budget=Budget(_budget(settings), spent=Spending(tokens=prompt_tokens + completion_tokens, usd=cost)),
    )
    async with client:
        yield client


def _budget(settings: ChatSettings) -> BudgetSettings:
    prices = {
        model: Price(input_usd_per_mtok=price.prompt, output_usd_per_mtok=price.completion)
        for model, price in settings.prices.items()
    }
    return BudgetSettings(max_tokens=settings.budget_tokens, max_usd=settings.budget_cost, prices=prices)
