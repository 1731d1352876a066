"""Who samples in a run: the recipe's engines behind one pool, and the policy over them that the agent loop asks."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from anyio import to_thread

from runtime.errors import UserError
from trainer.handover import PolicyPool, WeightStore
from trainer.policy.protocol import PolicyClient
from trainer.recipe import Recipe
from trainer.tokens import FORMATS, Encoder

if TYPE_CHECKING:
    from torch import nn

_PROBE = "printf 'one two three\\n' > /home/agent/numbers.txt && sort -r /home/agent/numbers.txt | head -n 2"
"""Text of the fingerprint: any text that is not a single token will do."""
_PROBE_TOKENS = 64
_VERSION = 0
"""Of a policy that is not in training."""


def open_pool(recipe: Recipe, model: Path, urls: Sequence[str]) -> AbstractAsyncContextManager[PolicyPool]:
    """The pool, to be entered: SGLang servers at `urls`, or one engine in this process. Raises: UserError."""
    clients: dict[str, PolicyClient] = {}
    if recipe.serve.engine == "sglang":
        from trainer.policy.sglang import SGLangClient

        if not urls:
            raise UserError(
                "serve.engine",
                "is 'sglang', but no server is named",
                "Give --engine-url; --dry-run prints how to start one",
            )
        road, tokens = recipe.serve.handover, recipe.context_tokens
        clients = {url: SGLangClient(url, road=road, context_tokens=tokens) for url in urls}
    else:
        from trainer.parallel import own_device
        from trainer.policy.torch_engine import TorchEngine

        if urls:
            raise UserError(
                "--engine-url", "is given, but serve.engine is 'torch'", "Leave it out, or set serve.engine"
            )
        clients = {"in-process": TorchEngine(load_policy(model).to(own_device()), slots=recipe.serve.max_running)}
    return PolicyPool(clients, tolerance=recipe.serve.probe_tolerance)


@asynccontextmanager
async def serve(
    recipe: Recipe, model: Path, urls: Sequence[str], *, encoder: Encoder, place: Path
) -> AsyncIterator[PolicyPool]:
    """A pool that serves the weights of a model directory for sure: servers are handed them, and held against them.

    Args:
        place: a directory for the weights while they are served; removed at the end.

    Raises: UserError; HandoverFailed when no server serves them; PolicyUnavailable.
    """
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        pool = await stack.enter_async_context(open_pool(recipe, model, urls))
        if recipe.serve.engine == "sglang":
            published = await to_thread.run_sync(_publish, model, place, probe_ids(encoder))
            await pool.update(published, _VERSION)
        yield pool


def _publish(model: Path, place: Path, probe: Sequence[int]) -> Path:
    return WeightStore(place).publish(load_policy(model), _VERSION, probe=probe)


def load_policy(model: Path) -> nn.Module:
    """The weights of a model directory. Raises: UserError."""
    from trainer.model import load_model

    try:
        return load_model(model)
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # safetensors, pickle and each model's configuration have errors of their own
        raise UserError(
            str(model), f"no model can be loaded: {error}", "Give a whole Hugging Face directory"
        ) from error


def open_encoder(recipe: Recipe, model: Path) -> Encoder:
    """The tokeniser of a model directory in the recipe's chat format. Raises: UserError."""
    path = model / "tokenizer.json"
    if not path.is_file():
        raise UserError(str(model), "holds no tokenizer.json", "Give a whole Hugging Face directory with --model")
    try:
        return Encoder(path, FORMATS[recipe.model.chat_format])
    except ValueError as error:
        raise UserError(str(path), str(error), "Set model.chat_format to the model's own") from None
    except Exception as error:  # tokenizers has none of its own
        raise UserError(
            str(path), f"is no tokeniser that can be read: {error}", "Give a whole Hugging Face directory"
        ) from error


def probe_ids(encoder: Encoder) -> tuple[int, ...]:
    """Token ids of the fingerprint that each hand-over is checked with."""
    ids = (*encoder.begin(), *encoder.header("user"), *encoder.text(_PROBE), *encoder.footer(closed=False))
    return ids[:_PROBE_TOKENS]
