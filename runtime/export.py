"""Trajectories as others read them: chat JSONL for fine-tuning, a Hugging Face data set, ATIF files.

Invariants:
- A file appears whole or not at all, and the same trajectories give the same bytes.
- A conversation is exactly what was said: opening, then answer and observation in turn. What is to be learnt from an
  answer is its `weight`; messages without one are no targets. An episode that began a fresh context is several.
- A trajectory without a reward is no training data and is left out, whatever the threshold.

The threshold `tau` on the share of tests passed chooses what is exported: 1 keeps complete successes, 0 everything.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from runtime.atif import to_atif
from runtime.errors import UserError
from runtime.trajectory import Trajectory, segments

SHARD = "data/train-00000-of-00001.parquet"
"""Where the Hugging Face layout expects the only split."""

_ROWS_AT_ONCE = 500
_CARD = """\
---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
---

Trajectories of terminal agents. `messages` is the conversation; `weight` of an assistant message is its weight in the
loss (injected mistakes are masked with 0, recoveries count), null on all other messages. `share_passed` is the share of
the task's tests that passed at the end, `reward` the verdict.
"""


def share_passed(trajectory: Trajectory) -> float:
    """Share of the tests that passed; the reward itself where a verifier tells no single tests. 0 without a verdict."""
    verdict = trajectory.verdict
    if verdict is None or verdict.reward is None:
        return 0.0
    return verdict.share_passed if verdict.tests else min(1.0, max(0.0, verdict.reward))


def worth(trajectories: Iterable[Trajectory], *, tau: float) -> Iterator[Trajectory]:
    """Those with a reward that passed at least the share `tau` of their tests."""
    return (t for t in trajectories if t.reward is not None and share_passed(t) >= tau)


def messages_of(trajectory: Trajectory) -> list[dict[str, Any]]:
    """The conversation as chat templates take it: role and content, and `weight` on the answers."""
    messages: list[dict[str, Any]] = [{"role": m.role, "content": m.content} for m in trajectory.opening]
    for turn in trajectory.turns:
        messages.append({"role": "assistant", "content": turn.text, "weight": turn.loss_weight})
        if turn.observation is not None:
            messages.append({"role": "user", "content": turn.observation})
    return messages


def row_of(trajectory: Trajectory) -> dict[str, Any]:
    """One line of the chat JSONL, one row of the data set."""
    return {
        "id": trajectory.trajectory_id,
        "task": trajectory.task,
        "attempt": trajectory.attempt,
        "model": trajectory.model,
        "failure": str(trajectory.failure),
        "reward": trajectory.reward,
        "share_passed": round(share_passed(trajectory), 4),
        "messages": messages_of(trajectory),
    }


def _rows(trajectories: Iterable[Trajectory]) -> Iterator[dict[str, Any]]:
    return (row_of(segment) for trajectory in trajectories for segment in segments(trajectory))


def write_chat(trajectories: Iterable[Trajectory], path: Path) -> int:
    """Write chat JSONL; returns the number of lines."""
    count = 0
    with replacing(path) as file:
        for row in _rows(trajectories):
            file.write(json_line(row))
            count += 1
    return count


def write_atif(trajectory: Trajectory, path: Path) -> None:
    """Write one trajectory as an ATIF document."""
    with replacing(path) as file:
        file.write(json.dumps(to_atif(trajectory), indent=1, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def require_parquet() -> None:
    """Raises: UserError when the data set cannot be written."""
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise UserError("export.parquet", "pyarrow is not installed", "Install the extra `data`, or leave it out")


def write_dataset(trajectories: Iterable[Trajectory], directory: Path) -> int:
    """Write a data set in the Hugging Face layout (a card, Parquet under `data/`); returns the number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    message = pa.struct({"role": pa.string(), "content": pa.string(), "weight": pa.float64()})
    texts = dict.fromkeys(("id", "task", "model", "failure"), pa.string())
    numbers = {"attempt": pa.int64(), "reward": pa.float64(), "share_passed": pa.float64()}
    schema = pa.schema({**texts, **numbers, "messages": pa.list_(message)})
    rows, count = _rows(trajectories), 0
    with replacing(directory / SHARD) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        while some := list(itertools.islice(rows, _ROWS_AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(some, schema=schema))
            count += len(some)
    with replacing(directory / "README.md") as file:
        file.write(_CARD.encode())
    return count


def json_line(value: object) -> bytes:
    """One line of JSONL; what is no text (a lone surrogate) becomes a question mark."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` when the block ends well; readers see the old one until then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.partial")
    try:
        with fresh.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
