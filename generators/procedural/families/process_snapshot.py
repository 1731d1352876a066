"""A saved process table and a saved list of sockets: trees, heavy users, strange listeners, orphans."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.answers import Answers
from generators.procedural.family import Piece, Place
from generators.procedural.steps import Step, text_file

name = "process-snapshot"
category = "incident response"
tools: tuple[str, ...] = ("awk", "grep", "join", "sort")
depths = range(1, 6)


@dataclass(frozen=True)
class Process:
    """A line of the table; memory in KiB."""

    pid: int
    parent: int
    user: str
    memory: int
    command: str

    def __str__(self) -> str:
        return f"{self.pid:>7} {self.parent:>7} {self.user:<10} {self.memory:>8} {self.command}"


@dataclass(frozen=True)
class Scene:
    """Processes by number; sockets as address, port and owning process."""

    at: str
    table: str
    sockets_file: str
    processes: list[Process]
    sockets: list[tuple[str, int, int]]

    @property
    def path(self) -> str:
        return f"{self.at}/{self.table}"

    @property
    def sockets_path(self) -> str:
        return f"{self.at}/{self.sockets_file}"

    def below(self, pid: int) -> list[Process]:
        """All descendants."""
        near = [p for p in self.processes if p.parent == pid]
        return [*near, *(q for p in near for q in self.below(p.pid))]


def _scene(rng: random.Random, place: Place) -> Scene:
    services = words.distinct(rng, words.SERVICES, 6)
    users = words.distinct(rng, words.PEOPLE, 4)
    pids = sorted(rng.sample(range(200, 32000), 29))
    processes = [Process(1, 0, "root", rng.randint(9000, 14000), "/sbin/init")]
    mothers = pids[:6]
    for pid, service in zip(mothers, services, strict=True):
        processes.append(
            Process(pid, 1, rng.choice(users), rng.randint(5000, 90000), f"/opt/{service}/bin/{service} --serve")
        )
    for index, pid in enumerate(pids[6:]):
        parent = mothers[index % 6] if index < 9 else rng.choice(pids[6 : 6 + index])
        command = f"/opt/{rng.choice(services)}/bin/{rng.choice(('worker', 'helper', 'reader'))} --port {rng.randint(1000, 9999)}"
        processes.append(Process(pid, parent, rng.choice(users), rng.randint(1000, 300000), command))
    lost = 40000 + rng.randint(1, 999)
    last = pids[-1]
    processes += [
        Process(last + n, lost, rng.choice(users), rng.randint(900, 5000), f"/tmp/.{words.token(rng, 4)} -d")
        for n in (3, 8)
    ]
    owners = [*mothers, *rng.sample(pids[6:], 4), last + 3]
    ports = rng.sample(range(1025, 9999), len(owners))
    hosts = ["0.0.0.0", "127.0.0.1", *rng.choices(("0.0.0.0", "127.0.0.1"), k=len(owners) - 3), "0.0.0.0"]  # noqa: S104
    sockets = list(zip(hosts, ports, owners, strict=True))
    rng.shuffle(sockets)
    host = rng.choice(words.HOSTS)
    return Scene(place.directory, f"ps-{host}.txt", f"listen-{host}-{rng.choice(words.TERMS)}.txt", processes, sockets)


def _tree(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    deep = [
        p.pid
        for p in scene.processes
        if p.parent == 1 and len(scene.below(p.pid)) > sum(q.parent == p.pid for q in scene.processes)
    ]
    root = answers.rng.choice(deep)
    program = "NR > 1 {up[$1] = $2} END {for (p in up) {q = p; while (q in up && q != r) q = up[q]; if (q == r && p != r) print p}}"
    return answers.step(
        out,
        [str(pid) for pid in sorted(p.pid for p in scene.below(root))],
        f"awk -v r={root} '{program}' {scene.table} | sort -n",
        says=(
            f"Write the numbers (PID) of all descendants of process {root} in {scene.path}, at any depth and without {root} itself, to {out}, one per line, ascending.",
            f"Which processes in {scene.path} stem from {root}, directly or through others? Their PIDs by number, one a line, without {root}, in {out}.",
            f"If we stopped {root} and everything below it, what would that be besides {root}? From {scene.path}, all PIDs under it at whatever depth, ascending, one a line, in {out}.",
        ),
        thought="Walk up from each process; whoever meets the root is below it.",
        slips=(
            (
                "analysis_error",
                f"awk -v r={root} '$2 == r {{print $1}}' {scene.table} | sort -n",
                "The parent column names the descendants.",
            ),
            (
                "requirement_violation",
                f"awk -v r={root} '{program.replace(' && p != r', '')}' {scene.table} | sort -n",
                "The process and what is below it.",
            ),
        ),
    )


def _memory(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    sums: Counter[str] = Counter()
    for process in scene.processes:
        sums[process.user] += process.memory
    ranked = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    program = "NR > 1 {m[$3] += $4} END {for (u in m) print u, m[u]}"
    return answers.step(
        out,
        [f"{user} {memory}" for user, memory in ranked],
        f"awk '{program}' {scene.table} | sort -k2,2nr -k1,1",
        says=(
            f"Add up the memory (RSS) in {scene.path} by user and write `USER SUM` to {out}, largest sum first, ties by user.",
            f"How much memory (RSS) do the users in {scene.path} take together? `USER SUM` in {out}, the greediest on top, equal sums by name.",
            f"Who uses the memory? From {scene.path} the sum of RSS for each user, `USER SUM`, biggest first and by name on a draw, in {out}.",
        ),
        thought="Sum the fourth column by the third.",
        slips=(
            (
                "command_error",
                f"awk '{program.replace('+=', '=')}' {scene.table} | sort -k2,2nr -k1,1",
                "The array keeps the memory of each user.",
            ),
            ("requirement_violation", f"awk '{program}' {scene.table} | sort -k2,2n", "Sorted by the sum."),
        ),
    )


def _listeners(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    users = {p.pid: p.user for p in scene.processes}
    rows = sorted((port, users[pid]) for address, port, pid in scene.sockets if address == "0.0.0.0")  # noqa: S104
    program = 'NR == FNR {user[$1] = $3; next} $1 ~ /^0/ {split($1, a, ":"); print a[2], user[$2]}'
    return answers.step(
        out,
        [f"{port} {user}" for port, user in rows],
        f"awk '{program}' {scene.table} {scene.sockets_file} | sort -n",
        says=(
            f"For each socket in {scene.sockets_path} on 0.0.0.0 write `PORT USER` to {out}, the user being that of the owning process in {scene.path}, by port ascending.",
            f"Which ports in {scene.sockets_path} are open to everybody (0.0.0.0), and who runs the process behind each, according to {scene.path}? `PORT USER` by port number in {out}.",
            f"I need the publicly open ports from {scene.sockets_path}, those on 0.0.0.0, with the user from {scene.path} that owns the process: `PORT USER`, lowest port first, in {out}.",
        ),
        thought="Users by process first, then the sockets on all addresses.",
        slips=(
            (
                "analysis_error",
                f"awk '{program.replace('/^0/', '/:/')}' {scene.table} {scene.sockets_file} | sort -n",
                "A listening socket is open.",
            ),
            (
                "requirement_violation",
                f"awk '{program.replace('user[$2]', '$2')}' {scene.table} {scene.sockets_file} | sort -n",
                "The number of the process identifies the owner.",
            ),
        ),
    )


def _orphans(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    pids = {p.pid for p in scene.processes}
    found = [f"{p.pid} {p.command}" for p in scene.processes if p.parent not in pids and p.parent != 0]
    program = "NR == FNR {there[$1]; next} FNR > 1 && $2 != 0 && !($2 in there) {print $1, $5, $6}"
    return answers.step(
        out,
        found,
        f"awk '{program}' {scene.table} {scene.table}",
        says=(
            f"Write `PID COMMAND` (the whole command line) for each process in {scene.path} whose parent is not in the table to {out}, in the order of the table; parent 0 is not missing.",
            f"Which processes in {scene.path} have a parent that isn't listed there (0 doesn't count as missing)? PID, one blank and the complete command, in table order, in {out}.",
            f"Find processes in {scene.path} whose parent has vanished from the table, 0 aside: `PID COMMAND` with all arguments, as they come, in {out}.",
        ),
        thought="First pass collects the numbers, second prints whose parent isn't among them.",
        slips=(
            (
                "analysis_error",
                f"awk '$2 == 1 {{print $1, $5, $6}}' {scene.table}",
                "A process without parent is adopted by number 1.",
            ),
            (
                "requirement_violation",
                f"awk '{program.replace(', $6', '')}' {scene.table} {scene.table}",
                "The program is the command.",
            ),
            (
                "command_error",
                f"awk '{program.replace(' && $2 != 0', '')}' {scene.table} {scene.table}",
                "A parent that isn't in the table is missing.",
            ),
        ),
    )


def _names(answers: Answers, scene: Scene) -> Step:
    out = answers.fresh()
    counts = Counter(p.command.split()[0] for p in scene.processes)
    rows = sorted((command, count) for command, count in counts.items() if count > 1)
    start = "tail -n +2"
    tail = "awk '{print $5}' | sort | uniq -c | awk '$1 > 1 {print $2, $1}'"
    return answers.step(
        out,
        [f"{command} {count}" for command, count in rows],
        f"{start} {scene.table} | {tail}",
        says=(
            f"Write `PROGRAM COUNT` for each program (first word of the command) that runs more than once in {scene.path} to {out}, sorted by program in byte order.",
            f"Which programs, by the first word of their command, are in {scene.path} more than once? `PROGRAM COUNT` in {out}, in text order.",
            f"What runs several times in {scene.path}? Go by the command's first word; `PROGRAM COUNT`, plain text order, only counts over 1, in {out}.",
        ),
        thought="Cut the program, count, keep what occurs more than once.",
        slips=(
            ("command_error", f"{start} {scene.table} | {tail.replace(' sort |', '')}", "uniq -c counts the programs."),
            (
                "requirement_violation",
                f"{start} {scene.table} | {tail.replace('$1 > 1 ', '')}",
                "All the programs with their counts.",
            ),
        ),
    )


_STEPS = (_tree, _memory, _listeners, _orphans, _names)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    """Independent questions to one snapshot."""
    scene, answers = _scene(rng, place), Answers(rng=rng, place=place)
    head = "    PID    PPID USER            RSS COMMAND"
    return answers.piece(
        family=name,
        title="Read a process snapshot",
        openings=(
            f"{scene.path} is a saved process table (header, then PID, PPID, USER, RSS, COMMAND), {scene.sockets_path} has the listening sockets as `ADDRESS:PORT PID`.",
            f"Before the machine was switched off somebody saved its processes to {scene.path} (PID, PPID, USER, RSS, COMMAND under a header) and the listening sockets to {scene.sockets_path}, lines `ADDRESS:PORT PID`.",
            f"I have two snapshots: {scene.path} with processes (header; PID, PPID, USER, RSS, COMMAND) and {scene.sockets_path} with what listened, `ADDRESS:PORT PID`.",
        ),
        steps=[make(answers, scene) for make in rng.sample(_STEPS, depth)],
        files=[
            text_file(place, scene.table, "".join(f"{line}\n" for line in (head, *scene.processes))),
            text_file(
                place, scene.sockets_file, "".join(f"{address}:{port} {pid}\n" for address, port, pid in scene.sockets)
            ),
        ],
    )
