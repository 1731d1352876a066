"""Tasks of other systems, imported, tried out in real sandboxes, and written back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from generators.verify import verify_all
from runtime.formats.transfer import export_all, import_all
from runtime.task import read_task
from tests.generators.running import generate, namespace_engine, new_place, settings_for
from tests.runtime.formats.samples import (
    ENDLESS_TERMINALS,
    HARBOR,
    SOLUTION_YAML,
    TERMINAL_BENCH,
    tree,
    write_files,
)

pytestmark = pytest.mark.namespace

SAMPLES = {
    "harbor": {"one": HARBOR, "two": HARBOR | {"tests/test.sh": "echo 0.0 > /logs/verifier/reward.txt\n"}},
    "terminal-bench": {
        "one": TERMINAL_BENCH,
        "listed": {k: v for k, v in TERMINAL_BENCH.items() if k != "solution.sh"} | {"solution.yaml": SOLUTION_YAML},
        "wrong": TERMINAL_BENCH | {"solution.sh": "echo 416 > /home/agent/count.txt\n"},
        "done": TERMINAL_BENCH | {"run-tests.sh": "true\n"},
        "online": TERMINAL_BENCH | {"run-tests.sh": "curl -sS -m 60 https://tests.invalid/run\n"},
    },
    "endless-terminals": {"one": ENDLESS_TERMINALS},
}
PROBLEMS = {
    "two": "solution/solve.sh does not pass: agent_fail",
    "wrong": "solution/solve.sh does not pass: agent_fail; ",
    "done": "doing nothing passes",
    "online": "solution/solve.sh does not pass (it wants a network, which grading has not: Could not resolve)",
}


@pytest.mark.parametrize("name", SAMPLES)
async def test_a_set_is_imported_verified_and_exported_equal(tmp_path: Path, name: str) -> None:
    for task, files in SAMPLES[name].items():
        write_files(tmp_path / "set" / task, files)
    done = import_all([tmp_path / "set"], tmp_path / "tasks", format_name="auto", engine="namespace")
    assert [(task.directory, task.format) for task in done] == [
        (tmp_path / "tasks" / task, name) for task in sorted(SAMPLES[name])
    ]
    assert {task.source.name for task in done if task.because} == {"online"} & set(SAMPLES[name])
    settings = settings_for(tmp_path)
    async with namespace_engine(tmp_path / "engine") as engine:
        found = await verify_all([task.directory for task in done if task.directory], engine=engine, settings=settings)
    for directory, problems in found.items():
        expected = PROBLEMS.get(directory.name)
        assert [problem[: len(expected or "")] for problem in problems] == ([expected] if expected else []), problems
    export_all([tmp_path / "tasks"], tmp_path / "back", format_name=name)
    if name == "harbor":
        assert tree(tmp_path / "back") == tree(tmp_path / "tasks")
    else:
        assert tree(tmp_path / "back") == tree(tmp_path / "set")


async def test_a_generated_task_goes_through_every_format_and_still_holds(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, "generate.seed=5", "generate.levels=[3]", "generate.attempts_least=1")
    formats = ("terminal-bench", "endless-terminals")
    async with namespace_engine(tmp_path / "engine") as engine:
        summary = await generate(
            settings.model_copy(update={"generate": settings.generate.model_copy(update={"count": 1})}),
            new_place(settings, tmp_path / "made"),
            engine,
        )
        source = tmp_path / "made" / summary.tasks[0].directory
        before = read_task(source)
        for name in formats:
            export_all([source], tmp_path / name, format_name=name)
            back = import_all([tmp_path / name], tmp_path / f"{name}-back", format_name=name, engine="namespace")
            assert [(task.refused, task.because) for task in back] == [((), ())]
            again = read_task(tmp_path / f"{name}-back" / source.name)
            assert (again.instruction, again.inventory) == (before.instruction, before.inventory)
            for folder in ("environment", "solution"):
                assert tree(tmp_path / f"{name}-back" / source.name / folder) == tree(source / folder)
        # the definition alone must build the same
        shutil.rmtree(tmp_path / "endless-terminals-back")
        definition = tmp_path / "endless-terminals" / source.name
        (definition / "environment" / "Dockerfile").unlink()
        import_all([definition], tmp_path / "endless-terminals-back", format_name="auto", engine="namespace")
        found = await verify_all(
            [tmp_path / f"{name}-back" / source.name for name in formats], engine=engine, settings=settings
        )
    assert list(found.values()) == [[], []]
