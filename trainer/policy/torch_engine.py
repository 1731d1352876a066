"""A policy served in this process: continuous batching with a KV cache, for small models on a CPU or one GPU.

Requests join and leave the running batch at any token, and only what is new is computed. The forward passes run in a
worker thread, so the event loop stays free. When weights change, the running sequences are computed anew under the new
weights and go on: their tokens carry both versions. With a `seed`, a draw depends on weights, prompt and seed only, up
to the rounding of different batch sizes.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import anyio
import torch
from anyio import to_thread
from torch import Tensor, nn

from trainer.model import ids_logprobs
from trainer.policy.protocol import Continuation, HandoverFailed, PolicyUnavailable, Sampling
from trainer.policy.rows import Rows
from trainer.policy.weight_files import read_tensors


@dataclass(eq=False)
class _Request:
    ids: list[int]
    prompt: int
    sampling: Sampling
    random: random.Random
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: str = ""
    asked: float = field(default_factory=time.monotonic)
    queue_s: float = 0.0
    done: anyio.Event = field(default_factory=anyio.Event)


class TorchEngine:
    """Serves one `torch` causal language model. Use as an async context manager.

    Args:
        model: a Hugging Face causal language model; the engine uses it in place and nobody else may while it serves.
        slots: sequences in the running batch; more wait their turn.
    """

    def __init__(self, model: nn.Module, *, slots: int = 64, version: int = 0) -> None:
        self._model = model.eval()
        self._slots = slots
        self._version = version
        self._waiting: list[_Request] = []
        self._running: list[_Request] = []
        self._rows: Rows | None = None
        """Of the running requests up to the last step; None when they must be computed from their first token."""
        self._wake = anyio.Event()
        self._turn = anyio.Lock()  # protects the model and the running batch: one step or one update at a time
        self._closed = False

    @property
    def version(self) -> int:
        return self._version

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Continuation:
        if not ids:
            raise ValueError(f"request {request_id}: the prompt is empty")
        if self._closed:
            raise PolicyUnavailable("in-process", "the engine is closed")
        seed = f"{request_id}" if sampling.seed is None else f"{sampling.seed}/{len(ids)}"
        request = _Request(ids=list(ids), prompt=len(ids), sampling=sampling, random=random.Random(seed))
        self._waiting.append(request)
        self._wake.set()
        try:
            await request.done.wait()
        finally:
            request.finish = request.finish or "abort"
        if self._closed and request.finish == "abort":
            raise PolicyUnavailable("in-process", "the engine was closed")
        new = request.ids[request.prompt :]
        finish: Any = request.finish
        return Continuation(
            ids=new, logprobs=request.logprobs, versions=request.versions, finish=finish, queue_s=request.queue_s
        )

    async def score(self, ids: Sequence[int]) -> list[float]:
        async with self._standstill():
            return await to_thread.run_sync(ids_logprobs, self._model, list(ids))

    async def unlike(self, weights: Path) -> list[str] | None:
        own = self._model.state_dict()
        async with self._standstill():
            state = await to_thread.run_sync(read_tensors, weights)
            return sorted(n for n, tensor in state.items() if not torch.equal(own[n].cpu(), tensor.to(own[n].dtype)))

    async def update(self, weights: Path, version: int) -> None:
        async with self._standstill():  # a reader beside the sampling would be slow
            try:
                state = await to_thread.run_sync(read_tensors, weights)
            except Exception as error:
                raise HandoverFailed("in-process", version, str(error)) from error
            self._take(state, version)

    @asynccontextmanager
    async def _standstill(self) -> AsyncIterator[None]:
        """Nothing is sampled meanwhile, which the running requests count as waiting."""
        async with self._turn:
            began = time.monotonic()
            try:
                yield
            finally:
                for request in self._running:
                    request.queue_s += time.monotonic() - began

    def _take(self, state: dict[str, Tensor], version: int) -> None:
        """Take over tensors; shapes and names are checked before the first one is touched. Raises: HandoverFailed."""
        own = self._model.state_dict()
        shared = {tensor.data_ptr() for name, tensor in own.items() if name in state}
        own = {n: t for n, t in own.items() if n in state or t.data_ptr() not in shared}  # tied: filled by another name
        wrong = sorted(
            n for n in own.keys() | state.keys() if n not in own or n not in state or own[n].shape != state[n].shape
        )
        if wrong:
            raise HandoverFailed(
                "in-process", version, f"tensors missing, unknown or of another shape: {', '.join(wrong[:3])}"
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])
        self._version, self._rows = version, None

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._serve)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._closed = True
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)
        for request in self._running + self._waiting:
            request.done.set()

    async def _serve(self) -> None:
        while True:
            async with self._turn:
                kept, joining = self._admit()
                if self._running:
                    await to_thread.run_sync(self._step, kept, joining)
                    self._retire()
                    continue
                self._wake = anyio.Event()
            await self._wake.wait()

    def _admit(self) -> tuple[list[int], list[_Request]]:
        """Who has ended leaves, who waits joins. Returns the rows that stay, and the requests that are new."""
        kept = [row for row, request in enumerate(self._running) if not request.finish]
        self._waiting = [r for r in self._waiting if not r.finish]
        joining = self._waiting[: self._slots - len(kept)]
        del self._waiting[: len(joining)]
        for request in joining:
            request.queue_s = time.monotonic() - request.asked
        self._running = [self._running[row] for row in kept] + joining
        return kept, joining

    def _retire(self) -> None:
        for request in self._running:
            if request.finish:
                request.done.set()

    @torch.no_grad()
    def _step(self, kept: list[int], joining: list[_Request]) -> None:
        """One token for every running request."""
        self._rows = self._advance(kept, joining)
        for request, row in zip(self._running, self._rows.logits, strict=True):
            if not request.finish:
                _draw(request, row, self._version)

    def _advance(self, kept: list[int], joining: list[_Request]) -> Rows:
        """The cache of the running requests, with the logits of their next tokens."""
        rows = self._rows
        changed = bool(joining) or (rows is not None and len(kept) < len(rows.logits))
        if rows is None or not kept or (changed and not rows.movable):
            return Rows(self._model, [request.ids for request in self._running])
        if len(kept) < len(rows.logits):
            rows.keep(kept)
        rows.decode([request.ids[-1] for request in self._running[: len(kept)]])
        if joining:
            rows.join(Rows(self._model, [request.ids for request in joining]))
        return rows


def _draw(request: _Request, logits: Tensor, version: int) -> None:
    """Sample the request's next token by inversion of the cumulative distribution."""
    sampling = request.sampling
    logprobs = torch.log_softmax(logits / (sampling.temperature or 1.0), dim=-1)
    if sampling.temperature == 0:
        token = int(logprobs.argmax())
    else:
        cumulative = logprobs.double().exp().cumsum(0)
        token = int(
            torch.searchsorted(cumulative, request.random.random() * float(cumulative[-1])).clamp(max=len(logprobs) - 1)
        )
    request.ids.append(token)
    request.logprobs.append(float(logprobs[token]))
    request.versions.append(version)
    if token in sampling.stop_ids:
        request.finish = "stop"
    elif len(request.logprobs) >= sampling.max_tokens:
        request.finish = "length"
