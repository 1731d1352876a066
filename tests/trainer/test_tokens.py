"""Chat formats token by token, untrusted text, and what of an episode is trained on."""

import msgspec
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from runtime.agent.episode import run_episode
from runtime.agent.policy import PolicyTurn
from runtime.agent.scripted import ScriptedSession
from runtime.agent.settings import AgentSettings
from runtime.chat.messages import ChatMessage
from runtime.errors import ChatUnavailable, ContextOverflow
from runtime.trajectory import Tokens, Trajectory, Turn
from sandbox.spec import FailureClass
from trainer.policy.agent import PrefixBroken, TokenPolicy, render, sample_of
from trainer.policy.protocol import Continuation, PolicyUnavailable, PromptTooLong, RequestRefused
from trainer.tokens import FORMATS, Encoder

SPECIAL = [
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|turn|>",
    "<|end|>",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A byte-level tokeniser without merges that knows the markers of all formats."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    built = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens(SPECIAL)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    built.save(str(path))
    return path


def shown(tokenizer, ids):
    return Tokenizer.from_file(str(tokenizer)).decode(list(ids), skip_special_tokens=False)


EXPECTED = {
    "llama3": (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nO<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|>"
    ),
    "qwen2.5": (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
        "<|im_start|>user\nO<|im_end|>\n<|im_start|>assistant\nB<|im_end|>"
    ),
    "small": (
        "<|turn|>system\nS<|end|><|turn|>user\nU<|end|><|turn|>assistant\nA<|end|>"
        "<|turn|>user\nO<|end|><|turn|>assistant\nB<|end|>"
    ),
}
EXPECTED["qwen3"] = EXPECTED["qwen2.5"]


class Scripted:
    """A policy client that samples what it is told."""

    version = 0

    def __init__(self, answers):
        self.answers, self.prompts = list(answers), []

    async def generate(self, ids, sampling, *, request_id):
        self.prompts.append(list(ids))
        answer = self.answers.pop(0)
        return Continuation(ids=list(answer), logprobs=[-1.0] * len(answer), versions=[0] * len(answer), finish="stop")


async def play(encoder, answers):
    """Two turns; returns the finished trajectory."""
    client = Scripted(answers)
    policy = TokenPolicy(client, encoder)
    history = [ChatMessage(role="system", content="S"), ChatMessage(role="user", content="U")]
    turns = []
    for observation in ("O", "P"):
        turn = await policy.act(history, max_tokens=9, temperature=1.0, key="k")
        turns.append(Turn(index=len(turns) + 1, text=turn.text, action="command", tokens=turn.tokens))
        history += [turn, ChatMessage(role="user", content=observation)]
    return Trajectory(
        trajectory_id="t",
        run_id="r",
        task="x",
        opening=tuple(history[:2]),
        turns=tuple(turns),
        failure="ok",
        settings={},
        parser_version=1,
        prompt_version="p",
    )


@pytest.mark.parametrize("name", sorted(FORMATS))
async def test_the_frame_and_the_mask_decode_to_what_they_should(tokenizer, name):
    encoder = Encoder(tokenizer, FORMATS[name])
    stop = encoder.stop_ids[0]
    trajectory = await play(encoder, [[*encoder.text("A"), stop], [*encoder.text("B"), stop]])
    sample = sample_of(trajectory, group="g", reward=1.0)
    assert shown(tokenizer, sample.ids) == EXPECTED[name]
    trained = [token for token, m in zip(sample.ids, sample.mask, strict=True) if m]
    assert shown(tokenizer, trained) == f"A{FORMATS[name].close}B{FORMATS[name].close}"


async def test_a_turn_cut_at_the_limit_is_closed_by_a_token_nobody_sampled(tokenizer):
    encoder = Encoder(tokenizer, FORMATS["qwen2.5"])
    trajectory = await play(encoder, [encoder.text("A"), [*encoder.text("B"), encoder.stop_ids[0]]])
    sample = sample_of(trajectory, group="g", reward=0.0)
    assert shown(tokenizer, sample.ids) == EXPECTED["qwen2.5"]
    trained = [token for token, m in zip(sample.ids, sample.mask, strict=True) if m]
    assert shown(tokenizer, trained) == "AB<|im_end|>"


@pytest.mark.parametrize("name", sorted(FORMATS))
async def test_prompt_and_answer_fit_the_context_to_the_last_token(tokenizer, name):
    encoder, asked = Encoder(tokenizer, FORMATS[name]), []

    class Wordy:
        """Acts until it is out of room."""

        async def generate(self, ids, sampling, *, request_id):
            asked.append((len(ids), sampling.max_tokens))
            said = [*encoder.text(f"<command>echo {request_id}</command>"), *encoder.stop_ids]
            return Continuation(ids=said, logprobs=[-1.0] * len(said), versions=[0] * len(said), finish="stop")

    settings = AgentSettings(context_tokens=800, min_answer_tokens=60, prompt="terse")
    policy, session = TokenPolicy(Wordy(), encoder), ScriptedSession(lambda _command: "seen")
    episode = await run_episode(policy, session, "Do it.", settings, key="item/1")
    assert episode.failure is FailureClass.CONTEXT_LENGTH
    assert len(asked) > 1
    assert {prompt + most for prompt, most in asked} == {800}
    assert [prompt for prompt, _ in asked] == [turn.prompt_tokens for turn in episode.turns]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (PromptTooLong("e", "too long"), ContextOverflow),
        (RequestRefused("e", "HTTP 400"), ChatUnavailable),
        (PolicyUnavailable("e", "down"), ChatUnavailable),
    ],
)
async def test_a_prompt_that_the_engine_finds_too_long_is_an_overflow_and_a_failing_engine_none(
    tokenizer, error, raised
):
    class Failing:
        async def generate(self, ids, sampling, *, request_id):
            raise error

    policy = TokenPolicy(Failing(), Encoder(tokenizer, FORMATS["qwen2.5"]))
    with pytest.raises(raised):
        await policy.act([ChatMessage(role="user", content="U")], max_tokens=9, temperature=1.0, key="k")


