"""A directory holds the result of one basis: the same is gone on with, anything else is refused with its name."""

import msgspec
import pytest

from runtime.agent.settings import SOLVE, AgentSettings
from runtime.errors import UserError
from runtime.store import Store
from tests.trainer.world import make_model, make_task
from trainer.basis import Player, basis_of, begin, policy_digest, require_same

ENDPOINT = Player(model="m1", served_by="endpoint", address="http://here")
POLICY = Player(model="/policy", weights="a" * 64, served_by="torch", chat_format="small")


@pytest.fixture
def asked(tmp_path):
    """What is asked for, with changes."""
    tasks = [make_task(tmp_path / "tasks", name) for name in "ab"]

    def make(tasks=tasks, settings=SOLVE, **changes):
        usual = {"player": ENDPOINT, "engine": "namespace", "grade_overflow": True, "attempts": 1, "seed": 0}
        return basis_of(tasks, settings, **(usual | changes))

    return make


async def opened(tmp_path, basis):
    async with Store(tmp_path / "out" / "store.sqlite") as store:
        await begin(store, "r", basis, command="evaluate")


async def test_the_same_is_gone_on_with(tmp_path, asked):
    for _ in range(2):
        await require_same(tmp_path / "out" / "store.sqlite", "r", asked())
        await opened(tmp_path, asked())


@pytest.mark.parametrize(
    ("began", "changes", "told"),
    [
        (ENDPOINT, {"player": msgspec.structs.replace(ENDPOINT, model="m2")}, "model was 'm1' at http://here and is now"
         " 'm2' at http://here"),
        (ENDPOINT, {"player": msgspec.structs.replace(ENDPOINT, address="http://there")}, "now 'm1' at http://there"),
        (POLICY, {"player": msgspec.structs.replace(POLICY, weights="b" * 64)}, "model was '/policy' (weights"
         " aaaaaaaaaaaa) and is now '/policy' (weights bbbbbbbbbbbb)"),
        (POLICY, {"player": msgspec.structs.replace(POLICY, served_by="sglang")}, "serving engine was 'torch'"),
        (POLICY, {"player": msgspec.structs.replace(POLICY, chat_format="qwen3")}, "chat format was 'small'"),
        (ENDPOINT, {"settings": AgentSettings(max_turns=3)}, "settings.max_turns was 16 and is now 3"),
        (ENDPOINT, {"grade_overflow": False}, "context_overflow was 'grade' and is now 'exclude'"),
        (ENDPOINT, {"attempts": 2, "seed": 7}, "attempts was 1 and is now 2; seed was 0 and is now 7"),
        (ENDPOINT, {"engine": "docker"}, "sandbox engine was 'namespace' and is now 'docker'"),
    ],
)  # fmt: skip
async def test_another_basis_is_refused_with_what_differs(tmp_path, asked, began, changes, told):
    await opened(tmp_path, asked(player=began))
    wanted = asked(**{"player": began, **changes})
    for refused in (require_same(tmp_path / "out" / "store.sqlite", "r", wanted), opened(tmp_path, wanted)):
        with pytest.raises(UserError) as error:
            await refused
        assert told in str(error.value)
        assert error.value.where == str(tmp_path / "out")
        assert error.value.remedy == "Choose another --out"


async def test_other_tasks_are_refused_by_name(tmp_path, asked):
    await opened(tmp_path, asked())
    make_task(tmp_path / "edited", "a", instruction="Write something else.")
    tasks = [tmp_path / "edited" / "a", make_task(tmp_path / "tasks", "c")]
    with pytest.raises(
        UserError, match=r"task 'a' has other content; task 'b' is no longer .*; task 'c' was not in it"
    ):
        await opened(tmp_path, asked(tasks=tasks))


async def test_a_policy_is_known_by_its_files_wherever_they_lie(tmp_path, asked):
    first, same, other = (make_model(tmp_path / name, seed=name == "other") for name in ("first", "same", "other"))
    digests = [policy_digest(path) for path in (first, same, other)]
    assert digests[0] == digests[1] != digests[2]
    (same / "tokenizer.json").write_text("{}")
    assert policy_digest(same) != digests[0]
    await opened(tmp_path, asked(player=POLICY))
    await opened(tmp_path, asked(player=msgspec.structs.replace(POLICY, model="/moved")))
    with pytest.raises(UserError, match="holds no weights"):
        policy_digest(tmp_path)


async def test_a_run_of_an_earlier_program_is_held_to_the_settings_that_it_recorded(tmp_path, asked):
    async with Store(tmp_path / "out" / "store.sqlite") as store:
        await store.open_run("r", command="evaluate", settings=AgentSettings().model_dump_json())
    await opened(tmp_path, asked())
    with pytest.raises(UserError, match=r"settings\.max_turns was 16 and is now 3"):
        await opened(tmp_path, asked(settings=AgentSettings(max_turns=3)))


async def test_a_run_of_a_newer_program_is_refused(tmp_path, asked):
    async with Store(tmp_path / "out" / "store.sqlite") as store:
        await store.open_run("r", command="evaluate", settings='{"schema": 9}')
    with pytest.raises(UserError, match="of schema 9"):
        await opened(tmp_path, asked())
