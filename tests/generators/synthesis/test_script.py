"""What a procedural player knows: our own tasks from their seeds, other tasks from their solution."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from generators.procedural.compose import compose
from generators.roles import RoleFailed
from generators.synthesis.script import composed_again, script_of
from generators.taxonomy import load_taxonomy
from runtime.task import Task
from sandbox.base import BASE_DOCKERFILE
from sandbox.engine import Sandbox
from sandbox.spec import BuildContext, File, SandboxSpec
from tests.generators.running import namespace_engine
from tests.generators.synthesis.parts import count_task, family_task

SCRIPT = r"""#!/usr/bin/env bash
set -euo pipefail
# Copyright notes
# of two lines
mkdir -p out; cd out
for name in a b; do
  # not a thought
  echo "$name" > "$name.txt"
done

cat <<'E' > poem.txt
# not a comment
done
E
sort a.txt \
  b.txt | # the end goes on
  uniq
echo 'one
two'
exit 0
"""


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with namespace_engine(tmp_path / "engine") as engine:
        built = await engine.build(BuildContext(dockerfile=f"{BASE_DOCKERFILE}USER agent\n"))
        async with await engine.create(SandboxSpec(image=built.image)) as sandbox:
            yield sandbox


@pytest.mark.parametrize("index", range(5))
def test_a_task_of_the_families_is_composed_again_from_its_certificate(index: int) -> None:
    blueprint = load_taxonomy().draw(11, index, categories=("security", "database"), levels=(3,))
    assert composed_again(family_task(index)) == compose(blueprint)


def changed(task: Task, **fields: object) -> Task:
    certificate = json.loads(task.certificate or b"")
    return dataclasses.replace(task, certificate=json.dumps(certificate | fields).encode())


def test_what_the_families_would_make_otherwise_is_not_theirs() -> None:
    task = family_task(0)
    solution = File(path="solution/solve.sh", data=b"true\n")
    others = [
        dataclasses.replace(task, certificate=None),
        dataclasses.replace(task, instruction="Something else.\n"),
        dataclasses.replace(task, files=(*(f for f in task.files if f.path != solution.path), solution)),
        changed(task, item_seed=1),
        count_task(),
    ]
    assert [composed_again(other) for other in others] == [None] * len(others)


@pytest.mark.namespace
async def test_a_solution_is_cut_where_bash_would_read_on(sandbox: Sandbox) -> None:
    script = await script_of(count_task(solution=SCRIPT), sandbox)
    assert [(move.step, move.command, move.thought) for move in script.moves] == [
        (0, "mkdir -p out; cd out", "Copyright notes of two lines"),
        (
            1,
            'for name in a b; do\n  # not a thought\n  echo "$name" > "$name.txt"\ndone',
            "The next thing to do takes `for`.",
        ),
        (2, "cat <<'E' > poem.txt\n# not a comment\ndone\nE", "The next thing to do takes `cat`."),
        (3, "sort a.txt \\\n  b.txt | # the end goes on\n  uniq", "The next thing to do takes `sort`."),
        (4, "echo 'one\ntwo'", "The next thing to do takes `echo`."),
    ]


@pytest.mark.namespace
@pytest.mark.parametrize("solution", [None, "#!/bin/bash\n# nothing\nexit 0\n"])
async def test_a_task_that_nobody_can_do_is_no_task_for_a_procedural_player(
    sandbox: Sandbox, solution: str | None
) -> None:
    with pytest.raises(RoleFailed, match="no_solution"):
        await script_of(count_task(solution=solution), sandbox)