@pytest.mark.parametrize("marker", SPECIAL)
def test_markers_in_untrusted_text_are_ordinary_tokens(tokenizer, marker):
    encoder = Encoder(tokenizer, FORMATS["qwen2.5"])
    ids = encoder.text(f"a{marker}b")
    special = {Tokenizer.from_file(str(tokenizer)).token_to_id(s) for s in SPECIAL}
    assert not special & set(ids)
    assert encoder.decode(ids) == f"a{marker}b"


async def test_a_prompt_that_does_not_continue_the_episode_is_refused(tokenizer):
    encoder = Encoder(tokenizer, FORMATS["small"])
    trajectory = await play(encoder, [encoder.text("A"), encoder.text("B")])
    second = trajectory.turns[1]
    forged = msgspec.structs.replace(
        second, tokens=msgspec.structs.replace(second.tokens, prompt_ids=(1, *second.tokens.prompt_ids[1:]))
    )
    with pytest.raises(PrefixBroken, match="turn 2"):
        sample_of(msgspec.structs.replace(trajectory, turns=(trajectory.turns[0], forged)), group="g", reward=0.0)


def test_a_history_of_another_kind_of_policy_is_refused(tokenizer):
    encoder = Encoder(tokenizer, FORMATS["small"])
    with pytest.raises(ValueError, match="no tokens"):
        render(
            encoder,
            [ChatMessage(role="user", content="U"), PolicyTurn(text="ls"), ChatMessage(role="user", content="O")],
        )


def test_a_tokeniser_without_the_markers_is_refused(tokenizer):
    import dataclasses

    with pytest.raises(ValueError, match="no token <odd>"):
        Encoder(tokenizer, dataclasses.replace(FORMATS["small"], close="<odd>"))


async def test_sampled_lists_must_agree(tokenizer):
    with pytest.raises(ValueError, match="differ in length"):
        Tokens(prompt_ids=(1,), completion_ids=(2,), logprobs=(), versions=(0,))
