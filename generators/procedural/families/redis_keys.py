"""Work in a running Redis: fields, renamed keys, queues, score boards, left-overs, settings that outlive a restart."""

from __future__ import annotations

import random
from dataclasses import dataclass

from generators.procedural import words
from generators.procedural.checks import check, present
from generators.procedural.family import Piece, Place
from generators.procedural.reports import report
from generators.procedural.steps import Step, assemble, slip, text_file
from sandbox.services import Service

name = "redis-keys"
category = "database"
tools: tuple[str, ...] = ("redis-cli",)
depths = range(1, 5)

_POLICIES = ("allkeys-lru", "allkeys-lfu", "volatile-lru", "volatile-ttl", "allkeys-random")


@dataclass(frozen=True, kw_only=True)
class Store:
    """What is in the database at the start."""

    port: int
    path: str
    people: tuple[str, ...]
    profiles: dict[str, dict[str, str]]
    """Fields of the hash `user:<name>`."""
    board: dict[str, int]
    """Scores of the sorted set `board`, all different."""
    waiting: tuple[str, ...]
    """The list `queue:mail`, oldest first."""
    stale: tuple[str, ...]
    """Keys `tmp:...`."""

    def cli(self, *words_: str) -> str:
        return " ".join((f"redis-cli -p {self.port}", *words_))

    def reply(self, *argv: str) -> str:
        """A Python expression: the lines of the reply."""
        return f"run(*{['redis-cli', '-p', str(self.port), *argv]!r}).splitlines()"

    def load(self) -> str:
        lines = [
            " ".join(("HSET", f"user:{who}", *(part for pair in fields.items() for part in pair)))
            for who, fields in self.profiles.items()
        ]
        lines += [f"ZADD board {score} {who}" for who, score in self.board.items()]
        lines += [f"RPUSH queue:mail {job}" for job in self.waiting]
        lines += [f"SET {key} 1" for key in self.stale]
        return "".join(f"{line}\n" for line in lines)


def draw(rng: random.Random, depth: int, place: Place) -> Piece:
    store = _draw_store(rng, place)
    conf = f'port {store.port}\nbind 127.0.0.1\ndir {place.directory}/data\nappendonly yes\nappendfsync no\nsave ""\nmaxmemory 64mb\n'
    jobs = rng.sample((_field, _rename, _push, _top, _purge, _policy), depth)
    return assemble(
        family=name,
        title=f"Redis on port {store.port}",
        place=place,
        openings=(
            f"A Redis server runs on 127.0.0.1, port {store.port}, with the configuration {place.directory}/redis.conf. Change what is asked for below and no other key.",
            f"Our Redis listens on 127.0.0.1 port {store.port} (configuration in {place.directory}/redis.conf). Keys that I don't mention stay as they are.",
            f"There's a Redis on this machine, 127.0.0.1 port {store.port}, started from {place.directory}/redis.conf, and it needs a little work. Other keys are not to be touched.",
        ),
        steps=[job(rng, store, place) for job in jobs],
        files=(text_file(place, "redis.conf", conf), text_file(place, "load.txt", store.load())),
        setup=(
            "mkdir data",
            "redis-server redis.conf --daemonize yes >/dev/null",
            f"until {store.cli('ping')} >/dev/null 2>&1; do sleep 0.1; done",
            f"{store.cli()} < load.txt >/dev/null",
            f"{store.cli('shutdown')} || true",
        ),
        services=(
            Service(
                name="redis",
                command=f"redis-server {place.directory}/redis.conf",
                check=f"{store.cli('ping')} | grep -q PONG",
            ),
        ),
        initial_checks=(
            present(place.directory, ("redis.conf",)),
            check(place.directory, "server", f"assert {store.reply('ping')} == ['PONG']"),
        ),
        guards=(_untouched(store, place),),
    )


def _draw_store(rng: random.Random, place: Place) -> Store:
    people = tuple(sorted(words.distinct(rng, words.PEOPLE, 9)))
    scores = rng.sample(range(100, 990), 9)
    return Store(
        port=rng.randint(6380, 6479),
        path=place.directory,
        people=people,
        profiles={
            who: {
                "city": rng.choice(words.CITIES),
                "plan": rng.choice(("free", "plus", "pro")),
                "visits": str(rng.randint(2, 90)),
            }
            for who in people
        },
        board=dict(zip(people, scores, strict=True)),
        waiting=tuple(f"job-{words.token(rng, 6)}" for _ in range(5)),
        stale=tuple(f"tmp:{words.token(rng, 6)}" for _ in range(6)),
    )


