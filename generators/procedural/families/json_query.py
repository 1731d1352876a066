"""Questions to a nested JSON document with jq: select and project, list, group, flatten to CSV, correct a value."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from generators.procedural import words
from generators.procedural.checks import absent, json_is, lines_are, present, unchanged
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, assemble, slip, text_file

name = "json-query"
category = "data processing"
tools: tuple[str, ...] = ("jq", "sort")
depths = range(1, 6)

Service = dict[str, Any]


@dataclass
class Scene:
    """The document `{"meta": ..., "services": [...]}` and the answer files so far."""

    rng: random.Random
    at: str
    file: str
    services: list[Service]
    region: str
    names: list[str]
    outputs: list[str] = field(default_factory=list)

    def answer(self, suffix: str) -> str:
        self.outputs.append(f"{self.names.pop()}.{suffix}")
        return self.outputs[-1]


def _select(scene: Scene) -> Step:
    out = scene.answer("json")
    limit = sorted(service["replicas"] for service in scene.services)[len(scene.services) // 2]
    chosen = [{"name": s["name"], "owner": s["owner"]["login"]} for s in scene.services if s["replicas"] >= limit]
    query = f"[.services[] | select(.replicas >= {limit}) | {{name, owner: .owner.login}}]"
    return Step(
        says=(
            f"From {scene.at}/{scene.file} write a JSON array of objects with the keys name and owner (the owner's login) for all services with replicas of "
            f"at least {limit}, in the order of the document, to {scene.at}/{out}.",
            f"I need the services of {scene.file} that have {limit} or more replicas as a JSON array in {scene.at}/{out}: objects with just name and owner, "
            "where owner is the login, same order as in the document.",
            f"Pull out of {scene.file} what runs with {limit} replicas and up. {scene.at}/{out} should be one JSON array, each element `name` and `owner` (the "
            "login) and nothing more, order unchanged.",
        ),
        thought="Select on a number, build small objects, and wrap it all in an array.",
        command=f"jq '{query}' {scene.file} > {out}",
        checks=(json_is(f"{scene.at}/{out}", chosen),),
        mistakes=(
            slip(
                "requirement_violation",
                f"jq '{query[1:-1]}' {scene.file} > {out}",
                "One object after the other is fine for JSON.",
            ),
            slip(
                "analysis_error",
                f"jq '{query.replace('.owner.login', '.owner')}' {scene.file} > {out}",
                "owner holds the login.",
            ),
            slip(
                "command_error",
                f"jq '{query.replace('>=', '>')}' {scene.file} > {out}",
                "Select those above the limit.",
            ),
        ),
    )


def _list(scene: Scene) -> Step:
    out = scene.answer("txt")
    hosts = sorted({host for s in scene.services if s["region"] == scene.region for host in s["hosts"]})
    query = f'.services[] | select(.region == "{scene.region}") | .hosts[]'
    return Step(
        says=(
            f"List the hosts of all services in region {scene.region} of {scene.at}/{scene.file} in {scene.at}/{out}: plain text, one per line, each once, "
            "sorted in byte order.",
            f"Which hosts does the region {scene.region} use according to {scene.file}? Plain names without quotes, one per line, no repeats, sorted, in "
            f"{scene.at}/{out}.",
            f"Please put the hosts of everything in {scene.region} (see {scene.file}) into {scene.at}/{out}, a bare name on each line, sorted and without "
            "duplicates.",
        ),
        thought="Raw output gives bare names; sort -u orders them and removes repeats.",
        command=f"jq -r '{query}' {scene.file} | LC_ALL=C sort -u > {out}",
        checks=(lines_are(f"{scene.at}/{out}", hosts),),
        mistakes=(
            slip("command_error", f"jq '{query}' {scene.file} | LC_ALL=C sort -u > {out}", "jq prints the strings."),
            slip(
                "analysis_error",
                f"jq -r '.services[].hosts[]' {scene.file} | LC_ALL=C sort -u > {out}",
                "The hosts are in every service.",
            ),
            slip(
                "requirement_violation",
                f"jq -r '{query}' {scene.file} > {out}",
                "The document's order is more natural.",
            ),
        ),
        truth=("\n".join(hosts),),
    )


def _group(scene: Scene) -> Step:
    out = scene.answer("json")
    totals: dict[str, int] = {}
    for service in scene.services:
        totals[service["region"]] = totals.get(service["region"], 0) + service["replicas"]
    query = ".services | group_by(.region) | map({key: .[0].region, value: (map(.replicas) | add)}) | from_entries"
    return Step(
        says=(
            f"Write a JSON object to {scene.at}/{out} that maps each region in {scene.at}/{scene.file} to the sum of the replicas of its services.",
            f"Add up replicas by region from {scene.file} and save one JSON object, region names as keys and sums as numbers, in {scene.at}/{out}.",
            f"How many replicas does each region have in {scene.file}? A single JSON object from region to that number goes to {scene.at}/{out}.",
        ),
        thought="Group by region, add within the group, and make an object of the pairs.",
        command=f"jq '{query}' {scene.file} > {out}",
        checks=(json_is(f"{scene.at}/{out}", dict(sorted(totals.items()))),),
        mistakes=(
            slip(
                "analysis_error",
                f"jq '{query.replace('(map(.replicas) | add)', 'length')}' {scene.file} > {out}",
                "Each service is one replica.",
            ),
            slip(
                "requirement_violation",
                f"jq '{query.removesuffix(' | from_entries')}' {scene.file} > {out}",
                "key and value say it clearly.",
            ),
            slip(
                "command_error",
                f"jq '{query.replace('.services | ', '')}' {scene.file} > {out}",
                "group_by finds the regions.",
            ),
        ),
    )


def _table(scene: Scene) -> Step:
    out = scene.answer("csv")
    ordered = sorted(scene.services, key=lambda s: str(s["name"]))
    lines = [f'"{s["name"]}","{s["owner"]["team"]}",{len(s["hosts"])}' for s in ordered]
    query = ".services | sort_by(.name)[] | [.name, .owner.team, (.hosts | length)] | @csv"
    return Step(
        says=(
            f"Convert {scene.at}/{scene.file} to CSV in {scene.at}/{out}: for each service its name, its owner's team and its number of hosts, strings in "
            "double quotes and numbers bare as jq's @csv writes them, sorted by name, no header.",
            f"Make a table of {scene.file} as CSV: name, the owner's team, how many hosts; sorted by name, without a header, strings quoted with \" and the "
            f"number not. It belongs in {scene.at}/{out}.",
            f'I want {scene.at}/{out} for a spreadsheet. One CSV line per service of {scene.file} like `"name","team",3` (team of the owner, count of hosts), '
            "by name from a to z, no heading.",
        ),
        thought="sort_by, an array per service, @csv and raw output.",
        command=f"jq -r '{query}' {scene.file} > {out}",
        checks=(lines_are(f"{scene.at}/{out}", lines),),
        mistakes=(
            slip("command_error", f"jq '{query}' {scene.file} > {out}", "@csv gives the line."),
            slip(
                "requirement_violation",
                f"jq -r '{query.replace(' | sort_by(.name)[]', '[]')}' {scene.file} > {out}",
                "The order is given.",
            ),
            slip(
                "hallucination",
                f"jq --csv '{query.removesuffix(' | @csv')}' {scene.file} > {out}",
                "jq has an option for CSV.",
            ),
        ),
        truth=("\n".join(lines),),
    )


def _correct(scene: Scene) -> Step:
    out = scene.answer("json")
    service = scene.rng.choice(scene.services)["name"]
    value = scene.rng.randint(20, 60)
    corrected = [{**s, "replicas": value} if s["name"] == service else s for s in scene.services]
    query = f'(.services[] | select(.name == "{service}") | .replicas) = {value}'
    return Step(
        says=(
            f"Save a copy of {scene.at}/{scene.file} as {scene.at}/{out} in which the service {service} has replicas {value} and everything else is the same.",
            f"The service {service} should have {value} replicas. Don't edit {scene.file}; write the whole corrected document to {scene.at}/{out}.",
            f"I need the complete document once more with replicas set to {value} for {service}, as {scene.at}/{out}. Leave {scene.file} itself alone.",
        ),
        thought="An assignment to a selected path keeps the rest of the document.",
        command=f"jq '{query}' {scene.file} > {out}",
        checks=(json_is(f"{scene.at}/{out}", {"meta": {"region": scene.region}, "services": corrected}),),
        mistakes=(
            slip(
                "analysis_error",
                f"jq '.services[].replicas = {value}' {scene.file} > {out}",
                "replicas is set by its path.",
            ),
            slip(
                "command_error",
                f"jq '.services[] | select(.name == \"{service}\") | .replicas = {value}' {scene.file} > {out}",
                "Select, then assign.",
            ),
            slip(
                "requirement_violation",
                f"jq '{query.removesuffix(str(value))}\"{value}\"' {scene.file} > {out}",
                "Values go in quotes.",
            ),
        ),
    )


_QUESTIONS: tuple[Callable[[Scene], Step], ...] = (_select, _list, _group, _table, _correct)


def _services(rng: random.Random, regions: list[str]) -> list[Service]:
    spread = [regions[0], regions[0], *regions, *(rng.choice(regions) for _ in range(rng.randint(9, 15)))]
    services = [
        {
            "name": service,
            "region": region,
            "replicas": rng.randint(2, 12),
            "hosts": rng.sample(words.HOSTS, rng.randint(2, 5)),
            "owner": {"login": words.login(rng), "team": rng.choice(words.TEAMS)},
        }
        for service, region in zip(words.distinct(rng, words.SERVICES, len(spread)), spread, strict=True)
    ]
    rng.shuffle(services)
    return services


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Different questions to one document."""
    regions = words.distinct(rng, words.CITIES, 3)
    services = _services(rng, regions)
    file, *names = words.distinct(rng, words.STEMS, 6)
    scene = Scene(rng, place.directory, f"{file}.json", services, regions[0], names)
    steps = [question(scene) for question in rng.sample(_QUESTIONS, depth)]
    text = json.dumps({"meta": {"region": regions[0]}, "services": services}, indent=rng.choice((None, 1, 2))) + "\n"
    document = text_file(place, scene.file, text)
    return assemble(
        family=name,
        title="Query a service inventory",
        place=place,
        openings=(
            f"The JSON document {document.path} describes our services in its array `services`.",
            f"Our service inventory is {document.path}; the interesting part is the array `services`.",
            f"There's an inventory of services, {document.path} (JSON, look under `services`).",
        ),
        steps=steps,
        files=[document],
        initial_checks=(
            present(place.directory, [scene.file]),
            *(absent(f"{place.directory}/{out}") for out in scene.outputs),
        ),
        guards=(unchanged(document.path, document.data),),
    )
