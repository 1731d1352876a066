"""A token-level policy for the agent loop, and the training sample of a finished episode.

`TokenPolicy` answers the agent loop's history: it starts from the ids that its own last turn saw and sampled,
appends the ids of what came after, and asks the policy client to go on. So nothing that was sampled is tokenised
again.
"""

from __future__ import annotations

import hashlib
import time

from runtime.agent.policy import History, PolicyTurn
from runtime.chat.messages import ChatMessage
from runtime.errors import ChatUnavailable, ContextOverflow
from runtime.trajectory import Tokens, Trajectory
from trainer.policy.protocol import PolicyClient, PolicyUnavailable, PromptTooLong, Sampling
from trainer.sample import Sample
from trainer.tokens import Encoder, Transcript


class PrefixBroken(AssertionError):
    """A turn's prompt does not begin with what came before: the episode must not be trained on."""

    def __init__(self, trajectory: str, turn: int) -> None:
        super().__init__(
            f"{trajectory}: the prompt of turn {turn} does not begin with the tokens of the turns before it"
        )


class TokenPolicy:
    """Decides by sampling tokens from a policy client."""

    def __init__(self, client: PolicyClient, encoder: Encoder, *, seed: int | None = None) -> None:
        self._client, self._encoder, self._seed = client, encoder, seed

    async def act(self, history: History, *, max_tokens: int, temperature: float, key: str) -> PolicyTurn:
        prompt = render(self._encoder, history)
        sampling = Sampling(
            max_tokens=max_tokens, temperature=temperature, stop_ids=self._encoder.stop_ids, seed=_seed(self._seed, key)
        )
        started = time.monotonic()
        try:
            got = await self._client.generate(prompt, sampling, request_id=key)
        except PolicyUnavailable as error:
            raise ChatUnavailable(error.endpoint, error.reason) from error
        except PromptTooLong as error:
            raise ContextOverflow(error.endpoint, error.reason) from error
        return PolicyTurn(
            text=self._encoder.decode(got.ids),
            finish=got.finish,
            prompt_tokens=len(prompt),
            completion_tokens=len(got.ids),
            model_s=max(0.0, time.monotonic() - started - got.queue_s),
            queue_wait_s=got.queue_s,
            tokens=Tokens(
                prompt_ids=tuple(prompt),
                completion_ids=tuple(got.ids),
                logprobs=tuple(got.logprobs),
                versions=tuple(got.versions),
            ),
        )

    def count_tokens(self, text: str) -> int:
        return len(self._encoder.text(text))

    def count_prompt(self, history: History) -> int:
        return len(render(self._encoder, history))


def render(encoder: Encoder, history: History) -> list[int]:
    """Ids of a history up to the first token of the next turn. Every `PolicyTurn` in it must carry its tokens."""
    last = max((i for i, entry in enumerate(history) if isinstance(entry, PolicyTurn)), default=-1)
    if last < 0:
        ids = list(encoder.begin())
    else:
        turn = history[last]
        assert isinstance(turn, PolicyTurn)
        if turn.tokens is None:
            raise ValueError("a turn of the history has no tokens: it came from another kind of policy")
        ids = [*turn.tokens.prompt_ids, *turn.tokens.completion_ids]
        ids += encoder.footer(
            closed=bool(turn.tokens.completion_ids) and turn.tokens.completion_ids[-1] in encoder.stop_ids
        )
    for entry in history[last + 1 :]:
        assert isinstance(entry, ChatMessage)
        ids += encoder.message(entry.role, entry.content)
    return ids + list(encoder.header("assistant"))


def sample_of(trajectory: Trajectory, *, group: str, reward: float) -> Sample:
    """What the learner sees of an episode: all its tokens, the sampled ones trainable.

    Raises: PrefixBroken; ValueError when a turn has no tokens.
    """
    transcript = Transcript()
    for number, turn in enumerate(trajectory.turns, start=1):
        if turn.tokens is None:
            raise ValueError(f"{trajectory.trajectory_id}: turn {number} has no tokens")
        prompt = turn.tokens.prompt_ids
        if list(prompt[: len(transcript.ids)]) != transcript.ids:
            raise PrefixBroken(trajectory.trajectory_id, number)
        transcript.context(prompt[len(transcript.ids) :])
        transcript.sampled(turn.tokens.completion_ids, turn.tokens.logprobs, turn.tokens.versions)
    return Sample(
        id=trajectory.trajectory_id,
        group=group,
        ids=transcript.ids,
        mask=transcript.mask,
        logprobs=transcript.logprobs,
        versions=transcript.versions,
        reward=reward,
        failure=str(trajectory.failure),
        turns=len(trajectory.turns),
    )


def _seed(seed: int | None, key: str) -> int | None:
    if seed is None:
        return None
    return int.from_bytes(hashlib.blake2b(f"{seed}/{key}".encode(), digest_size=4).digest(), "big") >> 1
