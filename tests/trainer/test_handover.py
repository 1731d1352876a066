"""Weights appear whole, engines take them all or not at all, requests survive the death of an engine."""

from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
import torch

from runtime.errors import UserError
from tests.trainer.policy.contract import PolicyContract
from trainer.handover import PolicyPool, WeightStore, read_weights
from trainer.model import load_model, save_model, small_llama
from trainer.policy.protocol import (
    Continuation,
    HandoverFailed,
    PolicyUnavailable,
    PromptTooLong,
    RequestRefused,
    Sampling,
)
from trainer.policy.torch_engine import TorchEngine
from trainer.routing import FAILURES

SAMPLING = Sampling(max_tokens=4, seed=1)


def tiny(seed):
    return small_llama(11, hidden=32, layers=1, seed=seed)


class Mortal(TorchEngine):
    """A real engine that can be killed, or made to refuse weights, to hang, or to serve others than it says."""

    def __init__(self, model, **more):
        super().__init__(model, **more)
        self.dead = self.full = self.forgetful = self.blind = self.stuck = False
        self.asked, self.hangs_s, self.refusal = 0, 0.0, None

    async def generate(self, ids, sampling, *, request_id):
        self.asked += 1
        if self.refusal:
            raise self.refusal
        if self.hangs_s:
            await anyio.sleep(self.hangs_s)
            raise PolicyUnavailable("mortal", f"no answer within {self.hangs_s} s")
        if self.dead:
            raise PolicyUnavailable("mortal", "connection refused")
        return await super().generate(ids, sampling, request_id=request_id)

    async def unlike(self, weights):
        return None if self.blind else await super().unlike(weights)

    async def update(self, weights, version):
        if self.dead:
            raise PolicyUnavailable("mortal", "connection refused")
        if self.full:
            raise HandoverFailed("mortal", version, "out of memory")
        if self.stuck:
            await anyio.sleep_forever()
        if self.forgetful:
            self._version = version
        else:
            await super().update(weights, version)


class Remote(Mortal):
    """One that runs whether a pool has it or not, as a server does: the test runs it."""

    async def __aenter__(self):
        if self.dead:
            raise PolicyUnavailable("remote", "connection refused")
        return self

    async def __aexit__(self, *exc):
        pass

    @asynccontextmanager
    async def running(self):
        await super().__aenter__()
        try:
            yield self
        finally:
            await super().__aexit__()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    save_model(small_llama(31, hidden=32, layers=2, seed=1), directory)
    return directory


@pytest.fixture(scope="module")
def other_dir(tmp_path_factory):
    store = WeightStore(tmp_path_factory.mktemp("weights"))
    return store.publish(small_llama(31, hidden=32, layers=2, seed=2), 7, probe=(1, 2, 3))


@pytest.fixture
def open_client(model_dir):
    return lambda: PolicyPool({name: TorchEngine(load_model(model_dir), slots=8) for name in "ab"})


class TestContract(PolicyContract):
    """A pool is a policy client like each of its engines."""


class Pauses:
    """The pauses between tries of an engine that is out; a test sees each one begin, and ends it."""

    def __init__(self):
        self._begun, self._over = anyio.Event(), anyio.Event()

    async def __call__(self, _seconds):
        self._begun.set()
        await self._over.wait()

    async def begun(self):
        with anyio.fail_after(30):
            await self._begun.wait()

    async def end(self):
        await self.begun()
        self._begun, over, self._over = anyio.Event(), self._over, anyio.Event()
        over.set()


@pytest.fixture
def pauses():
    return Pauses()


@pytest.fixture
def engines():
    return [Mortal(tiny(7)), Mortal(tiny(7))]


@pytest.fixture
def pool(engines, pauses):
    return PolicyPool({"a": engines[0], "b": engines[1]}, patience_s=60, sleep=pauses)


@pytest.fixture
def weights(tmp_path):
    store = WeightStore(tmp_path / "weights")
    return lambda version, seed=3: store.publish(tiny(seed), version, probe=(1, 2, 3, 4))


