"""The whole pipeline with chat players on a scripted endpoint: repair, and each way to be rejected."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from generators.certificate import commands_digest, read_certificate
from generators.outdir import place_of
from generators.summary import Summary
from generators.taxonomy import load_taxonomy
from runtime.chat.budget import Spending
from runtime.chat.endpoint import open_client
from runtime.chat.script import Reply
from runtime.chat.scripted import ScriptedServer
from runtime.settings import ChatSettings
from runtime.store import Call, Store
from runtime.task import read_task
from tests.generators.running import generate, namespace_engine, new_place, rejections, settings_for

pytestmark = pytest.mark.namespace

OPENINGS = {
    "You write tasks": "draft",
    "You decide whether": "review",
    "Prepare the surroundings": "furnish",
    "Write the final tests": "examine",
    "Hold these tests": "judge",
    "This is an audit": "cheat",
}
COPY = "COPY --chown=agent:agent files/ /home/agent/\nUSER agent\nWORKDIR /home/agent\n"
INITIAL_TESTS = """
from pathlib import Path

def test_rows_are_there() -> None:
    assert Path("/home/agent/rows.txt").is_file(), "rows.txt is missing"
"""
FINAL_TESTS = """
from pathlib import Path

def test_the_count_is_right() -> None:
    path = Path("/home/agent/count.txt")
    assert path.is_file(), "count.txt is missing"
    assert path.read_text().strip() == "417"