def _untouched(store: Store, place: Place) -> str:
    """Two people of whom no step speaks."""
    who = store.people[-2:]
    scores = [str(store.board[person]) for person in who]
    lines = "\n".join(
        f"assert sorted({store.reply('hvals', f'user:{person}')}) == {sorted(store.profiles[person].values())!r}"
        for person in who
    )
    return check(place.directory, "others", f"{lines}\nassert {store.reply('zmscore', 'board', *who)} == {scores!r}")


def _field(rng: random.Random, store: Store, place: Place) -> Step:
    who, city = (
        store.people[0],
        rng.choice([city for city in words.CITIES if city != store.profiles[store.people[0]]["city"]]),
    )
    rest = {key: value for key, value in store.profiles[who].items() if key != "city"}
    key = f"user:{who}"
    back = (store.cli("del", key), store.cli("hset", key, *(part for pair in rest.items() for part in pair)))
    return Step(
        says=(
            f"Set the field city of the hash {key} to {city}; its other fields stay.",
            f"Change city in the hash {key} to {city} and keep the other fields.",
            f"{who.title()} has moved to {city}: put that into the field city of the hash {key}, without losing the other fields.",
        ),
        thought="One HSET on that field.",
        command=store.cli("hset", key, "city", city),
        checks=(
            check(
                place.directory,
                "field",
                f"expected = {sorted([city, *rest.values()])!r}\nassert sorted({store.reply('hvals', key)}) == expected\n"
                f"assert {store.reply('hget', key, 'city')} == [{city!r}]",
            ),
        ),
        mistakes=(
            slip("command_error", store.cli("set", key, city), "SET gives the key its new value.", *back),
            slip(
                "requirement_violation",
                store.cli("hset", key, "town", city),
                "I store the new town.",
                store.cli("hdel", key, "town"),
            ),
            slip("verification_failure", store.cli("hget", key, "city"), "The field is there."),
        ),
    )


def _rename(rng: random.Random, store: Store, place: Place) -> Step:
    who = store.people[1]
    old, new = f"user:{who}", f"member:{words.token(rng, 5)}"
    values = sorted(store.profiles[who].values())
    return Step(
        says=(
            f"Rename the key {old} to {new}, with all its content.",
            f"The key {old} should be called {new} from now on; its content stays and the old name goes.",
            f"Move what is under {old} to the name {new}, so that nothing is left under the old one.",
        ),
        thought="RENAME moves the whole hash.",
        command=store.cli("rename", old, new),
        checks=(
            check(
                place.directory,
                "renamed",
                f"assert sorted({store.reply('hvals', new)}) == {values!r}\nassert {store.reply('exists', old)} == ['0']",
            ),
        ),
        mistakes=(
            slip(
                "analysis_error",
                store.cli("copy", old, new),
                "The content is under the new name now.",
                store.cli("del", new),
            ),
            slip("command_error", store.cli("rename", new, old), "RENAME takes the new name first."),
            slip("hallucination", store.cli("move", old, new), "MOVE gives a key another name."),
        ),
    )


def _push(rng: random.Random, store: Store, place: Place) -> Step:
    jobs = [f"job-{words.token(rng, 7)}" for _ in range(3)]
    expected = [*store.waiting, *jobs]
    shown = ", ".join(jobs)
    cut = store.cli("ltrim", "queue:mail", "0", "4")
    return Step(
        says=(
            f"Append {shown} to the list queue:mail, at its tail and in this order.",
            f"Add {shown} to the end of the list queue:mail, keeping that order.",
            f"Put {shown} into queue:mail (a list) behind what is waiting there, in this order.",
        ),
        thought="RPUSH with the three in order.",
        command=store.cli("rpush", "queue:mail", *jobs),
        checks=(
            check(
                place.directory,
                "queue",
                f"expected = {expected!r}\nassert {store.reply('lrange', 'queue:mail', '0', '-1')} == expected",
            ),
        ),
        mistakes=(
            slip(
                "command_error",
                store.cli("lpush", "queue:mail", *jobs),
                "LPUSH adds to the list.",
                store.cli("ltrim", "queue:mail", "3", "-1"),
            ),
            slip(
                "analysis_error",
                store.cli("rpush", "queue:mail", *reversed(jobs)),
                "Last in the sentence is first in line.",
                cut,
            ),
            slip(
                "requirement_violation",
                store.cli("rpush", "queue:mail", f'"{" ".join(jobs)}"'),
                "The three belong together.",
                cut,
            ),
        ),
    )