def test_a_version_appears_whole_with_its_fingerprint_and_loads(tmp_path, weights):
    path = weights(12)
    assert path.name == "v00000012"
    assert len(read_weights(path).logprobs) == 3
    assert load_model(path).config.vocab_size == 11
    assert [p.name for p in path.parent.iterdir()] == ["v00000012"]


def test_damage_is_found(weights):
    path = weights(1)
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "model.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        read_weights(path)
    (path / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"manifest\.json"):
        read_weights(path)


def test_only_versions_in_use_are_kept(tmp_path, weights):
    for version in (1, 2, 3):
        weights(version)
    WeightStore(tmp_path / "weights").prune({1, 3})
    assert sorted(p.name for p in (tmp_path / "weights").iterdir()) == ["v00000001", "v00000003"]


async def test_every_engine_takes_the_new_weights(pool, engines, weights):
    async with pool:
        await pool.update(weights(4), 4)
        assert pool.version == 4
        assert [engine.version for engine in engines] == [4, 4]
        got = await pool.generate([1, 2], SAMPLING, request_id="x")
        assert set(got.versions) == {4}


async def test_damaged_weights_reach_no_engine(pool, engines, weights):
    async with pool:
        path = weights(4)
        (path / "model.safetensors").write_bytes(b"")
        with pytest.raises(HandoverFailed, match="damaged"):
            await pool.update(path, 4)
        assert [engine.version for engine in engines] == [0, 0]
        assert pool.version == 0


async def test_an_engine_that_fails_the_hand_over_gets_no_requests_until_it_has_taken_the_weights(
    pool, engines, weights, pauses
):
    async with pool:
        engines[0].dead = True
        await pool.update(weights(1), 1)
        assert pool.out == {"a": "connection refused"}
        for i in range(4):
            assert set((await pool.generate([1], SAMPLING, request_id=f"r{i}")).versions) == {1}
        assert engines[0].asked == 0
        await pauses.end()
        await pauses.begun()
        assert pool.out == {"a": "connection refused"}
        engines[0].dead = False
        await pauses.end()
        with anyio.fail_after(30):
            while engines[0].asked == 0:
                await pool.generate([1], SAMPLING, request_id="again")
        assert pool.out == {}
        assert engines[0].version == 1


@pytest.mark.parametrize(("blind", "why"), [(False, "its checksums differ"), (True, "off the learner's")])
async def test_an_engine_that_says_it_has_the_weights_but_has_not_is_found_out(pool, engines, weights, blind, why):
    async with pool:
        engines[1].forgetful, engines[1].blind = True, blind
        await pool.update(weights(1), 1)
        assert why in pool.out["b"]
        assert pool.checked["checksums_equal"] == 1  # of those in routing


async def test_when_no_engine_takes_the_weights_the_hand_over_fails(pool, engines, weights):
    async with pool:
        engines[0].full = engines[1].full = True
        with pytest.raises(HandoverFailed, match="a: out of memory; b: out of memory"):
            await pool.update(weights(1), 1)


async def test_a_request_of_a_dying_engine_is_answered_by_another(pool, engines):
    async with pool:
        engines[0].dead = True
        got = await pool.generate([1, 2], SAMPLING, request_id="x")
        assert isinstance(got, Continuation)
        engines[1].dead = True
        with pytest.raises(PolicyUnavailable, match="connection refused"):
            await pool.generate([1, 2], SAMPLING, request_id="y")


async def test_the_time_that_failing_engines_took_is_waiting_and_not_the_models(pool, engines):
    async with pool:
        engines[0].hangs_s = 0.3
        got = await pool.generate([1, 2], SAMPLING, request_id="x")
        assert engines[0].asked == engines[1].asked == 1
        assert got.queue_s >= 0.3


async def test_a_request_that_an_engine_refuses_says_nothing_of_the_engine(pool, engines):
    async with pool:
        engines[0].refusal = RequestRefused("mortal", "HTTP 400")
        for i in range(FAILURES + 1):
            await pool.generate([1], SAMPLING, request_id=f"r{i}")
        assert engines[0].asked == engines[1].asked == FAILURES + 1
        assert pool.out == {}
        engines[1].refusal = RequestRefused("mortal", "HTTP 400")
        with pytest.raises(PolicyUnavailable, match="HTTP 400"):
            await pool.generate([1], SAMPLING, request_id="nobody takes it")


