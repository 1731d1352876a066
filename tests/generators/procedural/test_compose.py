"""Blueprint in, whole task out: pure, level by level, in every style, and right when it is played."""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from generators.messages import Blueprint
from generators.procedural import library
from generators.procedural.compose import ProceduralTask, commands_for, compose, module_of
from generators.procedural.players import CHEATS, unstated_paths, with_mistake
from sandbox.base import BASE_DOCKERFILE
from sandbox.spec import AGENT_HOME

from .harness import Ground, play_task

STYLES = ("exact", "conversational", "brief", "vague")


def blueprint(seed: int, *, level: int = 5, category: str = "log management", style: str = "exact") -> Blueprint:
    return Blueprint(
        index=seed,
        seed=seed,
        category=category,
        complexity="a short chain",
        scenario="an auditor tracing who changed what",
        tier=1,
        tools=("sort", "tar", "jq"),
        level=level,
        style=style,
    )


def tasks() -> Iterable[ProceduralTask]:
    """A few hundred tasks over all categories, levels and styles."""
    for seed in range(200):
        yield compose(
            blueprint(
                seed,
                level=1 + seed % 10,
                category=library.CATEGORIES[seed % len(library.CATEGORIES)],
                style=STYLES[seed % len(STYLES)],
            )
        )


def test_same_blueprint_gives_equal_task_and_another_seed_another_one() -> None:
    first = compose(blueprint(1))
    compose.cache_clear()
    assert compose(blueprint(1)) == first
    assert compose(blueprint(2)).draft.instruction != first.draft.instruction
    assert compose(blueprint(2)).reference != first.reference


@pytest.mark.parametrize("level", range(1, 11))
def test_number_of_commands_follows_the_level(level: int) -> None:
    for seed in range(30):
        count = len(compose(blueprint(seed, level=level)).reference.commands)
        assert count == level if level < 10 else 10 <= count <= 13


def test_level_ten_takes_ten_to_twelve() -> None:
    assert {commands_for(10, random.Random(seed)) for seed in range(50)} == {10, 11, 12}


def test_higher_levels_join_pieces_of_different_families() -> None:
    for seed in range(30):
        pieces = compose(blueprint(seed, level=8)).pieces
        assert 2 <= len(pieces) <= 4
        assert len({piece.family for piece in pieces}) == len(pieces)
    assert len(compose(blueprint(0, level=3)).pieces) == 1


@pytest.mark.parametrize("category", library.CATEGORIES)
def test_first_piece_is_of_the_category(category: str) -> None:
    task = compose(blueprint(3, category=category))
    assert task.draft.category == category
    assert library.named(task.pieces[0].family).category == category


def test_unknown_category_falls_back_to_the_tools() -> None:
    task = compose(replace(blueprint(4, category="alchemy"), tools=("jq",)))
    assert "jq" in library.named(task.pieces[0].family).tools
    assert task.draft.category == library.named(task.pieces[0].family).category


def test_truth_is_neither_in_instruction_nor_environment() -> None:
    for task in tasks():
        texts = [task.draft.instruction, task.environment.dockerfile, task.environment.initial_tests]
        texts += [file.data.decode(errors="replace") for file in task.environment.files]
        assert not [text for text in task.draft.truth.strings for given in texts if text in given]


def test_instruction_states_every_path_that_is_tested() -> None:
    for task in tasks():
        assert unstated_paths(task.draft.instruction, task.environment, task.final_tests) == ()


def test_environment_is_the_base_and_files_of_the_agent() -> None:
    for task in tasks():
        dockerfile = task.environment.dockerfile
        assert dockerfile.startswith(BASE_DOCKERFILE)
        own = dockerfile.removeprefix(BASE_DOCKERFILE).splitlines()
        assert [line.split()[0] for line in own if not line.startswith("RUN")] in (
            ["COPY", "USER", "WORKDIR"],
            ["USER", "WORKDIR"],
        )
        assert own[-1] == f"WORKDIR {AGENT_HOME}"
        for line in own:
            assert not line.startswith("RUN ") or json.loads(line.removeprefix("RUN "))[0] == "/bin/bash"
        assert all(file.path.startswith("files/") and ".." not in file.path for file in task.environment.files)


def test_test_modules_parse_and_name_each_function_once() -> None:
    for task in tasks():
        for module in (task.environment.initial_tests, task.final_tests):
            names = [node.name for node in ast.parse(module).body if isinstance(node, ast.FunctionDef)]
            assert len(names) == len(set(names))
            assert any(name.startswith("test_") for name in names)


def test_function_that_occurs_twice_gets_a_number() -> None:
    source = "def test_out() -> None:\n    assert True\n"
    assert re.findall(r"def (test_\w+)", module_of([source, source])) == ["test_out", "test_out_2"]


def test_source_without_test_function_is_refused() -> None:
    with pytest.raises(AssertionError, match="without a test function"):
        module_of(["def helper() -> None: ..."])


def test_mistakes_point_at_commands_of_their_own_piece() -> None:
    task = compose(blueprint(5, level=9))
    start = 0
    for piece in task.pieces:
        mine = [m for m in task.mistakes if start <= m.step < start + len(piece.commands)]
        assert [replace(m, step=m.step - start) for m in mine] == list(piece.mistakes)
        start += len(piece.commands)


def test_difficulty_and_title_are_for_people() -> None:
    assert [compose(blueprint(6, level=level)).draft.difficulty for level in (1, 3, 4, 6, 7, 10)] == [
        "easy", "easy", "medium", "medium", "hard", "hard",
    ]  # fmt: skip
    for task in tasks():
        assert 5 <= len(task.draft.title) <= 70
        assert "\n" not in task.draft.title


@pytest.mark.parametrize("style", STYLES)
def test_every_style_keeps_the_tests_and_changes_the_words(style: str) -> None:
    exact, other = compose(blueprint(7, level=6)), compose(blueprint(7, level=6, style=style))
    assert other.final_tests == exact.final_tests
    assert (other.draft.instruction == exact.draft.instruction) == (style == "exact")


@pytest.mark.namespace
@pytest.mark.parametrize("seed", range(6))
def test_whole_task_is_right_when_played(ground: Ground, seed: int) -> None:
    task = compose(
        blueprint(
            40 + seed,
            level=5 + seed,
            category=library.CATEGORIES[seed % len(library.CATEGORIES)],
            style=STYLES[seed % 4],
        )
    )
    mistakes = random.Random(seed).sample(task.mistakes, 4)
    cheats = [CHEATS[name](task.draft.instruction) for name in sorted(CHEATS)]
    wrong = [*(with_mistake(task.reference, mistake) for mistake in mistakes), *cheats]
    start, right, *others = play_task(ground, task, [task.reference.commands, *wrong])
    assert start.initial is not None
    assert not any(start.initial.values())
    assert right.failures == []
    assert not start.passed
    assert [way for way, played in zip(wrong, others, strict=True) if played.passed] == []
    errors = [text for played in (start, *others) for text in played.outcome.values() if text.startswith("error")]
    assert errors == []
