"""One OpenAI-compatible endpoint: admission, ledger, budget, one retry layer. The only module that imports openai.

Invariants:
- A call passes, in this order: ledger, gate, budget, HTTP. Nothing queues in the HTTP pool, which is as large as the
  gate's cap.
- Exactly one layer retries: tenacity here, under one deadline per call (the SDK's own retries are off). The deadline
  counts tries and back-off, not the wait at the gate; a slot is never held through a back-off.
- Wait before the next try = max(Retry-After, full-jitter ladder).
- Two calls with the same key at once are one call: the second waits and reads the ledger.
- An answer that arrived is charged and in the ledger before it is handed out, cancelled or not.
- One client belongs to one event loop, opened and closed with it.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote

import anyio
import msgspec
import structlog
import tenacity
from pydantic import BaseModel, ConfigDict, Field

from runtime.chat.answer import NoAnswerError, read_completion
from runtime.chat.budget import Budget, BudgetSettings
from runtime.chat.concurrency import ConcurrencySettings, Controller, Gate, Slot
from runtime.chat.faults import Diagnosis, diagnose_connection, diagnose_status
from runtime.chat.ledger import CallLedger, MemoryLedger
from runtime.chat.messages import DRAW_HEADER, PURPOSE_HEADER, ChatRequest, Completion
from runtime.chat.notes import CallNote, tell_call
from runtime.errors import ChatError

if TYPE_CHECKING:
    import openai

_LEDGER_GRACE_S = 5.0
"""How long a cancelled call may go on to write down what was paid."""

_HEAD_TOKENS = 100
"""The time before an answer's first token, in tokens: else short answers would pass for slow ones."""

log = structlog.get_logger()


class ChatSettings(BaseModel):
    """How an endpoint is called."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    deadline_s: float = Field(default=600.0, gt=0)
    """All tries of one call together: longer than the one-minute windows of hosted rate limits, many times over."""
    attempt_timeout_s: float = Field(default=300.0, gt=0)
    """One try: long enough for a long reasoning answer."""
    connect_timeout_s: float = Field(default=10.0, gt=0)
    backoff_first_s: float = Field(default=0.5, gt=0)
    backoff_ceiling_s: float = Field(default=30.0, gt=0)
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Newer hosted reasoning models accept only the second."""
    extra_body: dict[str, Any] = {}
    """Sent as it is with every call (`top_p`, `reasoning_effort`, ...). Part of the call's key."""
    concurrency: ConcurrencySettings = ConcurrencySettings()


