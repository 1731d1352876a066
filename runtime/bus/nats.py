"""The bus over NATS JetStream: several processes, on several machines, in the same queues. Extra `nats`.

A queue is a work-queue stream with one durable pull consumer that all processes share. What JetStream leaves to its
user is done here, and each point has a test in the contract:
- A full stream refuses (`discard: new`): the publisher says so over plain NATS, and for a while each settlement is told
  in the same way and wakes one that waits. Where nothing is full, nothing is told.
- After the last attempt JetStream would never deliver a message again and keep it for ever: it becomes a dead letter of
  ours, in a stream beside, and is terminated.
- A body near the server's payload limit goes to the object store; the message carries its name.
- A late acknowledgement would settle a message that someone else works on: a lease knows when it ended.
- A pull asks for no more messages than there are free slots, so none waits in a client while its lease runs.
- What is withdrawn is deleted by its number: the server then ends its lease too, and counts on rightly. Purging by
  subject would leave it among the unacknowledged.
- The server counts a message that waits out a delay as under lease: a mark in a stream beside says until when it waits,
  from the moment it is given back until it is delivered again.

Settling waits for the server's confirmation. All of it is one module, the only one that knows the client.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

import anyio
import msgspec

from runtime.bus.protocol import DeadLetter, QueueOptions, QueueState
from runtime.bus.signal import Signal
from runtime.bus.wire import Buried, Envelope, Names, decode_buried, decode_envelope, due_of, encode, token_of
from runtime.errors import BusClosed, BusSilent, UserError

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

CONNECT_S = 5.0
_CONSUMER = "workers"
_PULL_S = 20.0
"""One pull request lingers so long at the server; then the next."""
_CONFIRM_S = 3.0
_LEAVE_S = 5.0
"""For giving back all that a consumer holds; what is left comes back when its lease runs out."""
_ROOM_S = 1.0
"""A publisher that waits for room looks again after so long, should the message about it be lost; twice as long the
others tell it of room."""
_PULLS = 4
"""A pull asks for at least this part of the slots while an earlier one is open: the server keeps few of them."""
_REMEMBERED_S = 24 * 3600.0
"""How long the server knows a key that has been settled. The store knows longer."""
_HEADROOM = 4096
"""Of the payload limit, for headers and our envelope."""
_FULL = 10077
_STREAM_EXISTS = 10058


class _Queue:
    """One declared queue at the server."""

    def __init__(self, bus: NatsBus, queue: str, options: QueueOptions, names: Names) -> None:
        self.bus, self.queue, self.options, self.names = bus, queue, options, names
        self.room = Signal()
        self._said_full_at = self._tell_until = 0.0

    async def declare(self) -> None:
        from nats.js import api

        await self._stream(
            api.StreamConfig(
                name=self.names.stream,
                subjects=[self.names.subject("*")],
                retention=api.RetentionPolicy.WORK_QUEUE,
                discard=api.DiscardPolicy.NEW,
                max_msgs=self.options.capacity,
                duplicate_window=_REMEMBERED_S,
            )
        )
        await self._stream(
            api.StreamConfig(
                name=self.names.dead_stream, subjects=[self.names.dead_subject("*")], max_msgs_per_subject=1
            )
        )
        await self._stream(
            api.StreamConfig(name=self.names.delayed_stream, subjects=[self.names.delayed_subject("*", "*")])
        )
        await self.bus.jetstream.add_consumer(
            self.names.stream,
            api.ConsumerConfig(
                durable_name=_CONSUMER,
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=self.options.lease_s,
                max_deliver=-1,
                max_ack_pending=-1,
            ),
        )
        await self.bus.client.subscribe(self.names.room, cb=self._on_room)
        await self.bus.client.subscribe(self.names.full, cb=self._on_full)

    async def _stream(self, config: Any) -> None:
        from nats.js.errors import APIError

        try:
            await self.bus.jetstream.add_stream(config)
        except APIError as error:
            if error.err_code != _STREAM_EXISTS:
                raise
            await self.bus.jetstream.update_stream(config)

    async def _on_room(self, _: Msg) -> None:
        self.room.notify_one()

    async def _on_full(self, _: Msg) -> None:
        self._tell_until = time.monotonic() + 2 * _ROOM_S

    async def tell_room(self) -> None:
        """A message was settled: say so if somebody waits for room."""
        if time.monotonic() < self._tell_until:
            await self.bus.client.publish(self.names.room)

    async def publish(self, key: str, body: bytes, *, once: str) -> None:
        """Publish under the deduplication id `once`; waits while the stream is full."""
        token = token_of(key)
        envelope = Envelope(key=key, at=time.time(), body=body)
        if len(body) > self.bus.client.max_payload - _HEADROOM:
            await self.until_taken(lambda: self._put_body(token, body))
            envelope = msgspec.structs.replace(envelope, body=None)
        subject, payload, headers = self.names.subject(token), encode(envelope), {"Nats-Msg-Id": once}
        jetstream = self.bus.jetstream
        await self.until_taken(lambda: jetstream.publish(subject, payload, timeout=_CONFIRM_S, headers=headers))

    async def until_taken(self, send: Callable[[], Awaitable[object]]) -> None:
        while not await self._taken(send):
            self.bus.check_open(self.queue)
            await self._wait_for_room()
            self.bus.check_open(self.queue)

    async def _wait_for_room(self) -> None:
        """Who is the first to say that the queue is full looks again at once: room may have come while it spoke."""
        if time.monotonic() - self._said_full_at < _ROOM_S:
            await self.room.wait(_ROOM_S)
        else:
            self._said_full_at = time.monotonic()
            await self.bus.client.publish(self.names.full)

    async def _taken(self, send: Callable[[], Awaitable[object]]) -> bool:
        """False: no room, or no answer, as while the server restarts. The id keeps a second try from queueing twice."""
        from nats.errors import ConnectionClosedError, ConnectionReconnectingError
        from nats.errors import TimeoutError as NatsTimeout
        from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError

        try:
            await send()
        except (NatsTimeout, NoStreamResponseError, ServiceUnavailableError, ConnectionReconnectingError):
            return False
        except ConnectionClosedError:
            raise BusClosed(self.queue) from None
        except APIError as error:
            if error.err_code != _FULL:
                raise
            return False
        return True

    async def body(self, envelope: Envelope) -> bytes:
        if envelope.body is not None:
            return envelope.body
        store = await self.bus.jetstream.object_store(self.names.bodies)
        found = await store.get(token_of(envelope.key))
        return bytes(found.data)

    async def _put_body(self, token: str, body: bytes) -> None:
        store = await self.bus.jetstream.create_object_store(self.names.bodies)
        await store.put(token, body)

    async def forget_body(self, envelope: Envelope) -> None:
        if envelope.body is None:
            store = await self.bus.jetstream.object_store(self.names.bodies)
            await store.delete(token_of(envelope.key))

    async def withdraw(self, key: str) -> None:
        """Delete a message. Who was handed it has read its body, and takes that out of the object store."""
        found = await self._last(self.names.stream, self.names.subject(token_of(key)))
        if found is None:
            return
        await self.bus.jetstream.delete_msg(self.names.stream, found.seq)
        await self.tell_room()
        if await self._handed_out(found.seq):
            await self.unmark_delayed(key)
        else:
            await self.forget_body(decode_envelope(found.data))

    async def untaken(self, key: str) -> bool:
        found = await self._last(self.names.stream, self.names.subject(token_of(key)))
        return found is not None and not await self._handed_out(found.seq)

    async def _handed_out(self, number: int) -> bool:
        """Whether a consumer was ever given this message of the stream."""
        consumer = await self.bus.jetstream.consumer_info(self.names.stream, _CONSUMER)
        return bool(number <= consumer.delivered.stream_seq)

    async def bury(self, envelope: Envelope, reason: str, attempts: int) -> None:
        letter = encode(Buried(envelope=envelope, reason=reason, attempts=attempts))
        await self.bus.jetstream.publish(self.names.dead_subject(token_of(envelope.key)), letter, timeout=_CONFIRM_S)

    async def exhume(self, key: str) -> Buried | None:
        """Take a dead letter out."""
        found = await self._last_dead(token_of(key))
        if found is None:
            return None
        await self.bus.jetstream.delete_msg(self.names.dead_stream, found.seq)
        return decode_buried(found.data)

    async def dead(self) -> list[Buried]:
        info = await self.bus.jetstream.stream_info(self.names.dead_stream, subjects_filter=">")
        tokens = [subject.rpartition(".")[2] for subject in info.state.subjects or ()]
        found = [await self._last_dead(token) for token in tokens]
        return [decode_buried(message.data) for message in found if message is not None]

    async def _last_dead(self, token: str) -> Any:
        return await self._last(self.names.dead_stream, self.names.dead_subject(token))

    async def _last(self, stream: str, subject: str) -> Any:
        from nats.js.errors import NotFoundError

        try:
            return await self.bus.jetstream.get_last_msg(stream, subject)
        except NotFoundError:
            return None

    async def mark_delayed(self, key: str, delay_s: float) -> None:
        subject = self.names.delayed_subject(token_of(key), str(round((time.time() + delay_s) * 1000)))
        with _only_told():
            await self.bus.jetstream.publish(subject, b"", timeout=_CONFIRM_S)

    async def unmark_delayed(self, key: str) -> None:
        with _only_told():
            await self.bus.jetstream.purge_stream(
                self.names.delayed_stream, subject=self.names.delayed_subject(token_of(key), "*")
            )

    async def delays(self) -> list[float]:
        """When each of the delays that are marked ends, in seconds since the epoch."""
        info = await self.bus.jetstream.stream_info(self.names.delayed_stream, subjects_filter=">")
        return [due_of(subject) for subject in info.state.subjects or ()]

    async def oldest_s(self, first: int) -> float:
        from nats.js.errors import NotFoundError

        try:
            message = await self.bus.jetstream.get_msg(self.names.stream, first)
        except NotFoundError:
            return 0.0  # settled meanwhile
        return max(0.0, time.time() - decode_envelope(message.data).at)


class NatsDelivery:
    """One message under lease: see `runtime.bus.protocol.Delivery`."""

    def __init__(self, queue: _Queue, message: Msg, envelope: Envelope, body: bytes, changed: Signal) -> None:
        self._queue, self._message, self._envelope, self._body = queue, message, envelope, body
        self._changed = changed
        self._settled = False
        self.until = time.monotonic() + queue.options.lease_s

    @property
    def key(self) -> str:
        return self._envelope.key

    @property
    def body(self) -> bytes:
        return self._body

    @property
    def attempt(self) -> int:
        return int(self._message.metadata.num_delivered)

    @property
    def live(self) -> bool:
        """Whether the lease has neither been settled nor run out."""
        return not self._settled and time.monotonic() < self.until

    async def ack(self) -> None:
        if self.live and await self._settle(b"+ACK"):
            with _only_told():
                await self._queue.forget_body(self._envelope)

    async def nack(self, delay_s: float = 0.0) -> None:
        if self.live and self.attempt >= self._queue.options.max_attempts:
            await self.reject(f"{self.attempt} deliveries, the last: given back")
        elif self.live:
            if delay_s > 0:
                await self._queue.mark_delayed(self.key, delay_s)
            await self._settle(b"-NAK " + json.dumps({"delay": int(delay_s * 1e9)}).encode())

    async def extend(self) -> None:
        if self.live:
            await self._confirm(b"+WPI")
            self.until = time.monotonic() + self._queue.options.lease_s

    async def reject(self, reason: str) -> None:
        if self.live:
            await self._bury(reason, self.attempt)

    async def give_up(self) -> None:
        """The last lease ran out, which shows only when it is delivered once more."""
        attempts = self._queue.options.max_attempts
        await self._bury(f"{attempts} deliveries, the last: the lease ran out", attempts)

    async def _bury(self, reason: str, attempts: int) -> None:
        with anyio.CancelScope(shield=True), _redelivered():
            await self._queue.bury(self._envelope, reason, attempts)
            await self._settle(b"+TERM")

    async def _settle(self, answer: bytes) -> bool:
        """Whether it was heard. Shielded: half said, it would be neither ours to give back nor settled until the lease
        runs out."""
        self._settled = True
        with anyio.CancelScope(shield=True):
            heard = await self._confirm(answer)
            if not answer.startswith(b"-NAK"):
                await self._queue.tell_room()
        self._changed.notify()
        return heard

    async def _confirm(self, answer: bytes) -> bool:
        from nats.errors import ConnectionClosedError

        heard = False
        try:
            with _redelivered():
                await self._queue.bus.client.request(self._message.reply, answer, timeout=_CONFIRM_S)
                heard = True
        except ConnectionClosedError:
            raise BusClosed(self._queue.queue) from None
        return heard


class NatsBus:
    """See `runtime.bus.protocol.Bus`. `prefix` keeps runs apart on one server.

    Raises, when entered: UserError when no server answers at `url`.
    """

    def __init__(self, url: str, *, prefix: str = "termloom") -> None:
        self._url, self._prefix = url, prefix
        self._queues: dict[str, _Queue] = {}
        self._consumers: set[_Deliveries] = set()
        self.client: Client
        self.jetstream: Any
        self._closed = False

    async def __aenter__(self) -> Self:
        import nats
        import nats.errors

        try:
            with anyio.fail_after(CONNECT_S):  # the client by itself tries for two minutes
                self.client = await nats.connect(
                    self._url,
                    name="termloom",
                    reconnect_time_wait=0.5,
                    error_cb=_quiet,
                    closed_cb=self._on_closed,
                    reconnected_cb=self._on_reconnected,
                )
        except (OSError, TimeoutError, nats.errors.Error) as error:
            reason = str(error) or f"none within {CONNECT_S:g} s"
            raise UserError(self._url, f"no NATS server answers: {reason}", "Start one with JetStream on") from None
        self.jetstream = self.client.jetstream(timeout=_CONFIRM_S)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._on_closed()
        with anyio.CancelScope(shield=True):
            await self.client.close()

    async def _on_closed(self) -> None:
        """By us, or by the client after it has tried long enough to reconnect."""
        self._closed = True
        for queue in self._queues.values():
            queue.room.notify()

    async def _on_reconnected(self) -> None:
        for consumer in self._consumers:
            consumer.ask_again()

    def check_open(self, queue: str) -> None:
        if self._closed:
            raise BusClosed(queue)

    async def declare(self, queue: str, options: QueueOptions) -> None:
        declared = _Queue(self, queue, options, Names(self._prefix, queue))
        if self._queues:
            await declared.until_taken(declared.declare)
        else:  # the first one shows at once whether this server has what a queue needs
            await declared.declare()
        self._queues[queue] = declared

    async def publish(self, queue: str, body: bytes, *, key: str) -> None:
        self.check_open(queue)
        await self._queues[queue].publish(key, body, once=key)

    @asynccontextmanager
    async def consume(self, queue: str, *, slots: int) -> AsyncIterator[AsyncIterator[NatsDelivery]]:
        self.check_open(queue)
        deliveries = _Deliveries(self._queues[queue], slots)
        await deliveries.enter()
        self._consumers.add(deliveries)
        try:
            yield deliveries
        finally:
            self._consumers.discard(deliveries)
            with anyio.CancelScope(shield=True):
                await deliveries.leave()

    async def withdraw(self, queue: str, *, key: str) -> None:
        self.check_open(queue)
        with _only_told():
            await self._queues[queue].withdraw(key)

    async def untaken(self, queue: str, *, key: str) -> bool:
        self.check_open(queue)
        with _only_told():
            return await self._queues[queue].untaken(key)
        return False

    async def state(self, queue: str) -> QueueState:
        with _answered(queue):
            return await self._state(queue)

    async def _state(self, queue: str) -> QueueState:
        source = self._queues[queue]
        stream = (await self.jetstream.stream_info(source.names.stream)).state
        dead = (await self.jetstream.stream_info(source.names.dead_stream)).state
        consumer = await self.jetstream.consumer_info(source.names.stream, _CONSUMER)
        delays, now = await source.delays(), time.time()
        delayed = sum(due > now for due in delays)
        return QueueState(
            queue=queue,
            ready=consumer.num_pending + len(delays) - delayed,
            leased=max(0, consumer.num_ack_pending - len(delays)),
            delayed=delayed,
            dead=dead.messages,
            oldest_s=await source.oldest_s(stream.first_seq) if stream.messages else 0.0,
        )

    async def dead_letters(self, queue: str) -> list[DeadLetter]:
        source = self._queues[queue]
        return [
            DeadLetter(
                queue=queue,
                key=letter.envelope.key,
                body=await source.body(letter.envelope),
                reason=letter.reason,
                attempts=letter.attempts,
            )
            for letter in await source.dead()
        ]

    async def requeue(self, queue: str, key: str) -> bool:
        self.check_open(queue)
        source = self._queues[queue]
        letter = await source.exhume(key)
        if letter is None:
            return False
        await source.publish(key, await source.body(letter.envelope), once=f"{key} again {time.time_ns()}")
        return True


class _Deliveries:
    """The iterator of one consumer.

    It pulls by itself, for as many as it has free slots: the client's own pull loses a message that arrives while it is
    being cancelled, which nobody would see until the lease runs out. Here it arrives in a buffer, and leaving gives the
    buffer back.
    """

    def __init__(self, queue: _Queue, slots: int) -> None:
        self._queue, self._slots = queue, slots
        self._changed = Signal()
        self._arrived: deque[Msg] = deque()
        self._held: list[NatsDelivery] = []
        self._expected = 0
        """Messages asked for that have not come."""
        self._asked_until = 0.0
        self._subscription: Subscription

    async def enter(self) -> None:
        client = self._queue.bus.client
        self._inbox = client.new_inbox()
        self._subscription = await client.subscribe(self._inbox, cb=self._on_message)

    async def leave(self) -> None:
        """Give back what is held and what is on its way, so that it is delivered again at once."""
        if self._queue.bus.client.is_closed:
            return  # the server delivers it again when the leases run out
        with anyio.move_on_after(_LEAVE_S), suppress(BusClosed):
            with _only_told():
                await self._subscription.drain()  # type: ignore[no-untyped-call]
            for delivery in self._held:
                await delivery.nack()
            for message in self._arrived:
                with _only_told():
                    await (await self._delivery(message)).nack()

    def ask_again(self) -> None:
        """The requests that lingered at the server are gone."""
        self._expected = 0
        self._changed.notify()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> NatsDelivery:
        while True:
            self._queue.bus.check_open(self._queue.queue)
            now = time.monotonic()
            self._held = [delivery for delivery in self._held if delivery.live]
            await self._ask(now)
            if len(self._held) >= self._slots:
                await self._changed.wait(min(d.until for d in self._held) - now)
            elif self._arrived:
                if delivery := await self._take():
                    return delivery
            else:
                await self._changed.wait(self._asked_until - now)

    async def _take(self) -> NatsDelivery | None:
        """The message that arrived. It leaves the buffer when nothing is left to wait for."""
        delivery = None
        with _redelivered():
            delivery = await self._delivery(self._arrived[0])
            if delivery.attempt > 1:
                await self._queue.unmark_delayed(delivery.key)
            if delivery.attempt > self._queue.options.max_attempts:
                await delivery.give_up()
                delivery = None
        self._arrived.popleft()
        if delivery is not None:
            self._held.append(delivery)
        return delivery

    async def _delivery(self, message: Msg) -> NatsDelivery:
        envelope = decode_envelope(message.data)
        return NatsDelivery(self._queue, message, envelope, await self._queue.body(envelope), self._changed)

    async def _ask(self, now: float) -> None:
        """As many messages as there are free slots, please; the request lingers at the server."""
        if now >= self._asked_until:
            self._expected = 0
        free = self._slots - len(self._held) - len(self._arrived) - self._expected
        if free <= 0 or (self._expected and free * _PULLS < self._slots):
            return
        self._expected += free
        self._asked_until = now + _PULL_S + 1.0
        request = json.dumps({"batch": free, "expires": int(_PULL_S * 1e9)}).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._queue.names.stream}.{_CONSUMER}"
        await self._queue.bus.client.publish(subject, request, reply=self._inbox)

    async def _on_message(self, message: Msg) -> None:
        """A message, or the server's word that a request has ended, with the number of messages it still wanted."""
        headers = message.headers or {}
        if not headers.get("Status"):
            self._arrived.append(message)
            self._expected = max(0, self._expected - 1)
        elif wanted := headers.get("Nats-Pending-Messages"):
            self._expected = max(0, self._expected - int(wanted))
        else:
            self._asked_until = min(self._asked_until, time.monotonic() + _ROOM_S)  # refused: again in a while
        self._changed.notify()


@contextmanager
def _only_told() -> Iterator[None]:
    """Around what a restarting server may not hear without harm: of the mark of a delay a wrong number in `state` is
    left, of a settled body its place in the object store, of what a leaving consumer gives back its lease, of what is
    withdrawn a message that is delivered all the same, of what is untaken somebody who waits for it."""
    from nats.errors import Error

    with suppress(Error):
        yield


@contextmanager
def _redelivered() -> Iterator[None]:
    """Around what a restarting server may not hear about a message under lease: the lease runs out and it is delivered
    again, which every consumer bears."""
    from nats.errors import ConnectionClosedError, Error

    try:
        yield
    except ConnectionClosedError:
        raise
    except Error:
        pass


@contextmanager
def _answered(queue: str) -> Iterator[None]:
    """Around what is asked for to be shown: no answer is told to who asked. Raises: BusSilent, BusClosed."""
    from nats.errors import ConnectionClosedError, Error

    try:
        yield
    except ConnectionClosedError:
        raise BusClosed(queue) from None
    except Error as error:
        raise BusSilent(queue, str(error)) from None


async def _quiet(_: Exception) -> None:
    """Errors come back from the calls that meet them; the client's own log of them would only repeat it."""
