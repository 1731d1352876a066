"""A policy served by SGLang, over its native HTTP API: ids in, ids out (`/generate`), weights by one of three roads.

The hand-over is all or nothing: new requests wait, running ones are put back into the server's queue (`pause`, mode
retract), the weights are loaded and the cache is flushed, then the server goes on and must name the new weights before
requests are let in again. Whatever fails on the way leaves the client closed to requests until a later hand-over
succeeds; what still ran on the server is aborted, since its weights may be half new.

Each hand-over gives the weights a name that no other has (`12-9f3a41c2`, version first). An answer whose tokens come
from a name that was not served since the request was made is refused: the server was started again in between.

A checkpoint whose tensors have other shapes kills the server, so shapes are compared with those of the directory it
serves before it is asked. Probed with SGLang 0.5.20 and 0.5.23; version spans for each token need 0.5.20.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import anyio
from anyio import to_thread

from runtime.errors import UserError
from trainer.policy.protocol import (
    Continuation,
    HandoverFailed,
    PolicyUnavailable,
    PromptTooLong,
    RequestRefused,
    Sampling,
)
from trainer.policy.sglang_weights import Refused, Road, checksums, from_disk, from_tensors, over_group
from trainer.policy.weight_files import tensor_shapes

if TYPE_CHECKING:
    import aiohttp

API_KEY = "TERMLOOM_ENGINE_API_KEY"
_KEPT_TOKENS = 8
"""Of its context that a server may keep to itself (6 in the versions probed)."""
_UNDO_S = 5.0
"""For what must be asked of a server after a hand-over was given up."""
_TOO_LONG = re.compile(r"the model's (maximum )?context length|exceeds the maximum allowed length")
"""How the server says that a prompt, or a prompt with its answer, does not fit."""
_UNKNOWN_FORM = (KeyError, TypeError, IndexError, ValueError)
"""What reading an answer raises that is not as expected."""


class SGLangClient:
    """One SGLang server. Use as an async context manager; entering it probes the server and fails
    when that cannot do what is needed.

    Args:
        base_url: `http://host:port` of the worker itself (a router forwards `/generate` only).
        road: how weights travel; its deadline is that of the scope in which `update` is called.
        context_tokens: what the server's context must hold, prompt and answers together.
        deadline_s: for one generation, its time in the server's queue included, and for entering the client.

    Requests carry the key that the environment variable `TERMLOOM_ENGINE_API_KEY` holds, if any.
    """

    def __init__(
        self, base_url: str, *, road: Road = "disk", context_tokens: int = 0, deadline_s: float = 600.0
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._road, self._context_tokens, self._deadline_s = road, context_tokens, deadline_s
        key = os.environ.get(API_KEY)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._version = 0
        self._names: list[str] = []
        """What the weights were called that were served, in order; the last ones are served now."""
        self._served: Path | None = None
        self._routable = anyio.Event()
        self._fault: str | None = None
        self._handover = anyio.Lock()  # protects the server's weights: one hand-over at a time

    @property
    def version(self) -> int:
        return self._version

    async def generate(self, ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Continuation:
        if not ids:
            raise ValueError(f"request {request_id}: the prompt is empty")
        body = {
            "input_ids": list(ids),
            "rid": request_id,
            "return_logprob": True,
            "sampling_params": {
                "max_new_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "stop_token_ids": list(sampling.stop_ids),
                "skip_special_tokens": False,
                **({} if sampling.seed is None else {"sampling_seed": sampling.seed}),
            },
        }
        asked, held_s, served = time.monotonic(), 0.0, 0
        try:
            with anyio.fail_after(self._deadline_s):
                await self._wait_in()
                held_s, served = time.monotonic() - asked, len(self._names) - 1
                answer = await self._post("/generate", body)
                answered = time.monotonic()
                await self._wait_in()
                held_s += time.monotonic() - answered
        except Refused as error:
            raise _refusal(error) from error
        except TimeoutError:
            await self._abort(request_id)
            raise PolicyUnavailable(self.base_url, f"no answer within {self._deadline_s:g} s") from None
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._abort(request_id)
            raise
        return _continuation(answer, self.base_url, held_s, names=self._names[served:])

    async def _wait_in(self) -> None:
        """Until no hand-over is under way. Raises: PolicyUnavailable when the last one failed."""
        await self._routable.wait()
        if self._fault is not None:
            raise PolicyUnavailable(self.base_url, self._fault)

    async def score(self, ids: Sequence[int]) -> list[float]:
        body = {
            "input_ids": list(ids),
            "return_logprob": True,
            "logprob_start_len": 0,
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
        }
        answer = await self._post("/generate", body)
        try:
            return [float(entry[0]) for entry in answer["meta_info"]["input_token_logprobs"][1:]]
        except _UNKNOWN_FORM as error:
            raise PolicyUnavailable(self.base_url, f"/generate answered in an unknown form: {error!r}") from error

    async def unlike(self, weights: Path) -> list[str] | None:
        if self._info["device"] != "cpu" or self._ranks != 1:
            return None  # devices hash otherwise, and several processes hold a part each
        try:
            answer = await self._post("/weights_checker", {"action": "checksum"})
            got: Mapping[str, str] = answer["ranks"][0]["checksums"]
        except (Refused, *_UNKNOWN_FORM):
            return None
        wanted = await to_thread.run_sync(checksums, weights, self._info["dtype"])
        if wanted is None or got.keys() != wanted.keys():
            return None  # another architecture: its names are not known here
        return sorted(name for name in got if got[name] != wanted[name])

    async def update(self, weights: Path, version: int) -> None:
        async with self._handover:
            self._routable = anyio.Event()
            self._fault = f"the hand-over of version {version} did not come to its end"
            try:
                await self._load(weights, version)
            except Refused as error:
                self._fault = error.reason
                raise HandoverFailed(self.base_url, version, error.reason) from error
            except (OSError, ValueError) as error:  # of the files
                self._fault = str(error)
                raise HandoverFailed(self.base_url, version, str(error)) from error
            except (HandoverFailed, PolicyUnavailable) as error:
                self._fault = error.reason
                raise
            else:
                self._fault, self._version, self._served = None, version, weights
            finally:
                self._routable.set()

    async def _load(self, weights: Path, version: int) -> None:
        self._compare_shapes(weights, version)
        await self._post("/pause_generation", {"mode": "retract"})
        name, loaded = f"{version}-{secrets.token_hex(4)}", False
        try:
            await self._send(self._post, weights, name)
            self._names.append(name)
            loaded = True
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(_UNDO_S):
                if not loaded:
                    with suppress(Refused):
                        await self._post("/abort_request", {"abort_all": True})
                await self._post("/continue_generation", {})
        served = (await self._model())["weight_version"]
        if served != name:
            raise HandoverFailed(self.base_url, version, f"the server says that it serves {served}, not {name}")

    def _choose_road(self) -> None:
        self._ranks = int(self._info["tp_size"]) * int(self._info["pp_size"])
        self._send = {
            "disk": from_disk,
            "tensors": from_tensors,
            "group": over_group(self.base_url, ranks=self._ranks, device=self._info["device"]),
        }[self._road]

    def _require_room(self) -> None:
        """Raises: UserError when the server's context, or its memory, is too small for an episode."""
        most = self._info.get("max_req_input_len")
        if most is not None and most + _KEPT_TOKENS < self._context_tokens:
            raise UserError(
                self.base_url,
                f"takes at most {most} tokens, and the recipe's episodes may have {self._context_tokens}",
                "Start the server with a larger --context-length (and memory for it), or lower agent.context_tokens",
            )

    def _compare_shapes(self, weights: Path, version: int) -> None:
        try:
            new = tensor_shapes(weights)
            old = tensor_shapes(self._served) if self._served is not None and self._served.is_dir() else new
        except (OSError, ValueError) as error:
            raise HandoverFailed(self.base_url, version, str(error)) from error
        wrong = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        if wrong:
            raise HandoverFailed(
                self.base_url, version, f"tensors missing, unknown or of another shape: {', '.join(wrong[:3])}"
            )

    async def __aenter__(self) -> Self:
        import aiohttp

        self._http: aiohttp.ClientSession = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            headers=self._headers,
        )
        try:
            with anyio.fail_after(self._deadline_s):
                model, self._info = await self._model(), await self._call("GET", "/server_info", None)
                self._names, self._version = [model["weight_version"]], _version(model["weight_version"])
                self._served = Path(model["model_path"])
                self._choose_road()
                self._require_room()
                await self._probe()
        except TimeoutError:
            await self._http.close()
            raise PolicyUnavailable(self.base_url, f"no answer within {self._deadline_s:g} s") from None
        except (*_UNKNOWN_FORM, AttributeError) as error:
            await self._http.close()
            raise UserError(
                self.base_url, f"does not answer as SGLang does: {error!r}", "Give the address of an SGLang server"
            ) from error
        except BaseException:
            await self._http.close()
            raise
        self._routable.set()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.close()

    async def _probe(self) -> None:
        """The server must take ids as they are and say which version each token came from.

        Raises: PolicyUnavailable.
        """
        answer = await self._post(
            "/generate",
            {
                "input_ids": [1, 2, 3],
                "return_logprob": True,
                "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
            },
        )
        if answer["meta_info"].get("prompt_tokens") != 3 or len(_continuation(answer, self.base_url).ids) != 1:
            raise PolicyUnavailable(self.base_url, "it does not take and return token ids as they are")

    async def _model(self) -> Mapping[str, Any]:
        return await self._call("GET", "/model_info", None)

    async def _post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._call("POST", path, body)

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> Mapping[str, Any]:
        import aiohttp

        try:
            async with self._http.request(method, self.base_url + path, json=body) as response:
                text = await response.text()
        except (aiohttp.ClientError, OSError) as error:
            raise PolicyUnavailable(self.base_url, f"{path}: {error or type(error).__name__}") from error
        if response.status >= 400:
            raise Refused(self.base_url, f"{path}: HTTP {response.status}: {text[:300]}", response.status)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {"text": text}
        return answer if isinstance(answer, dict) else {"answer": answer}

    async def _abort(self, request_id: str) -> None:
        """Stop a request where it runs; a server that cannot be reached has none."""
        with anyio.move_on_after(5):
            try:
                await self._post("/abort_request", {"rid": request_id})
            except PolicyUnavailable:
                return


