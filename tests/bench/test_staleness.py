"""The staleness problem: without a lag all three arms are one, and a batch is as old as asked."""

import pytest

from bench.staleness import ARMS, train


@pytest.mark.slow
def test_without_a_lag_stale_batches_are_fresh_ones() -> None:
    fresh, decoupled, coupled = (train(arm, lag=0, updates=3, learning_rate=1e-2, seed=1) for arm in ARMS)
    assert coupled == fresh
    assert decoupled.rewards == pytest.approx(fresh.rewards, abs=0.02)
    assert decoupled.gap == pytest.approx(0.0, abs=1e-5)


@pytest.mark.slow
def test_an_old_batch_is_further_from_the_learner() -> None:
    gaps = [train("decoupled", lag=lag, updates=3, learning_rate=1e-2, seed=1).gap for lag in (0, 1, 2)]
    assert gaps == sorted(set(gaps))
