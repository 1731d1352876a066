"""From a blueprint to a whole task: families chosen, depths shared out, text, environment, tests and reference put together.

Invariants:
- `compose` is a pure function of the blueprint: everything random comes from its seed.
- The number of reference commands follows the level: level n takes about n, level 10 takes ten to twelve.
- Each piece lives in its own directory under the agent's home, and the instruction names it.
- Truth stays in `Draft.truth`: neither instruction nor environment holds any of its strings.
"""

from __future__ import annotations

import functools
import json
import random
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from generators.messages import Blueprint, Draft, Environment, Mistake, Reference, Truth
from generators.procedural import library, words
from generators.procedural.families.basics import TERSE_PLACES
from generators.procedural.family import Family, Piece, Place
from generators.procedural.prelude import PRELUDE
from generators.procedural.story import tell
from sandbox.base import SERVICE_PACKAGES, base_dockerfile
from sandbox.services import entry_point
from sandbox.spec import AGENT_HOME, File

CONTEXT_DIR = "files"
"""Where the build context holds what is copied into the agent's home."""


@dataclass(frozen=True, kw_only=True)
class ProceduralTask:
    """Everything about a task, known by construction."""

    draft: Draft
    environment: Environment
    final_tests: str
    reference: Reference
    mistakes: tuple[Mistake, ...]
    """`step` counts within `reference.commands`."""
    pieces: tuple[Piece, ...]


@functools.lru_cache(maxsize=256)
def compose(blueprint: Blueprint) -> ProceduralTask:
    """The task of this blueprint. A category without families falls back to families that share a tool, else to any."""
    rng = random.Random(blueprint.seed)
    families = _cast_families(rng, blueprint)
    depths = _share(rng, commands_for(blueprint.level, rng), families)
    places = _places(rng, blueprint.style, len(families))
    pieces = tuple(
        family.draw(random.Random(rng.getrandbits(64)), depth, place)
        for family, depth, place in zip(families, depths, places, strict=True)
    )
    return ProceduralTask(
        draft=_draft(rng, blueprint, families, pieces),
        environment=_environment(pieces, places),
        final_tests=module_of(check for piece in pieces for check in piece.checks),
        reference=Reference(
            commands=tuple(command for piece in pieces for command in piece.commands),
            thoughts=tuple(thought for piece in pieces for thought in piece.thoughts),
        ),
        mistakes=tuple(_offset_mistakes(pieces)),
        pieces=pieces,
    )


def commands_for(level: int, rng: random.Random) -> int:
    """How many commands a level asks for."""
    return level if level < 10 else rng.randint(10, 12)


def module_of(sources: Iterable[str]) -> str:
    """A pytest module of these functions behind the prelude; a name that occurs again gets a number."""
    seen: dict[str, int] = {}
    parts = [PRELUDE.rstrip("\n")]
    for source in sources:
        name = re.search(r"^def (test_\w+)\(", source, re.MULTILINE)
        assert name is not None, f"a check without a test function: {source[:80]!r}"
        seen[name[1]] = count = seen.get(name[1], 0) + 1
        renamed = source if count == 1 else source.replace(f"def {name[1]}(", f"def {name[1]}_{count}(", 1)
        parts.append(renamed.strip("\n"))
    return "\n\n\n".join(parts) + "\n"


def setup_script(piece: Piece, place: Place) -> str:
    """The piece's set-up as one bash script: stops at the first failure, same time zone and locale everywhere."""
    directory = shlex.quote(place.directory)
    lines = [
        "set -eu",
        "umask 022",
        f"export HOME={AGENT_HOME} LC_ALL=C.UTF-8 TZ=UTC",
        f"mkdir -p {directory}",
        f"cd {directory}",
    ]
    return "\n".join([*lines, *piece.setup])


def _cast_families(rng: random.Random, blueprint: Blueprint) -> list[Family]:
    total = min(blueprint.level, 10)
    members = library.members(blueprint.style, blueprint.families)
    fitting = _fitting(members, blueprint)
    first = rng.choice([family for family in fitting if family.depths[0] <= total] or fitting)
    chosen = [first]
    for _ in range(_piece_count(rng, total) - 1):
        others = [family for family in members if family not in chosen and family.depths[0] == 1]
        if others:
            weights = [1 + 2 * len(set(family.tools) & set(blueprint.tools)) for family in others]
            chosen.append(rng.choices(others, weights)[0])
    return chosen


