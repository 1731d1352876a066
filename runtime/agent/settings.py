"""The one settings object of every episode: solving, rolling out and evaluating differ by value, never by kind."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class AgentSettings(BaseModel):
    """Limits and formats of an episode. Saved with each trajectory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["minimal", "memory", "terminus-2"] = "minimal"
    """Which agent: `runtime.agent.kind` tells them apart."""
    prompt: Literal["system", "terse"] = "system"
    """`terse` is one line, for small policies that learn the form from demonstrations."""
    max_turns: int = Field(default=16, ge=1)
    """The papers' limit for training and solving; `EVALUATE` has 64."""
    max_tokens_per_turn: int = Field(default=2048, ge=1)
    """The papers' limit."""
    context_tokens: int = Field(default=16384, ge=1)
    """The papers' limit on prompt and answers together."""
    min_answer_tokens: int = Field(default=256, ge=1)
    """With less room than this no command fits any more: the episode ends as `context_length`."""
    observation_tokens: int = Field(default=1536, ge=16)
    """Output shown per command, head and tail. Typical episodes fit the context; sixteen full outputs would not."""
    memory_tokens: int = Field(default=2048, ge=64)
    """Length of the summary with which the agent `memory` begins a fresh context: an eighth of the default context."""
    command_timeout_s: float = Field(default=30.0, gt=0)
    """Under load ten seconds end honest commands; a time-out costs a turn, not the shell."""
    episode_deadline_s: float = Field(default=900.0, gt=0)
    """Model time and command time together. Waiting in our own queues is not counted: a busy machine is not the agent's
    fault."""
    temperature: float = Field(default=1.0, ge=0)
    max_malformed: int = Field(default=3, ge=1)
    """Malformed answers in a row that end the episode."""
    max_repeats: int = Field(default=8, ge=2)
    """The same command with the same result, this many times in a row, ends the episode as a loop."""
    parser_version: Literal[1] = 1
    """Of `runtime.agent.parser`: trajectories of different versions are not mixed."""
    observation_version: Literal[1] = 1
    """Of `runtime.agent.observation`."""


SOLVE = AgentSettings()
EVALUATE = AgentSettings(max_turns=64)
