"""The endpoint of a generation run: a client whose calls are paid once, over the run's own ledger and budget."""

from __future__ import annotations

from runtime.chat.budget import Budget, BudgetSettings, Price
from runtime.chat.client import ChatClient
from runtime.chat.client import ChatSettings as ClientSettings
from runtime.chat.store_ledger import StoreLedger
from runtime.errors import UserError
from runtime.settings import ChatSettings
from runtime.store import Store


def open_client(settings: ChatSettings, store: Store) -> ChatClient:
    """A client for the settings' endpoint. Raises: UserError when no endpoint or model is given."""
    for name in ("base_url", "model"):
        if not getattr(settings, name):
            raise UserError(
                f"chat.{name}", "is not set", f"Give --{name.replace('_', '-')}, or use --author procedural"
            )
    prices = {
        model: Price(input_usd_per_mtok=price.prompt, output_usd_per_mtok=price.completion)
        for model, price in settings.prices.items()
    }
    budget = BudgetSettings(max_tokens=settings.budget_tokens, max_usd=settings.budget_cost, prices=prices)
    return ChatClient(
        base_url=settings.base_url,
        api_key=settings.api_key.get_secret_value() or "none",
        model=settings.model,
        settings=ClientSettings(deadline_s=settings.deadline_s),
        ledger=StoreLedger(store),
        budget=Budget(budget),
    )