"""
DRAFT = {
    "title": "Count the rows",
    "instruction": "Write the number of lines of /home/agent/rows.txt into /home/agent/count.txt, nothing else.",
    "truth_notes": "There are 417 lines. The auditor's code word is marmalade-7.",
    "truth_strings": ["marmalade-7"],
    "difficulty": "easy",
    "tags": ["wc"],
}
GOOD_ENVIRONMENT = {
    "dockerfile": COPY,
    "files": [{"path": "files/rows.txt", "content": "row\n" * 417}],
    "initial_tests": INITIAL_TESTS,
}
DEFAULTS: dict[str, list[Any]] = {
    "draft": [DRAFT],
    "review": [
        {"environment_complexity": 5, "data_generatability": 4.5, "verification_determinism": 5, "critique": ""}
    ],
    "furnish": [GOOD_ENVIRONMENT],
    "examine": [{"final_tests": FINAL_TESTS}],
    "judge": [{"unstated": [], "untested": []}],
    "cheat": ["<command>echo 1 > /home/agent/count.txt</command>", "<action>done</action>"],
    "solve": ["<command>wc -l < /home/agent/rows.txt > /home/agent/count.txt</command>", "<action>done</action>"],
}


class Endpoint:
    """Answers each role from its own list: episodes turn by turn, the others call by call, the last entry for ever."""

    def __init__(self, **changes: list[Any]) -> None:
        self._answers = DEFAULTS | changes
        self.prompts: dict[str, list[str]] = defaultdict(list)
        self.requests: list[dict[str, Any]] = []
        self._calls: Counter[str] = Counter()

    def __call__(self, request: dict[str, Any], _number: int) -> Reply:
        messages = request["messages"]
        prompt = next(message["content"] for message in messages if message["role"] == "user")
        prompt = prompt.rpartition("Task Description:\n")[2]
        role = next((role for opening, role in OPENINGS.items() if prompt.startswith(opening)), "solve")
        turn = sum(m["role"] == "assistant" for m in messages) if role in ("solve", "cheat") else self._calls[role]
        self._calls[role] += 1
        self.prompts[role].append(prompt)
        self.requests.append(request)
        answer = self._answers[role][min(turn, len(self._answers[role]) - 1)]
        return Reply(text=answer if isinstance(answer, str) else f"Here it is:\n```json\n{json.dumps(answer)}\n```")


async def run(endpoint: Endpoint, tmp_path: Path, *sets: str) -> Summary:
    async with ScriptedServer(endpoint) as server, namespace_engine(tmp_path / "engine") as engine:
        settings = settings_for(
            tmp_path,
            "generate.author=chat",
            "generate.count=1",
            "generate.candidates_per_task=1",
            "generate.attempts=2",
            "generate.attempts_least=1",
            "generate.certificate_repeats=2",
            f"chat.base_url={server.base_url}",
            "chat.model=scripted",
            *sets,
        )
        return await generate(settings, new_place(settings, tmp_path / "out"), engine)


async def test_the_third_environment_is_certified_after_a_failed_build_and_failed_tests(tmp_path: Path) -> None:
    endpoint = Endpoint(
        furnish=[
            GOOD_ENVIRONMENT | {"dockerfile": COPY + "RUN echo preparing && no-such-program --now\n"},
            GOOD_ENVIRONMENT | {"dockerfile": "USER agent\nWORKDIR /home/agent\n"},
            GOOD_ENVIRONMENT,
        ]
    )
    summary = await run(endpoint, tmp_path)
    assert len(summary.tasks) == 1
    _, second, third = endpoint.prompts["furnish"]
    assert "no-such-program --now" in second
    assert "exit code 127" in second
    assert "not found" in second
    assert "rows.txt is missing" in third
    task = read_task(tmp_path / "out" / summary.tasks[0].directory)
    certificate = read_certificate(task)
    assert certificate.checks.cheater_commands == 1
    assert certificate.checks.cheater_digest == commands_digest(("echo 1 > /home/agent/count.txt",))
    assert certificate.versions.players == "chat:scripted"
    assert set(certificate.versions.prompts) >= {*OPENINGS.values(), "style_vague"}
    assert "wc -l" in (task.text("solution/solve.sh") or "")


async def test_a_service_that_fails_is_told_and_one_that_runs_is_there_for_the_solver(tmp_path: Path) -> None:
    web = {
        "name": "web",
        "command": "python3 -m http.server 8000 --bind 127.0.0.1 --directory /home/agent",
        "check": "curl -sf -o /dev/null http://127.0.0.1:8000/rows.txt",
        "timeout_s": 60,
    }
    count = "<command>curl -s http://127.0.0.1:8000/rows.txt | wc -l > /home/agent/count.txt</command>"
    endpoint = Endpoint(
        furnish=[
            GOOD_ENVIRONMENT | {"services": [web | {"command": "sh -c 'echo no such flag; exit 2'"}]},
            GOOD_ENVIRONMENT | {"services": [web]},
        ],
        solve=[count, "<action>done</action>"],
    )
    summary = await run(endpoint, tmp_path)
    assert len(summary.tasks) == 1
    assert "service web ended before it was healthy" in endpoint.prompts["furnish"][1]
    assert "no such flag" in endpoint.prompts["furnish"][1]
    assert "started again on the final files when the tests run: web." in endpoint.prompts["examine"][0]
    assert [service.name for service in read_task(tmp_path / "out" / summary.tasks[0].directory).services] == ["web"]


async def test_a_terminus_agent_solves_and_what_it_typed_is_the_reference(tmp_path: Path) -> None:
    def typed(keys: str) -> dict[str, Any]:
        return {"analysis": "", "plan": "", "commands": [{"keystrokes": keys, "duration": 1}], "task_complete": True}

    endpoint = Endpoint(
        solve=[typed("wc -l < rows.txt > /home/agent/count.txt\n")], cheat=[typed("echo 1 > /home/agent/count.txt\n")]
    )
    summary = await run(endpoint, tmp_path, "agent.kind=terminus-2")
    assert len(summary.tasks) == 1
    assert any("task_complete" in message["content"] for r in endpoint.requests for message in r["messages"])
    async with Store(place_of(tmp_path / "out", tmp_path / "state").store) as store:
        assert json.loads((await store.runs())[0].settings)["agent"] == {"kind": "terminus-2"}
    script = read_task(tmp_path / "out" / summary.tasks[0].directory).text("solution/solve.sh")
    assert script == "#!/bin/bash\nwc -l < rows.txt > /home/agent/count.txt\nwc -l < rows.txt > /home/agent/count.txt\n"


async def test_a_temperature_and_a_length_are_everybodys(tmp_path: Path) -> None:
    endpoint = Endpoint()
    await run(endpoint, tmp_path, "chat.temperature=0.25", "chat.max_tokens=4000")
    assert {request["temperature"] for request in endpoint.requests} == {0.25}
    assert {request["max_tokens"] for request in endpoint.requests if len(request["messages"]) == 1} == {4000}


async def test_a_resumed_run_has_spent_what_it_spent_before(tmp_path: Path) -> None:
    call = Call(
        key="k", request_digest="d", response=b"", prompt_tokens=700, completion_tokens=50, cost=0.5, attempts=1
    )
    async with Store(tmp_path / "store.sqlite") as store:
        await store.record_call(call)
        settings = ChatSettings(base_url="http://127.0.0.1:1/v1", model="m")
        async with open_client(settings, store, most=4) as client:
            assert client.budget.spent == Spending(tokens=750, usd=0.5)


async def test_the_truth_is_told_to_nobody_but_those_who_prepare_and_test(tmp_path: Path) -> None:
    endpoint = Endpoint()
    await run(endpoint, tmp_path)
    told = {role for role, prompts in endpoint.prompts.items() if any("marmalade-7" in prompt for prompt in prompts)}
    assert told == {"review", "furnish", "examine"}


async def test_a_vague_request_whose_tested_fact_is_nowhere_is_rejected_by_who_has_seen_everything(
    tmp_path: Path,
) -> None:
    vague = DRAFT | {"instruction": "Could you do the usual row count for me?"}
    endpoint = Endpoint(draft=[vague], judge=[{"unstated": ["the path /home/agent/count.txt"]}])
    summary = await run(endpoint, tmp_path, "generate.style=vague")
    assert rejections(summary) == {"examine": {"unstated": 1}}
    (asked,), (judged, *_) = endpoint.prompts["draft"], endpoint.prompts["judge"]
    assert "the way people really ask" in asked
    assert sum(persona.voice in asked for persona in load_taxonomy().personas) == 1
    for shown in (vague["instruction"], COPY.strip(), "files/rows.txt", "count.txt is missing"):
        assert shown in judged
    assert "count.txt is missing" not in endpoint.prompts["examine"][0]
    assert "neither stated nor to be found in the environment: the path" in endpoint.prompts["examine"][1]


@pytest.mark.parametrize(
    ("changes", "stage", "reason"),
    [
        pytest.param(
            {"draft": [DRAFT | {"instruction": "Write 417 for marmalade-7 into /home/agent/count.txt."}]},
            "review",
            "truth_leak",
            id="the instruction states the truth",
        ),
        pytest.param(
            {"furnish": [GOOD_ENVIRONMENT | {"files": [{"path": "files/rows.txt", "content": "marmalade-7\n"}]}]},
            "furnish",
            "truth_leak",
            id="a file holds the truth",
        ),
        pytest.param(
            {"furnish": [GOOD_ENVIRONMENT | {"dockerfile": COPY + "RUN echo marmalade-$((6+1)) > .note\n"}]},
            "certify",
            "truth_leak",
            id="a build step makes the truth",
        ),
        pytest.param(
            {"examine": [{"final_tests": INITIAL_TESTS}]},
            "examine",
            "passes_at_start",
            id="the tests pass at the start",
        ),
        pytest.param(
            {"examine": [{"final_tests": "def test_it() -> None:\n    open('/home/agent/count.txt')\n"}]},
            "examine",
            "tests_error",
            id="the tests break at the start",
        ),
        pytest.param(
            {"furnish": [GOOD_ENVIRONMENT | {"dockerfile": f"{COPY}RUN exit 3\n"}]},
            "furnish",
            "build_failed",
            id="it never builds",
        ),
        pytest.param({"judge": [{"unstated": ["a name"]}]}, "examine", "unstated", id="a tested fact cannot be known"),
        pytest.param({"judge": [{"untested": ["a form"]}]}, "examine", "untested", id="a wish is not tested"),
        pytest.param({"solve": ["<action>done</action>"]}, "solve", "unsolved", id="nobody solves it"),
        pytest.param(
            {"cheat": ["<command>echo 417 > /home/agent/count.txt</command>", "<action>done</action>"]},
            "certify",
            "cheatable",
            id="a cheater passes",
        ),
        pytest.param({"review": ["no JSON at all"]}, "review", "answer_unusable", id="a reviewer babbles"),
    ],
)
async def test_what_is_wrong_with_a_task_is_its_reason(
    tmp_path: Path, changes: dict[str, list[Any]], stage: str, reason: str
) -> None:
    summary = await run(Endpoint(**changes), tmp_path)
    assert summary.tasks == ()
    assert rejections(summary) == {stage: {reason: 1}}


@pytest.mark.parametrize(
    ("environment", "tries"),
    [({"dockerfile": f"{COPY}RUN exit 3\n"}, 5), ({"dockerfile": "WORKDIR /home/agent\n"}, 3)],
    ids=["five builds", "three rounds"],
)
async def test_furnishing_is_bounded(tmp_path: Path, environment: dict[str, str], tries: int) -> None:
    endpoint = Endpoint(furnish=[GOOD_ENVIRONMENT | environment])
    await run(endpoint, tmp_path)
    assert len(endpoint.prompts["furnish"]) == tries


async def test_a_review_sends_the_draft_back_with_its_critique(tmp_path: Path) -> None:
    good = DEFAULTS["review"][0]
    better_draft = DRAFT | {"instruction": f"{DRAFT['instruction']} Count with a newline as the end of a line."}
    endpoint = Endpoint(
        draft=[DRAFT, better_draft], review=[good | {"data_generatability": 4, "critique": "Say how."}, good]
    )
    assert len((await run(endpoint, tmp_path)).tasks) == 1
    assert "Say how." in endpoint.prompts["draft"][1]
