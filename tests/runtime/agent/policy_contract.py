"""What every policy keeps (`runtime.agent.policy`). Subclass it and give `open_policy`."""

from contextlib import AbstractAsyncContextManager

from runtime.agent.policy import History, Policy, PolicyTurn
from runtime.chat.messages import ChatMessage

LINES = ("<command>pwd</command>", "<command>ls</command>", "<action>done</action>")
OPENING: tuple[ChatMessage, ...] = (
    ChatMessage(role="system", content="You are in a terminal."),
    ChatMessage(role="user", content="Look around."),
)
SEEN = ChatMessage(role="user", content="exit code: 0\noutput: (none)")


class PolicyContract:
    def open_policy(self, lines: tuple[str, ...]) -> AbstractAsyncContextManager[Policy]:
        """A policy that answers with these lines, the n-th when n turns are in the history."""
        raise NotImplementedError

    async def act(self, policy: Policy, history: History, *, max_tokens: int = 100) -> PolicyTurn:
        return await policy.act(history, max_tokens=max_tokens, temperature=0.0, key=f"item/1/{len(history)}")

    async def test_it_answers_turn_by_turn_from_the_history_alone(self):
        async with self.open_policy(LINES) as policy:
            first = await self.act(policy, OPENING)
            second = await self.act(policy, (*OPENING, first, SEEN))
        assert (first.text, second.text) == LINES[:2]

    async def test_the_same_draw_again_is_the_same_turn(self):
        async with self.open_policy(LINES) as policy:
            first = await self.act(policy, OPENING)
            await self.act(policy, (*OPENING, first, SEEN))
            assert (await self.act(policy, OPENING)).text == first.text

    async def test_it_counts_the_tokens_that_it_took_and_gave(self):
        async with self.open_policy(LINES) as policy:
            first = await self.act(policy, OPENING)
            second = await self.act(policy, (*OPENING, first, SEEN))
        assert second.prompt_tokens > first.prompt_tokens > 0
        assert first.completion_tokens > 0

    async def test_a_prompt_is_counted_from_the_history(self):
        async with self.open_policy(LINES) as policy:
            first = await self.act(policy, OPENING)
            used = first.prompt_tokens + first.completion_tokens
            assert policy.count_prompt(OPENING) > 0
            assert policy.count_prompt((*OPENING, first, SEEN)) >= used + policy.count_tokens(SEEN.content)

    async def test_a_text_has_more_tokens_than_its_half(self):
        async with self.open_policy(LINES) as policy:
            assert policy.count_tokens("word " * 100) > policy.count_tokens("word " * 50) > 0

    async def test_token_data_where_given_matches_the_counts(self):
        async with self.open_policy(LINES) as policy:
            turn = await self.act(policy, OPENING)
        if turn.tokens is not None:
            assert len(turn.tokens.completion_ids) == turn.completion_tokens
            assert len(turn.tokens.prompt_ids) == turn.prompt_tokens