async def test_a_prompt_that_is_too_long_is_told_at_once(pool, engines):
    async with pool:
        engines[0].refusal = PromptTooLong("mortal", "too long")
        for i in range(FAILURES + 1):
            with pytest.raises(PromptTooLong):
                await pool.generate([1], SAMPLING, request_id=f"r{i}")
        assert engines[1].asked == 0
        assert pool.out == {}


async def test_an_engine_that_is_not_there_at_the_start_comes_in_later_with_the_newest_weights(weights, pauses):
    late = Remote(tiny(7))
    late.dead = True
    async with late.running(), PolicyPool({"a": late, "b": Mortal(tiny(7))}, sleep=pauses) as pool:
        assert pool.out == {"a": "connection refused"}
        await pool.update(weights(1), 1)
        await pauses.end()
        await pauses.begun()
        assert pool.out == {"a": "connection refused"}
        late.dead = False
        await pauses.end()
        with anyio.fail_after(30):
            while pool.out:
                await pool.generate([1], SAMPLING, request_id="until it is in")
        assert late.version == 1
        assert await late.unlike(weights(1)) == []


async def test_an_engine_that_comes_late_and_is_unfit_ends_nothing(weights, pauses):
    class Unfit(Remote):
        async def __aenter__(self):
            await super().__aenter__()
            raise UserError("server", "takes at most 256 tokens", "Start it with more")

    late = Unfit(tiny(7))
    late.dead = True
    async with late.running(), PolicyPool({"a": late, "b": Mortal(tiny(7))}, sleep=pauses) as pool:
        await pool.update(weights(1), 1)
        late.dead = False
        for _ in range(2):
            await pauses.end()
        await pauses.begun()
        assert pool.out == {"a": "server: takes at most 256 tokens. Start it with more"}
        await pool.generate([1], SAMPLING, request_id="the other one answers")


async def test_before_any_hand_over_an_engine_that_comes_late_serves_no_older_weights_than_the_others(pauses):
    late, newer = Remote(tiny(7), version=2), Mortal(tiny(7), version=3)
    late.dead = True
    async with late.running(), PolicyPool({"a": late, "b": newer}, sleep=pauses) as pool:
        late.dead = False
        await pauses.end()
        await pauses.begun()
        assert pool.out == {"a": "it serves version 2, not 3"}


async def test_when_no_engine_is_there_the_pool_does_not_start():
    engines = {name: Remote(tiny(7)) for name in "ab"}
    for engine in engines.values():
        engine.dead = True
    with pytest.raises(PolicyUnavailable, match="connection refused"):
        async with PolicyPool(engines):
            pass


async def test_an_engine_that_keeps_failing_is_out_until_it_serves_the_learners_weights_again(
    pool, engines, weights, pauses
):
    async with pool:
        await pool.update(weights(1), 1)
        engines[0].dead = True
        for i in range(FAILURES + 3):
            await pool.generate([1], SAMPLING, request_id=f"r{i}")
        assert engines[0].asked == FAILURES
        assert "3 requests in a row failed" in pool.out["a"]
        with torch.no_grad():  # it comes back with other weights than it had
            engines[0]._model.lm_head.weight.add_(1.0)
        engines[0].dead = False
        await pauses.end()
        with anyio.fail_after(30):
            while engines[0].asked == FAILURES:
                await pool.generate([1], SAMPLING, request_id="again")
        assert await engines[0].unlike(weights(1)) == []