def _refusal(error: Refused) -> Exception:
    """What a refused generation says of the engine: nothing, when the request is at fault."""
    if error.status != 400:
        return error
    kind = PromptTooLong if _TOO_LONG.search(error.reason) else RequestRefused
    return kind(error.endpoint, error.reason)


def _continuation(
    answer: Mapping[str, Any], endpoint: str, held_s: float = 0.0, *, names: Sequence[str] = ()
) -> Continuation:
    """What was sampled, by weights of one of `names` (any, when there are none). Raises: PolicyUnavailable."""
    try:
        meta = answer["meta_info"]
        pairs = meta["output_token_logprobs"]
        ids = [int(pair[1]) for pair in pairs]
        finish = meta["finish_reason"]["type"]
        spans = meta.get("weight_versions") or [{"version": meta["weight_version"], "start": 0, "end": len(ids)}]
        strange = [span["version"] for span in spans if names and span["version"] not in names]
        versions = [_version(span["version"]) for span in spans for _ in range(span["start"], span["end"])]
        logprobs = [float(pair[0]) for pair in pairs]
        queue_s = held_s + float(meta.get("queue_time") or 0.0)
    except _UNKNOWN_FORM as error:
        raise PolicyUnavailable(endpoint, f"/generate answered in an unknown form: {error!r}") from error
    if strange:
        raise PolicyUnavailable(endpoint, f"it serves weights '{strange[0]}', which nobody handed over to it")
    if len(versions) != len(ids):
        raise PolicyUnavailable(endpoint, f"/generate gave versions for {len(versions)} of {len(ids)} tokens")
    ending: Any = finish if finish in ("stop", "length") else "abort"
    return Continuation(ids=ids, logprobs=logprobs, versions=versions, finish=ending, queue_s=queue_s)


def _version(text: str) -> int:
    """`"v3"`, `"3"` and `"3-9f3a41c2"` are version 3; a server started without a version serves version 0."""
    digits = text.removeprefix("v").partition("-")[0]
    return int(digits) if digits.isdigit() else 0
