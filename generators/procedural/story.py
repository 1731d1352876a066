"""The instruction text: who asks and why, then each piece's ask, joined as a person would write it.

Nothing that a test looks at depends on the story; it only frames the asks. `style` chooses the wording: `exact` takes the
most exact one under headings, `brief` drops the frame, `vague` takes the loosest, `terse` the shortest and nothing
around it, anything else any but the exact one. The persona has the last word.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from generators.messages import Blueprint
from generators.procedural import words
from generators.procedural.family import Piece
from generators.taxonomy import load_taxonomy

_OPENINGS = (
    "{name} from {team} is away this week and left a few things for us.",
    "We are getting {project} ready for the {city} office and this is still open.",
    "{name} here, from {team}. I need a hand with something on this machine.",
    "The {team} people have their {occasion} soon, and the following has to be done before that.",
    "I took this machine over from {name} and want it in order before the {occasion}.",
    "For the {project} {occasion} I promised {name} the following.",
    "Quick request from {team}: {name} would normally do this, but it has to be finished today.",
    "While preparing the {occasion} in {city} we noticed that some work was left undone.",
    "Hi! {name} asked me to pass this on to you.",
    "This came in through the {team} desk for {project}.",
)
_SCENARIO_OPENINGS = (
    "Picture {scenario}: that is me today, and this is what is left to do.",
    "I'm {scenario}.",
    "{name} here, {scenario}.",
    "You are helping {scenario}.",
    "My name is {name}, I'm {scenario} and could use some help.",
) * 3
_OCCASIONS = (
    "audit",
    "hand-over",
    "release",
    "review",
    "migration",
    "demo",
    "stock-taking",
    "planning week",
    "inspection",
    "retrospective",
)
_LINKS = (
    ("The second part:", "The third part:", "The fourth part:"),
    ("There is more.", "One more thing.", "And the last one:"),
    ("Independent of that:", "Next on the list:", "Finally something else:"),
)
_CLOSINGS = (
    "",
    "Thanks!",
    "Thank you, that helps a lot.",
    "No need to report back, just leave the files in place.",
    "Please leave everything else as it is.",
)


def tell(rng: random.Random, blueprint: Blueprint, pieces: Sequence[Piece]) -> str:
    """The whole instruction."""
    asks = [_wording(rng, blueprint.style, piece) for piece in pieces]
    if blueprint.style == "terse":
        return "\n".join(asks) + "\n"
    opening = _opening(rng, blueprint.scenario)
    if blueprint.style == "exact" and len(pieces) > 1:
        return _text([opening, *(f"## {piece.title}\n\n{ask}" for piece, ask in zip(pieces, asks, strict=True))])
    links = rng.choice(_LINKS)
    linked = [asks[0], *(f"{links[min(n, 2)]} {ask}" for n, ask in enumerate(asks[1:]))]
    if blueprint.style == "brief":
        return _text(linked)
    return _text([opening, *linked, rng.choice(_closings(blueprint.persona))])


def _closings(persona: str) -> Sequence[str]:
    return load_taxonomy().persona(persona).closings if persona else _CLOSINGS


def _text(paragraphs: Sequence[str]) -> str:
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"


def _wording(rng: random.Random, style: str, piece: Piece) -> str:
    if style == "exact":
        return piece.asks[0]
    if style == "terse":
        return min(piece.asks, key=len)
    return piece.asks[-1] if style == "vague" else rng.choice(piece.asks[1:])


def _opening(rng: random.Random, scenario: str) -> str:
    return rng.choice(_OPENINGS + _SCENARIO_OPENINGS if scenario else _OPENINGS).format(
        scenario=scenario,
        name=words.full_name(rng),
        team=rng.choice(words.TEAMS),
        project=rng.choice(words.PROJECTS),
        city=rng.choice(words.CITIES).title(),
        occasion=rng.choice(_OCCASIONS),
    )
