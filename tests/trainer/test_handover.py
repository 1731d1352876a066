"""Weights appear whole, engines take them all or not at all, requests survive the death of an engine."""

import anyio
import pytest

from tests.trainer.policy.contract import PolicyContract
from trainer.handover import COOL_S, FAILURES, PolicyPool, WeightStore, read_weights
from trainer.model import load_model, save_model, small_llama
from trainer.policy.protocol import Continuation, HandoverFailed, PolicyUnavailable, Sampling
from trainer.policy.torch_engine import TorchEngine

SAMPLING = Sampling(max_tokens=4, seed=1)


def tiny(seed):
    return small_llama(11, hidden=32, layers=1, seed=seed)


class Mortal(TorchEngine):
    """A real engine that can be killed, or made to serve other weights than it says."""

    def __init__(self, model, **more):
        super().__init__(model, **more)
        self.dead = self.forgetful = False
        self.asked = 0

    async def generate(self, ids, sampling, *, request_id):
        self.asked += 1
        if self.dead:
            raise PolicyUnavailable("mortal", "connection refused")
        return await super().generate(ids, sampling, request_id=request_id)

    async def update(self, weights, version):
        if self.dead:
            raise HandoverFailed("mortal", version, "connection refused")
        if self.forgetful:
            self._version = version
        else:
            await super().update(weights, version)


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


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def engines():
    return [Mortal(tiny(7)), Mortal(tiny(7))]


@pytest.fixture
def pool(engines, clock):
    return PolicyPool({"a": engines[0], "b": engines[1]}, clock=clock)


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


async def test_an_engine_that_fails_the_hand_over_gets_no_requests_until_one_succeeds(pool, engines, weights):
    async with pool:
        engines[0].dead = True
        await pool.update(weights(1), 1)
        assert pool.out == {"a": "connection refused"}
        engines[0].dead = False
        for i in range(4):
            assert set((await pool.generate([1], SAMPLING, request_id=f"r{i}")).versions) == {1}
        assert engines[0].asked == 0
        await pool.update(weights(2, seed=5), 2)
        assert pool.out == {}


async def test_an_engine_that_says_it_has_the_weights_but_has_not_is_found_out(pool, engines, weights):
    async with pool:
        engines[1].forgetful = True
        await pool.update(weights(1), 1)
        assert "off the learner's" in pool.out["b"]


async def test_when_no_engine_takes_the_weights_the_hand_over_fails(pool, engines, weights):
    async with pool:
        engines[0].dead = engines[1].dead = True
        with pytest.raises(HandoverFailed, match="a: connection refused; b: connection refused"):
            await pool.update(weights(1), 1)


async def test_a_request_of_a_dying_engine_is_answered_by_another(pool, engines):
    async with pool:
        engines[0].dead = True
        got = await pool.generate([1, 2], SAMPLING, request_id="x")
        assert isinstance(got, Continuation)
        engines[1].dead = True
        with pytest.raises(PolicyUnavailable, match="connection refused"):
            await pool.generate([1, 2], SAMPLING, request_id="y")


async def test_an_engine_that_keeps_failing_rests_and_is_then_tried_once(pool, engines, clock):
    async with pool:
        engines[0].dead = True
        for i in range(FAILURES + 3):
            await pool.generate([1], SAMPLING, request_id=f"r{i}")
        assert engines[0].asked == FAILURES
        clock.now = COOL_S
        await pool.generate([1], SAMPLING, request_id="trial")
        assert engines[0].asked == FAILURES + 1
        await pool.generate([1], SAMPLING, request_id="rest")
        assert engines[0].asked == FAILURES + 1
        clock.now, engines[0].dead = 3 * COOL_S, False
        await pool.generate([1], SAMPLING, request_id="back")
        await pool.generate([1], SAMPLING, request_id="again")
        assert engines[0].asked == FAILURES + 3


async def test_requests_go_to_the_engine_with_the_least_to_do(pool, engines):
    async with pool, anyio.create_task_group() as group:
        for i in range(8):
            group.start_soon(lambda i=i: pool.generate([1], SAMPLING, request_id=f"r{i}"))
    assert [engine.asked for engine in engines] == [4, 4]
