"""Slips: each in its form, and nothing else of a command touched."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generators.procedural.compose import compose
from generators.synthesis.slips import slips
from generators.taxonomy import load_taxonomy


def commands(command: str) -> dict[str, str]:
    return {slip.error_type: slip.command for slip in slips(command)}


@pytest.mark.parametrize(
    ("error_type", "command", "wrong"),
    [
        ("analysis_error", "sort data/orders.csv", "sort data/order.csv"),
        ("analysis_error", "cd /srv/app && make", "cd /srv/apps && make"),
        ("command_error", "sort data.csv", "sotr data.csv"),
        ("command_error", "cd /srv/x && grep -c a b", "cd /srv/x && grpe -c a b"),
        ("requirement_violation", "sort a > b.txt", "sort a > b.out"),
        ("requirement_violation", "sort a >> notes", "sort a >> notes-result"),
        ("verification_failure", "sort a | uniq -c > b", "sort a"),
        ("verification_failure", "awk '{print $1 | \"x\"}' a | sort", "awk '{print $1 | \"x\"}' a"),
    ],
)
def test_a_slip_in_its_form(error_type: str, command: str, wrong: str) -> None:
    assert commands(command)[error_type] == wrong


def test_an_invented_option_stands_behind_the_program() -> None:
    assert re.fullmatch(r"cd /srv/x && tar --[a-z-]+ -xf a", commands("cd /srv/x && tar -xf a")["hallucination"])


@pytest.mark.parametrize(
    ("error_type", "command"),
    [
        ("command_error", "for f in a b; do echo $f; done"),
        ("hallucination", "for f in a b; do echo $f; done"),
        ("hallucination", "echo x >> y.txt"),
        ("command_error", "ll x"),
        ("verification_failure", "a || b"),
        ("verification_failure", "cd x && mkdir y && a | b"),  # the first half could not be run again
        ("verification_failure", "echo 'a | b'"),
        ("verification_failure", "cat <<E | sort\nx\nE"),
        ("requirement_violation", "cat > x.txt <<'E'\na\nE"),
        ("requirement_violation", "make > /dev/null"),
        ("requirement_violation", "make >&2"),
    ],
)
def test_no_slip_where_the_form_does_not_allow_it(error_type: str, command: str) -> None:
    assert error_type not in commands(command)


def test_a_file_of_the_wrong_name_is_removed_again() -> None:
    (slip,) = [slip for slip in slips("sort a > b.txt") if slip.error_type == "requirement_violation"]
    assert slip.repair == ("rm -f b.out",)


@given(st.text(alphabet="ab/.-_ |&;<>'\"$(){}\\\n", max_size=60))
def test_a_slip_is_never_the_command_itself(command: str) -> None:
    assert command not in commands(command).values()


def test_every_reference_of_the_families_allows_slips() -> None:
    references = [compose(load_taxonomy().draw(3, index)).reference.commands for index in range(20)]
    without = [command for reference in references for command in reference if len(commands(command)) < 1]
    assert len(without) < 0.05 * sum(map(len, references)), without
