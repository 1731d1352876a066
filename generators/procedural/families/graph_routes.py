"""Roads between towns as an edge list: neighbours, reach, shortest ways, an order of building, islands."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from generators.procedural import words
from generators.procedural.answers import Answers
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, text_file

name = "graph-routes"
category = "graphs and routes"
tools: tuple[str, ...] = ("awk", "python3", "sort", "tsort", "uniq")
depths = range(1, 6)

Edge = tuple[str, str, int]


@dataclass(frozen=True)
class Scene:
    """Two-way roads between nine towns, apart from them between four more; and a chain of jobs to be done in order."""

    at: str
    file: str
    edges: list[Edge]
    chain_file: str
    chain: list[str]

    @property
    def path(self) -> str:
        return f"{self.at}/{self.file}"

    def neighbours(self) -> dict[str, dict[str, int]]:
        near: dict[str, dict[str, int]] = {}
        for a, b, length in self.edges:
            near.setdefault(a, {})[b] = length
            near.setdefault(b, {})[a] = length
        return near

    def start(self, rng: random.Random) -> str:
        """A town of the larger network, from where most towns take more than one road."""
        return rng.choice(sorted(town for town in self.neighbours() if len(self.distances(town)) == 9))

    def ways(self, way: list[str], end: str) -> list[tuple[int, list[str]]]:
        """All ways that begin like this one, reach the end and pass no town twice, with the length of what is added."""
        if way[-1] == end:
            return [(0, way)]
        return sorted(
            (length + rest, found)
            for town, length in self.neighbours()[way[-1]].items()
            if town not in way
            for rest, found in self.ways([*way, town], end)
        )

    def distances(self, start: str) -> dict[str, int]:
        """Length of the shortest way to each town that can be reached."""
        best = {start: 0}
        for _ in self.edges:
            for a, b, length in [*self.edges, *((b, a, length) for a, b, length in self.edges)]:
                if a in best and (b not in best or best[a] + length < best[b]):
                    best[b] = best[a] + length
        return best


def _scene(rng: random.Random, place: Place) -> Scene:
    towns = words.distinct(rng, words.CITIES, 13)
    near, far = towns[:9], towns[9:]
    pairs = [(near[n], near[n + 1]) for n in range(8)] + [(near[0], near[4]), (near[2], near[7]), (near[1], near[5])]
    pairs += [(far[0], far[1]), (far[1], far[2]), (far[1], far[3])]
    lengths = rng.sample(range(11, 30), len(pairs))
    lengths[8] = rng.randint(150, 190)
    edges = [(*(pair if rng.random() < 0.5 else pair[::-1]), 4 * n + 1) for pair, n in zip(pairs, lengths, strict=True)]
    rng.shuffle(edges)
    chain = words.distinct(rng, words.PROJECTS, rng.randint(6, 9))
    while chain == sorted(chain):
        rng.shuffle(chain)
    return Scene(
        place.directory, f"roads-{rng.choice(words.PROJECTS)}.txt", edges, f"order-{rng.choice(words.TERMS)}.txt", chain
    )


def _degree(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    ranked = sorted(scene.neighbours().items(), key=lambda item: (-len(item[1]), item[0]))
    tail = "sort | uniq -c | sort -k1,1nr -k2,2 | awk '{print $2, $1}'"
    return answers.step(
        out,
        [f"{town} {len(others)}" for town, others in ranked],
        f"awk '{{print $1; print $2}}' {scene.file} | {tail}",
        says=(
            f"Write `TOWN ROADS` for every town in {scene.path} to {out}: how many roads touch it, most first, equal counts by name, one blank between.",
            f"Count the roads at each town of {scene.path} and put `TOWN ROADS` lines into {out}, the best connected first, ties by name.",
            f"Which towns in {scene.path} have how many roads? `TOWN ROADS` with a single blank in {out}, highest number first, same number alphabetically.",
        ),
        thought="Both ends of each road count; then sort by count and name.",
        slips=(
            (
                "analysis_error",
                f"awk '{{print $1}}' {scene.file} | {tail}",
                "Each line belongs to the town it starts with.",
            ),
            (
                "command_error",
                f"awk '{{print $1; print $2}}' {scene.file} | {tail.removeprefix('sort | ')}",
                "uniq -c counts every town.",
            ),
        ),
    )


_REACH = (
    "import sys\nnear = {}\nfor line in open(sys.argv[1]):\n    a, b, n = line.split()\n    near.setdefault(a, {})[b] = int(n)\n"
    "    near.setdefault(b, {})[a] = int(n)\n"
)
_DIJKSTRA = (
    _REACH + "import heapq\nqueue, done = [(0, [sys.argv[2]])], {}\nwhile queue:\n    d, way = heapq.heappop(queue)\n"
    "    if way[-1] not in done:\n        done[way[-1]] = d, way\n"
    "        for town, n in near[way[-1]].items():\n            heapq.heappush(queue, (d + n, [*way, town]))\n"
)


def _python(program: str, *arguments: str) -> str:
    return f"python3 -c '{program}' {' '.join(arguments)}"


def _reach(answers: Answers, scene: Scene) -> Step:
    out, start = answers.fresh(), scene.start(answers.rng)
    found = sorted(set(scene.distances(start)) - {start})
    full = _DIJKSTRA + 'print(*sorted(set(done) - {sys.argv[2]}), sep="\\n")'
    missing = _DIJKSTRA + 'print(*sorted(set(near) - set(done)), sep="\\n")'
    one_step = f"awk -v t={start} '$1 == t {{print $2}} $2 == t {{print $1}}' {scene.file} | sort"
    return answers.step(
        out,
        found,
        _python(full, scene.file, start),
        says=(
            f"Write all towns that can be reached from {start} over any number of roads in {scene.path} to {out}, without {start} itself, one per line, sorted.",
            f"Where can one get from {start} on the roads of {scene.path}, however many it takes? Names sorted, one a line, {start} left out, in {out}.",
            f"I'm in {start}. List every other town that the roads in {scene.path} lead to, directly or not, alphabetically, one a line, in {out}.",
        ),
        thought="A search from the start over all roads in both directions.",
        slips=(
            ("analysis_error", one_step, "The lines with that town name what can be reached."),
            (
                "requirement_violation",
                _python(missing, scene.file, start),
                "The difference of the two sets is the answer.",
            ),
        ),
    )


def _distances(answers: Answers, scene: Scene) -> Step:
    out, start = answers.fresh(), scene.start(answers.rng)
    best = sorted((length, town) for town, length in scene.distances(start).items() if town != start)
    ending = "for d, town in sorted((d, t) for t, (d, w) in done.items() if d):\n    print(town, d)"
    hops = _DIJKSTRA.replace("(d + n,", "(d + 1,")
    return answers.step(
        out,
        [f"{town} {length}" for length, town in best],
        _python(_DIJKSTRA + ending, scene.file, start),
        says=(
            f"For each town that can be reached from {start} in {scene.path} write `TOWN DISTANCE` to {out}, the distance being the length of the shortest way; nearest first, equal distances by name; {start} itself left out.",
            f"How far is it from {start} to every other town it is connected with in {scene.path}, by the shortest way? `TOWN DISTANCE`, nearest on top, ties by name, in {out}.",
            f"Give me the shortest distances from {start} over the roads in {scene.path}: `TOWN DISTANCE` in {out}, closest first (same distance: by name), without {start} and without what can't be reached.",
        ),
        thought="Dijkstra from the start, then everything but the start by distance.",
        slips=(
            ("analysis_error", _python(hops + ending, scene.file, start), "The fewest roads make the shortest way."),
            (
                "requirement_violation",
                _python(
                    _DIJKSTRA + ending.replace("(d, t) for", "(t, d) for").replace("d, town in", "town, d in"),
                    scene.file,
                    start,
                ),
                "Sorted by name they are easy to find.",
            ),
        ),
    )


def _clear_journeys(scene: Scene) -> Iterator[tuple[str, str]]:
    """Pairs of towns with one shortest way, over four towns or more."""
    for start, end in permutations(sorted(scene.neighbours()), 2):
        ways = scene.ways([start], end)
        if len(ways) > 1 and ways[0][0] < ways[1][0] and len(ways[0][1]) >= 4:
            yield start, end


def _way(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    start, end = answers.rng.choice(list(_clear_journeys(scene)))
    ending = 'd, way = done[sys.argv[3]]\nprint(*way, sep="\\n")\nprint(d)'
    hops = _DIJKSTRA.replace("(d + n,", "(d + 1,")
    length, way = scene.ways([start], end)[0]
    return answers.step(
        out,
        [*way, str(length)],
        _python(_DIJKSTRA + ending, scene.file, start, end),
        says=(
            f"Write the shortest way from {start} to {end} in {scene.path} to {out}: the towns in the order of travel, one per line, both ends included, and the total length alone on a last line.",
            f"What is the shortest way from {start} to {end} over the roads in {scene.path}? All towns on it in order, {start} and {end} too, one a line, then a line with the total length, in {out}.",
            f"I have to go from {start} to {end} and {scene.path} has the roads. Town by town, from first to last, one a line in {out}, and the length of it all as last line; the shortest way, of course.",
        ),
        thought="Dijkstra that keeps the way along with the distance.",
        slips=(
            (
                "analysis_error",
                _python(hops + ending, scene.file, start, end),
                "Fewer towns between mean a shorter way.",
            ),
            (
                "requirement_violation",
                _python(_DIJKSTRA + ending, scene.file, end, start),
                "The way is the same in both directions.",
            ),
        ),
    )


def _order(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    path = f"{scene.at}/{scene.chain_file}"
    return answers.step(
        out,
        scene.chain,
        f"tsort {scene.chain_file}",
        says=(
            f"Each line `A B` in {path} says that A must be done before B. Write all names to {out}, one per line, in an order that keeps to that; there is exactly one.",
            f"Put the jobs of {path} in order (a line `A B` means A comes before B; only one order fits) and write them to {out}, one a line, first job on top.",
            f"{path} tells in lines `A B` that A comes before B. In which order do I have to work? It is unique; one name a line, first one first, in {out}.",
        ),
        thought="tsort prints an order that respects the pairs.",
        slips=(
            ("command_error", f"tsort {scene.chain_file} | sort", "Sorting gives the order."),
            (
                "analysis_error",
                f"awk '{{print $2, $1}}' {scene.chain_file} | tsort",
                "The second name is what the first one waits for.",
            ),
            (
                "requirement_violation",
                f"tr ' ' '\\n' < {scene.chain_file} | awk '!seen[$0]++'",
                "The names as they come, each once.",
            ),
        ),
    )


_STEPS = (_degree, _reach, _distances, _way, _order)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Independent questions to one map."""
    scene, answers = _scene(rng, place), Answers(rng=rng, place=place)
    links = list(zip(scene.chain, scene.chain[1:], strict=False))
    extra = [(scene.chain[0], scene.chain[3]), (scene.chain[1], scene.chain[-1])]
    pairs = [links[-1], links[0], *rng.sample([*links[1:-1], *extra], len(links))]
    return answers.piece(
        family=name,
        title="Find ways on a map",
        openings=(
            f"The file {scene.path} lists two-way roads as `TOWN TOWN LENGTH`, one per line.",
            f"There is a small road map in {scene.path}: each line has two towns and the length of the road between them, usable both ways.",
            f"This is about the roads in {scene.path}, lines of two towns and a length; all roads go both ways.",
        ),
        steps=[make(answers, scene) for make in rng.sample(_STEPS, depth)],
        files=[
            text_file(place, scene.file, "".join(f"{a} {b} {length}\n" for a, b, length in scene.edges)),
            text_file(place, scene.chain_file, "".join(f"{a} {b}\n" for a, b in pairs)),
        ],
    )
