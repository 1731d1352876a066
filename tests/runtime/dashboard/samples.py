"""Trajectories for the viewer's tests: a mistake with its recovery, and one that attacks whoever looks at it."""

from __future__ import annotations

from pathlib import Path

from runtime.chat.messages import ChatMessage
from runtime.trajectory import CriticVerdict, Trajectory, Turn, encode
from sandbox.spec import FailureClass, GradedTest, Verdict

ATTACK = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\x1b[2J"


def trajectory(number: int) -> Trajectory:
    return Trajectory(
        trajectory_id=f"t{number}",
        run_id="synthesis-1",
        task="count-the-errors",
        source="synthesis",
        model="scripted",
        opening=(
            ChatMessage(role="system", content="You work in a terminal."),
            ChatMessage(role="user", content="Count the lines with ERROR in app.log; write it to count."),
        ),
        turns=(
            Turn(
                index=1,
                text="",
                action="command",
                thought="First a look at the log.",
                command="head -3 app.log",
                observation="INFO start\nERROR disk\nINFO end\n",
                exit_code=0,
                intent="correct",
                command_s=0.03,
            ),
            Turn(
                index=2,
                text="",
                action="command",
                thought="Now count.",
                command="grep -c Error app.log > count",
                observation="(exit 1)",
                exit_code=1,
                intent="error",
                error_type="command_error",
                effect="files",
                loss_weight=0.0,
                command_s=0.02,
                critic=(
                    CriticVerdict(
                        accepted=False, critique="This would pass.", rejected_command="grep -c ERROR app.log"
                    ),
                    CriticVerdict(accepted=True),
                ),
            ),
            Turn(
                index=3,
                text="",
                action="command",
                thought="The case was wrong.",
                command="grep -c ERROR app.log > count",
                observation="",
                exit_code=0,
                intent="correct",
                command_s=0.02,
            ),
            Turn(index=4, text="", action="done", thought="The number is there."),
        ),
        failure=FailureClass.OK,
        verdict=Verdict(
            reward=1.0,
            failure=FailureClass.OK,
            tests=(
                GradedTest(name="test_count", outcome="passed"),
                GradedTest(name="test_only_number", outcome="passed"),
            ),
        ),
        started_at=1_795_000_000.0,
    )


def hostile() -> Trajectory:
    return Trajectory(
        trajectory_id="bad",
        run_id="r",
        task=ATTACK,
        model=ATTACK,
        opening=(ChatMessage(role="user", content=ATTACK),),
        turns=(
            Turn(
                index=1, text=ATTACK, action="command", thought=ATTACK, command=ATTACK, observation=ATTACK, exit_code=0
            ),
        ),
        failure=FailureClass.SANDBOX_LOST,
        detail=ATTACK,
    )


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trajectories.jsonl").write_bytes(
        b"\n".join([*(encode(trajectory(n)) for n in range(3)), encode(hostile())]) + b"\n"
    )
    lines = [f'{{"step": {n}, "reward": {1 - 0.95**n}, "policy_loss": {0.9**n}}}' for n in range(60)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