def _fitting(members: Sequence[Family], blueprint: Blueprint) -> Sequence[Family]:
    tools = set(blueprint.tools)
    same_category = [family for family in members if family.category == blueprint.category]
    return same_category or [family for family in members if tools & set(family.tools)] or members


def _piece_count(rng: random.Random, total: int) -> int:
    if total <= 3:
        return 1
    if total <= 5:
        return rng.choices((1, 2), (1, 4))[0]
    return rng.choice((2, 3)) if total <= 7 else rng.choice((3, 4))


def _share(rng: random.Random, total: int, families: Sequence[Family]) -> list[int]:
    depths = [family.depths[0] for family in families]
    while sum(depths) < total:
        room = [index for index, family in enumerate(families) if depths[index] < family.depths[-1]]
        if not room:
            break
        depths[rng.choice(room)] += 1
    return depths


def _places(rng: random.Random, style: str, count: int) -> list[Place]:
    if style == "terse":
        return [Place(directory=directory) for directory in rng.sample(TERSE_PLACES, count)]
    names: dict[str, None] = {}
    while len(names) < count:
        names[words.project(rng)] = None
    return [Place(directory=f"{AGENT_HOME}/{name}") for name in names]


def _draft(rng: random.Random, blueprint: Blueprint, families: Sequence[Family], pieces: Sequence[Piece]) -> Draft:
    truth = tuple(text for piece in pieces for text in piece.truth)
    tags = {piece.family for piece in pieces} | {tool for family in families for tool in family.tools}
    return Draft(
        title=_title(pieces),
        instruction=tell(rng, blueprint, pieces),
        truth=Truth(
            notes=json.dumps({"families": [piece.family for piece in pieces], "answers": truth}), strings=truth
        ),
        category=families[0].category,
        difficulty=_difficulty(blueprint.level),
        tags=tuple(sorted(tags)),
        level=blueprint.level,
    )


def _title(pieces: Sequence[Piece]) -> str:
    first, *rest = [piece.title for piece in pieces]
    if not rest:
        return first
    return f"{first} and {rest[0][0].lower()}{rest[0][1:]}" if len(rest) == 1 else f"{first} and {len(rest)} more jobs"


def _difficulty(level: int) -> Literal["easy", "medium", "hard"]:
    if level <= 3:
        return "easy"
    return "medium" if level <= 6 else "hard"


def _environment(pieces: Sequence[Piece], places: Sequence[Place]) -> Environment:
    files = [file for piece in pieces for file in piece.files]
    services = tuple(service for piece in pieces for service in piece.services)
    scripts, entry = entry_point(services)
    lines = [f"COPY --chown=agent:agent {CONTEXT_DIR}/ {AGENT_HOME}/"] if files else []
    lines += [f"RUN {command}" for piece in pieces for command in piece.root_setup]
    lines.append("USER agent")
    for piece, place in zip(pieces, places, strict=True):
        if piece.setup or not piece.files:
            lines.append("RUN " + json.dumps(["/bin/bash", "-c", setup_script(piece, place)]))
    lines.append(f"WORKDIR {AGENT_HOME}")
    return Environment(
        dockerfile=base_dockerfile(SERVICE_PACKAGES if services else ()) + "\n".join(lines) + "\n" + entry,
        files=(*map(_context_file, files), *scripts),
        initial_tests=module_of(check for piece in pieces for check in piece.initial_checks),
        services=services,
    )


def _context_file(file: File) -> File:
    return replace(file, path=f"{CONTEXT_DIR}/{file.path.removeprefix(AGENT_HOME + '/')}")


def _offset_mistakes(pieces: Sequence[Piece]) -> Iterable[Mistake]:
    done = 0
    for piece in pieces:
        for mistake in piece.mistakes:
            yield replace(mistake, step=mistake.step + done)
        done += len(piece.commands)