class _TryFailedError(Exception):
    """One try failed; `diagnosis` says whether another makes sense."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis
        super().__init__(diagnosis.reason)


class _Patience:
    """Time that one call has used up: tries and back-off, not the wait at the gate."""

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.used_s = 0.0
        self.queue_wait_s = 0.0
        self.tries = 0

    @property
    def left_s(self) -> float:
        return max(0.0, self.deadline_s - self.used_s)

    def runs_out(self, state: tenacity.RetryCallState) -> bool:
        """Stop condition: the next try would begin after the deadline."""
        return state.upcoming_sleep >= self.left_s


class ChatClient:
    """Use as an async context manager. Clients of one event loop may share `gate`, `budget` and `ledger`."""

    def __init__(
        self,
        *,
        base_url: str,
        api_key: str,
        model: str,
        settings: ChatSettings | None = None,
        ledger: CallLedger | None = None,
        gate: Gate | None = None,
        budget: Budget | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        """Raises: UserError when the budget is in money and the model has no price."""
        self.base_url, self.model = base_url, model
        self.settings = settings or ChatSettings()
        self.ledger: CallLedger = MemoryLedger() if ledger is None else ledger
        self.gate = gate or Gate(Controller(self.settings.concurrency))
        self.budget = budget or Budget(BudgetSettings())
        self.budget.require_price(model)
        self._api_key = api_key
        self._sleep = sleep
        self._flying: dict[str, anyio.Event] = {}
        """Keys in flight, each with the event that tells its end: makes equal calls one."""
        self._stack = AsyncExitStack()
        self._openai: openai.AsyncOpenAI | None = None

    async def __aenter__(self) -> Self:
        self._openai = await self._stack.enter_async_context(
            _open_sdk(self.base_url, self._api_key, self.settings, self.gate.controller.settings.cap)
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._openai = None
        await self._stack.aclose()

    def key(self, request: ChatRequest) -> str:
        """The name of this call in the ledger."""
        return request.key(model=self.model, extra=self.settings.extra_body)

    async def complete(self, request: ChatRequest) -> Completion:
        """Answer `request`, from the ledger where it is already paid.

        Raises: ChatUnavailable, ChatRejected, ContextOverflow, ContentFiltered, BudgetExhausted.
        """
        key = self.key(request)
        async with self._alone(key):
            known = await self.ledger.get(key)
            if known is not None:
                return _replayed(known)
            return await self._call(request, key)

    @asynccontextmanager
    async def _alone(self, key: str) -> AsyncIterator[None]:
        while key in self._flying:
            await self._flying[key].wait()
        done = self._flying[key] = anyio.Event()
        try:
            yield
        finally:
            del self._flying[key]
            done.set()

    async def _call(self, request: ChatRequest, key: str) -> Completion:
        patience = _Patience(self.settings.deadline_s)
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda exc: isinstance(exc, _TryFailedError) and exc.diagnosis.retry),
            stop=patience.runs_out,
            wait=self._wait,
            sleep=self._sleep,
            before_sleep=lambda state: self._note_retry(request, patience, state),
            reraise=True,
        )
        try:
            return await retrying(self._try, request, key, patience)
        except _TryFailedError as failed:
            raise self._final(failed.diagnosis, patience) from failed.__cause__

    def _wait(self, state: tenacity.RetryCallState) -> float:
        ladder = tenacity.wait_random_exponential(
            multiplier=self.settings.backoff_first_s, max=self.settings.backoff_ceiling_s
        )
        return max(_diagnosis(state).retry_after_s, ladder(state))

    def _note_retry(self, request: ChatRequest, patience: _Patience, state: tenacity.RetryCallState) -> None:
        patience.used_s += state.upcoming_sleep
        log.warning(
            "chat_retry",
            purpose=request.purpose,
            attempt=state.attempt_number,
            wait_s=round(state.upcoming_sleep, 2),
            left_s=round(patience.left_s, 1),
            status=_diagnosis(state).status,
            reason=_diagnosis(state).reason,
        )

    def _final(self, diagnosis: Diagnosis, patience: _Patience) -> ChatError:
        reason = diagnosis.reason
        if diagnosis.retry:
            reason = f"{reason} (try {patience.tries}, {patience.used_s:.0f} of {patience.deadline_s:.0f} s used)"
        return diagnosis.error(self.base_url, reason, status=diagnosis.status)

    async def _try(self, request: ChatRequest, key: str, patience: _Patience) -> Completion:
        completion, cost_usd = await self._admitted(request, key, patience)
        if completion.finish != "abort":  # the place at the endpoint is free by now: the ledger's disk is ours
            with anyio.move_on_after(_LEDGER_GRACE_S, shield=True):
                await self.ledger.put(key, completion, purpose=request.purpose, cost_usd=cost_usd)
        return completion

    async def _admitted(self, request: ChatRequest, key: str, patience: _Patience) -> tuple[Completion, float]:
        """One exchange within gate and budget, and what it cost. Nothing is awaited once the answer is there."""
        async with self.gate.slot(request.purpose) as slot:
            patience.queue_wait_s += slot.queue_wait_s
            worst = self.budget.cost(self.model, request.prompt_estimate, request.max_tokens)
            async with self.budget.hold(worst, purpose=request.purpose, endpoint=self.base_url) as hold:
                began = anyio.current_time()
                try:
                    completion = await self._send(request, key, patience, slot)
                except _TryFailedError as failed:
                    self._note(request, failed.diagnosis.status, began)
                    raise
                hold.actual = self.budget.cost(self.model, completion.prompt_tokens, completion.completion_tokens)
                self._note(request, 200, began, completion, cost=hold.actual.usd)
            return completion, hold.actual.usd

    def _note(
        self,
        request: ChatRequest,
        status: int | None,
        began: float,
        completion: Completion | None = None,
        *,
        cost: float = 0.0,
    ) -> None:
        """Tell whoever listens of one try."""
        tell_call(
            CallNote(
                at=time.time(),
                purpose=request.purpose,
                model=self.model,
                status=status,
                latency_s=anyio.current_time() - began,
                prompt_tokens=completion.prompt_tokens if completion else 0,
                completion_tokens=completion.completion_tokens if completion else 0,
                cost=cost,
            )
        )

    async def _send(self, request: ChatRequest, key: str, patience: _Patience, slot: Slot) -> Completion:
        """One HTTP exchange, timed. Raises: _TryFailedError."""
        patience.tries += 1
        began = anyio.current_time()
        try:
            with anyio.fail_after(min(self.settings.attempt_timeout_s, patience.left_s)):
                completion = await self._post(request, key, patience.tries)
        except TimeoutError as exc:
            raise _TryFailedError(diagnose_connection(f"no answer in {anyio.current_time() - began:.0f} s")) from exc
        except _TryFailedError as failed:
            if failed.diagnosis.overloaded:
                slot.was_overloaded()
            raise
        finally:
            took_s = anyio.current_time() - began
            patience.used_s += took_s
        slot.went_well(took_s / (_HEAD_TOKENS + completion.completion_tokens))
        return _timed(completion, patience)

    async def _post(self, request: ChatRequest, key: str, attempt: int) -> Completion:
        import openai

        assert self._openai is not None, "the client is not open"
        unreadable: tuple[type[Exception], ...] = (openai.APIError, NoAnswerError, ValueError, *_transport_faults())
        try:
            answer = await self._openai.chat.completions.create(
                model=self.model,
                messages=[{"role": m.role, "content": m.content} for m in request.messages],  # type: ignore[misc]
                temperature=openai.omit if request.temperature is None else request.temperature,
                extra_body={**self.settings.extra_body, self.settings.max_tokens_field: request.max_tokens},
                extra_headers={
                    "X-Request-Id": f"{key[:24]}-{attempt}",
                    PURPOSE_HEADER: request.purpose,
                    DRAW_HEADER: quote(request.nonce),
                },
            )
            return read_completion(answer, prompt_estimate=request.prompt_estimate)
        except openai.APIStatusError as exc:
            raise _TryFailedError(_read_status(exc)) from exc
        except openai.APIConnectionError as exc:
            raise _TryFailedError(diagnose_connection(f"{exc}: {exc.__cause__!r}")) from exc
        except unreadable as exc:
            raise _TryFailedError(diagnose_connection(f"unreadable answer: {exc}")) from exc


def _transport_faults() -> tuple[type[Exception], ...]:
    """What the SDK lets through of its aiohttp transport: a reply that is no HTTP."""
    try:
        import aiohttp
    except ImportError:
        return ()
    return (aiohttp.ClientError,)


def _diagnosis(state: tenacity.RetryCallState) -> Diagnosis:
    failed = state.outcome.exception() if state.outcome else None
    assert isinstance(failed, _TryFailedError)
    return failed.diagnosis


def _read_status(exc: openai.APIStatusError) -> Diagnosis:
    body = exc.body if isinstance(exc.body, dict) else {}
    return diagnose_status(
        exc.status_code,
        code=str(body.get("code") or body.get("type") or ""),
        message=str(body.get("message") or exc.message),
        headers=exc.response.headers,
    )


@asynccontextmanager
async def _open_sdk(
    base_url: str, api_key: str, settings: ChatSettings, pool_size: int
) -> AsyncIterator[openai.AsyncOpenAI]:
    """The SDK on its aiohttp transport where there is one, else on its default.

    The transport types live in another package from openai 3 on (httpx2, before: httpx).
    """
    import openai

    http = importlib.import_module("httpx2" if int(openai.__version__.split(".")[0]) >= 3 else "httpx")
    options: dict[str, Any] = {
        "timeout": http.Timeout(settings.attempt_timeout_s, connect=settings.connect_timeout_s),
        "limits": http.Limits(max_connections=pool_size, max_keepalive_connections=pool_size, keepalive_expiry=30.0),
    }
    try:
        transport: Any = openai.DefaultAioHttpClient(**options)
    except RuntimeError:
        transport = openai.DefaultAsyncHttpxClient(**options)
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, http_client=transport) as sdk:
        yield sdk


def _replayed(known: Completion) -> Completion:
    return msgspec.structs.replace(known, cached=True, queue_wait_s=0.0, latency_s=0.0)


def _timed(completion: Completion, patience: _Patience) -> Completion:
    return msgspec.structs.replace(completion, queue_wait_s=patience.queue_wait_s, latency_s=patience.used_s)
