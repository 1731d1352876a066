"""Near duplicates are found, different tasks are kept apart, listed n-grams are seen."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generators.dedupe import THRESHOLD, Overlap, Sketch, similarity, sketch_task
from generators.messages import Draft, Environment, Reference, Truth
from runtime.errors import UserError
from sandbox.spec import File

WORDS = [f"word{n}" for n in range(400)]


def sketch(
    instruction: str, *, data: str = "a b c d e f", command: str = "sort /home/agent/in > /home/agent/out"
) -> Sketch:
    draft = Draft(title="t", instruction=instruction, truth=Truth(), category="c", difficulty="easy", tags=(), level=1)
    environment = Environment(dockerfile="", files=(File(path="files/in", data=data.encode()),), initial_tests="")
    return sketch_task(draft, environment, Reference(commands=(command,)))


def prose(seed: int, count: int = 200) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def test_a_copy_with_one_word_changed_is_a_near_duplicate() -> None:
    text = prose(1)
    changed = text.replace(text.split()[100], "other", 1)
    assert THRESHOLD < similarity(sketch(text), sketch(changed)) < 1.0


def test_the_same_request_over_other_data_and_commands_is_none() -> None:
    text = prose(1)
    a = sketch(text, data=prose(2), command="cut -d, -f 2 rows.csv | sort | uniq -c")
    b = sketch(text, data=prose(3), command="awk '{print $2}' names | sort -u | wc -l")
    assert similarity(a, b) < THRESHOLD


@given(st.text(max_size=60), st.text(max_size=60))
def test_similarity_is_symmetric_bounded_and_one_for_equals(a: str, b: str) -> None:
    x, y = sketch(a), sketch(b)
    assert similarity(x, x) == 1.0
    assert 0.0 <= similarity(x, y) == similarity(y, x) <= 1.0


def test_the_estimate_is_near_the_true_jaccard_similarity() -> None:
    shared, left, right = prose(4, 3000), prose(5, 1000), prose(6, 1000)
    estimate = similarity(sketch(f"{shared} {left}"), sketch(f"{shared} {right}"))
    instruction_only = 3 * estimate - 2  # the two other parts are equal
    assert instruction_only == pytest.approx(0.6, abs=0.12)


def test_a_listed_gram_is_found_whatever_case_and_line_breaks() -> None:
    overlap = Overlap(["restore the lost commit of the repository"])
    assert overlap.find(["Please\nRestore the lost\ncommit of the  repository now."])
    assert overlap.find(["restore the lost commits of the repository"]) is None
    assert Overlap().find(["anything at all"]) is None


@pytest.mark.parametrize("content", [b"too short\n", b"\xff\xfe\n"])
def test_a_list_that_cannot_be_used_is_the_users_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "grams.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"grams\.txt"):
        Overlap.load(path)