def _top(rng: random.Random, store: Store, place: Place) -> Step:
    count = rng.randint(3, 6)
    file = f"{rng.choice(words.STEMS)}-{rng.choice(words.TERMS)}.txt"
    target = f"{place.directory}/{file}"
    best = sorted(store.board, key=lambda who: -store.board[who])[:count]
    return report(
        place,
        file,
        best,
        store.cli("zrevrange", "board", "0", str(count - 1)),
        says=(
            f"Write the {count} members of the sorted set board with the highest scores to {target}, highest first, one name per line without the score.",
            f"Put the top {count} of the sorted set board (highest score first) into {target}: only the names, one a line.",
            f"Who are the best {count} on the sorted set board? I want their names in {target}, one a line, the highest score first and no scores.",
        ),
        thought="A reversed range by rank.",
        slips=(
            ("analysis_error", store.cli("zrange", "board", "0", str(count - 1)), "ZRANGE lists the members by score."),
            ("command_error", store.cli("zrevrange", "board", "0", str(count)), f"From 0 to {count}."),
            (
                "requirement_violation",
                store.cli("zrevrange", "board", "0", str(count - 1), "withscores"),
                "With scores it is more useful.",
            ),
        ),
    )


def _purge(rng: random.Random, store: Store, place: Place) -> Step:
    scan = store.cli("--scan", "--pattern", "'tmp:*'")
    first = store.stale[0]
    return Step(
        says=(
            "Delete all keys that begin with tmp: from the database.",
            "Remove every key whose name starts with tmp: and nothing else.",
            "Clear out the left-overs: all keys with names beginning with tmp: can go.",
        ),
        thought="Scan for the pattern and delete what is found.",
        command=f"{scan} | xargs {store.cli('del')}",
        checks=(
            check(
                place.directory,
                "purged",
                f"assert {store.reply('--scan', '--pattern', 'tmp:*')} == []",
            ),
        ),
        mistakes=(
            slip("hallucination", store.cli("del", "'tmp:*'"), "DEL takes a pattern."),
            slip("verification_failure", scan, "The scan goes through all of them."),
            slip("analysis_error", store.cli("del", first), "One key was left over."),
        ),
    )


def _policy(rng: random.Random, store: Store, place: Place) -> Step:
    policy = rng.choice(_POLICIES)
    conf = f"{place.directory}/redis.conf"
    setting = store.cli("config", "set", "maxmemory-policy", policy)
    return Step(
        says=(
            f"Set maxmemory-policy to {policy}, so that it also holds after a restart of the server (which reads {conf}).",
            f"The server's maxmemory-policy should be {policy} for good: it must still be so when it starts again from {conf}.",
            f"Switch maxmemory-policy to {policy} and make that last over restarts, that is, have it in {conf}.",
        ),
        thought="Set it in the running server and let it rewrite its file.",
        command=f"{setting} && {store.cli('config', 'rewrite')}",
        checks=(
            check(
                place.directory,
                "policy",
                f"assert {store.reply('config', 'get', 'maxmemory-policy')} == ['maxmemory-policy', {policy!r}]",
            ),
        ),
        mistakes=(
            slip("requirement_violation", setting, "The server has the new setting."),
            slip(
                "hallucination",
                f"echo 'maxmemory_policy {policy}' > {conf}.local",
                "Local settings are read from a file beside it.",
                f"rm {conf}.local",
            ),
            slip(
                "command_error",
                store.cli("set", "maxmemory-policy", policy),
                "SET changes a setting.",
                store.cli("del", "maxmemory-policy"),
            ),
        ),
    )
