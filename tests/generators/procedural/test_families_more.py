"""What several families stand on: the structured readers, the agent's rights in checks, zones written by hand.

The families themselves are tried in `test_families`, all of them alike.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from generators.procedural import zones
from generators.procedural.checks import check
from generators.procedural.families import table_joins
from generators.procedural.family import Place
from generators.procedural.prelude import PRELUDE

from .harness import Ground

READERS = {
    "yaml": "read_yaml(path)",
    "toml": "read_toml(path)",
    "ini": "read_ini(path)",
    "rows": "query(path, 'SELECT 1 FROM sqlite_master')",
}
HOSTILE = {
    "nothing": "true",
    "directory": "mkdir $f",
    "link": "ln -s /etc/passwd $f",
    "pipe": "mkfifo $f",
    "bytes": "head -c 3000 /dev/urandom > $f && printf '\\xff\\x00\\xfe' >> $f",
    "gigabyte": "truncate -s 1G $f",
    "nonsense": "printf 'a = [b: {\\n\\t- c' > $f",
    "unreadable": "echo 'a: 1' > $f && chmod 000 $f",
}


@pytest.mark.namespace
@pytest.mark.parametrize("reader", READERS)
def test_reader_fails_by_assertion_on_whatever_was_left(ground: Ground, reader: str) -> None:
    paths = {kind: f"/home/agent/{kind}" for kind in HOSTILE}
    commands = [f"f={paths[kind]}; {command}" for kind, command in HOSTILE.items()]
    checks = [check(path, "read", READERS[reader], "raise AssertionError('read')") for path in paths.values()]
    (played,) = ground.try_rounds(
        files=(), setup=("true",), rounds=[commands], checks="\n\n".join([PRELUDE, *checks]), initial_checks=""
    )
    assert {name: text.partition(":")[0] for name, text in played.outcome.items()} == {
        f"test_{kind}_read": "failed" for kind in HOSTILE
    }


@pytest.mark.namespace
def test_readers_give_values_with_their_types(ground: Ground) -> None:
    home = "/home/agent"
    commands = (
        f"printf 'a: {{b: [1, \"1.20\", 1.20, 22:22], c: 2020-01-31}}\\n' > {home}/x.yaml",
        f"printf '[a]\\nb = [1, \"2\"]\\n' > {home}/x.toml",
        f"printf '[a]\\nB = %%x\\n[c]\\n' > {home}/x.ini",
        f"sqlite3 {home}/x.db \"CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 'x'), (2, NULL)\"",
    )
    checks = (
        check(
            f"{home}/x.yaml",
            "value",
            "assert read_yaml(path) == {'a': {'b': [1, '1.20', 1.2, 1342], 'c': '2020-01-31'}}",
        ),
        check(f"{home}/x.toml", "value", "assert read_toml(path) == {'a': {'b': [1, '2']}}"),
        check(f"{home}/x.ini", "value", "assert read_ini(path) == {'a': {'B': '%x'}, 'c': {}}"),
        check(f"{home}/x.db", "value", "assert query(path, 'SELECT a, b FROM t ORDER BY a') == [[1, 'x'], [2, None]]"),
    )
    (played,) = ground.try_rounds(
        files=(), setup=("true",), rounds=[commands], checks="\n\n".join([PRELUDE, *checks]), initial_checks=""
    )
    assert played.failures == []


@pytest.mark.namespace
def test_programs_in_checks_have_the_agents_rights(ground: Ground) -> None:
    """A script that an agent left for the grader to run must not read what only the grader may."""
    script = "/home/agent/steal.sh"
    commands = (f"printf 'id -u\\nid -G\\ncat /etc/shadow || echo refused\\n' > {script}",)
    body = "assert run('bash', path).split() == ['1000', '1000', 'refused']"
    (played,) = ground.try_rounds(
        files=(),
        setup=("true",),
        rounds=[commands],
        checks=f"{PRELUDE}\n\n{check(script, 'rights', body)}",
        initial_checks="",
    )
    assert played.failures == []


@pytest.mark.parametrize("zone", zones.ALL)
def test_zone_agrees_with_the_time_zone_database(zone: str) -> None:
    start = datetime(2019, 1, 1, tzinfo=UTC)
    hours = (start + timedelta(hours=hour) for hour in range(6 * 365 * 24))
    moments = [moment for moment in hours if moment.month in {3, 10, 11} or (moment.day, moment.hour) == (15, 12)]
    wrong = [m for m in moments if zones.local(m, zone).utcoffset() != m.astimezone(ZoneInfo(zone)).utcoffset()]
    assert wrong == []


def test_lines_that_are_asked_for_do_not_stand_together_in_the_file() -> None:
    for seed in range(500):
        scene = table_joins._scene(random.Random(seed), Place(directory="/home/agent/x"))
        known = {key for key, _, _ in scene.parents}
        lines = [f"{number} {key} {amount}" for number, key, amount in scene.children]
        asked = [line for line, (_, key, _) in zip(lines, scene.children, strict=True) if key not in known]
        assert "\n".join(asked) not in "\n".join(lines)