async def test_requests_wait_while_no_engine_is_in_routing(pool, engines, weights, pauses):
    async with pool:
        await pool.update(weights(1), 1)
        for engine in engines:
            engine.dead = True
        for i in range(FAILURES - 1):
            with pytest.raises(PolicyUnavailable):
                await pool.generate([1], SAMPLING, request_id=f"r{i}")
        answers = []

        async def ask(name):
            answers.append(await pool.generate([1], SAMPLING, request_id=name))

        async with anyio.create_task_group() as group:
            group.start_soon(ask, "the last one that fails")
            await pauses.begun()
            assert pool.router.closed
            group.start_soon(ask, "patient")
            await anyio.lowlevel.checkpoint()
            assert answers == []
            engines[1].dead = False
            await pauses.end()
        assert [set(got.versions) for got in answers] == [{1}, {1}]
        assert min(got.queue_s for got in answers) > 0


async def test_a_hand_over_that_reaches_no_engine_waits_for_one(pool, engines, weights, pauses):
    async with pool:
        engines[0].dead = engines[1].dead = True
        async with anyio.create_task_group() as group:
            group.start_soon(pool.update, weights(1), 1)
            await pauses.begun()
            engines[1].dead = False
            await pauses.end()
        assert pool.version == 1
        assert list(pool.out) == ["a"]


async def test_one_deadline_holds_for_all_engines(engines, weights):
    engines[0].stuck = engines[1].stuck = True
    async with PolicyPool({"a": engines[0], "b": engines[1]}, deadline_s=0.1) as pool:
        with pytest.raises(HandoverFailed, match=r"version 1 was not done in 0\.1 s"):
            await pool.update(weights(1), 1)


async def test_a_hand_over_does_not_wait_for_an_engine_that_is_out(pool, engines, weights, pauses):
    async with pool:
        engines[0].dead = True
        await pool.update(weights(1), 1)
        engines[0].dead, engines[0].stuck = False, True
        await pauses.end()
        with anyio.fail_after(60):
            while not pool._giving:
                await anyio.wait_all_tasks_blocked()
            await pool.update(weights(2), 2)  # while the try to give it version 1 hangs
        assert list(pool.out) == ["a"]
        engines[0].stuck = False
        await pauses.end()
        with anyio.fail_after(30):
            while pool.out:
                await pool.generate([1], SAMPLING, request_id="until it is back")
        assert [engine.version for engine in engines] == [2, 2]


async def test_weights_of_an_engine_that_is_still_given_them_are_in_use(pool, engines, weights):
    async with pool:
        engines[0].stuck = True
        async with anyio.create_task_group() as group:
            group.start_soon(pool.update, weights(5), 5)
            with anyio.fail_after(30):
                while not pool._giving:
                    await anyio.wait_all_tasks_blocked()
            assert 5 in pool.in_use
            group.cancel_scope.cancel()
        assert not pool._giving


async def test_an_engine_that_took_weights_while_newer_ones_were_given_is_not_back(pool, weights):
    async with pool:
        await pool.update(weights(1), 1)
        older, seat = pool._given, pool.router.seats[0]
        await pool.update(weights(2), 2)
        pool.router.leave(seat, "it was started again")
        await pool._hand_over(seat, older)
        assert pool.out == {"a": "it was started again"}


async def test_with_all_engines_out_a_hand_over_is_what_brings_one_back(pool, engines, weights, pauses):
    async with pool:
        engines[0].full = engines[1].full = True
        with pytest.raises(HandoverFailed):
            await pool.update(weights(1), 1)
        engines[1].full = False
        async with anyio.create_task_group() as group:
            group.start_soon(pool.update, weights(2), 2)
            with anyio.fail_after(30):
                while pool._given.number == 1:
                    await anyio.wait_all_tasks_blocked()
            await pauses.end()
        assert pool.version == 2
        assert list(pool.out) == ["a"]


async def test_the_check_of_a_hand_over_is_told(pool, weights):
    async with pool:
        await pool.update(weights(1), 1)
        told = pool.checked
        assert told["probe_gap_max"] < 1e-5
        assert told["checksums_equal"] == 1
        assert told["engines_out"] == 0


async def test_requests_go_to_the_engine_with_the_least_to_do(pool, engines):
    async with pool, anyio.create_task_group() as group:
        for i in range(8):
            group.start_soon(lambda i=i: pool.generate([1], SAMPLING, request_id=f"r{i}"))
    assert [engine.asked for engine in engines] == [4, 4]
