"""Both arrangements of the pipeline bench do the same work: same calls, same ends."""

from __future__ import annotations

from bench.pipeline import _in_batches, _pipelined, _run


async def test_pipeline_and_whole_batches_make_the_same_calls() -> None:
    pipeline, batches = [
        await _run(arrange, tasks=4, concurrency=4, scale=0.001, seed=1) for arrange in (_pipelined, _in_batches)
    ]
    assert pipeline.ended == batches.ended == 4
    assert pipeline.rejected == batches.rejected == 0
    assert pipeline.calls == batches.calls > 4 * 8
