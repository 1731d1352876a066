"""The ledger of model calls in the run's store: it outlives the process, so a resumed run pays for nothing twice."""

from __future__ import annotations

import msgspec

from runtime.chat.messages import Completion
from runtime.store import Call, Store


class StoreLedger:
    """A `CallLedger` over a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, key: str) -> Completion | None:
        call = await self._store.call(key)
        return msgspec.msgpack.decode(call.response, type=Completion) if call else None

    async def put(self, key: str, completion: Completion, *, purpose: str, cost_usd: float) -> None:
        await self._store.record_call(
            Call(
                key=key,
                request_digest=purpose,
                response=msgspec.msgpack.encode(completion),
                prompt_tokens=completion.prompt_tokens,
                completion_tokens=completion.completion_tokens,
                cost=cost_usd,
                attempts=1,
            )
        )
