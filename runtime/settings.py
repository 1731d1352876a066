"""Every setting of the program, as one frozen tree.

Precedence, for each key on its own: `--set a.b=c`, then the environment (`TERMLOOM_A__B`), then the TOML file of
`--config`, then the default.

Invariants:
- An unknown key is refused with a suggestion, wherever it was written; a wrong value is refused with its place.
- `Settings()` is the defaults and looks at nothing else; only `load_settings` reads files and the environment.
- A secret is never shown: what is printed or recorded is masked.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationError,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from runtime.errors import UserError
from sandbox.spec import Limits as SandboxLimits

PREFIX = "TERMLOOM_"


class Section(BaseModel):
    """Base of the tree's branches."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SandboxLimitSettings(Section):
    """What one sandbox may use, unless its task says otherwise."""

    memory_mb: PositiveInt = 2048
    pids: PositiveInt = 512
    cpus: PositiveFloat = 1.0
    disk_mb: PositiveInt = 1024
    lifetime_s: PositiveFloat = 3600.0

    def limits(self) -> SandboxLimits:
        """As the sandbox layer takes them."""
        return SandboxLimits(**self.model_dump())


class SandboxSettings(Section):
    engine: Literal["auto", "docker", "namespace"] = "auto"
    """`auto` takes Docker where it answers, else the daemonless engine."""
    docker_url: str = ""
    """Empty: `DOCKER_HOST`, else the usual socket."""
    limits: SandboxLimitSettings = SandboxLimitSettings()


class LimitSettings(Section):
    """How much of each kind of work goes on at once. The defaults suit two cores."""

    build: PositiveInt = 2
    create: PositiveInt = 8
    run: PositiveInt = 64
    """Sessions: they wait most of the time."""
    grade: PositiveInt = 2
    chat: PositiveInt = 32
    score: PositiveInt = 2

    def sizes(self) -> dict[str, int]:
        """As `runtime.limits.Limits` takes them."""
        return dict(self.model_dump())


def _home(variable: str, xdg: str, fallback: str) -> Path:
    """`$TERMLOOM_...`, else our directory under the XDG one."""
    if own := os.environ.get(variable):
        return Path(own).absolute()
    return Path(os.environ.get(xdg) or _home_directory() / fallback).absolute() / "termloom"


def _home_directory() -> Path:
    """Raises: UserError where neither HOME nor the accounts know one."""
    try:
        return Path.home()
    except RuntimeError:
        raise UserError("HOME", "is not set, and this user has no account", "Set HOME") from None


class PathSettings(Section):
    state: Path = Field(default_factory=lambda: _home("TERMLOOM_STATE", "XDG_STATE_HOME", ".local/state"))
    """Stores, journals and logs of runs."""
    cache: Path = Field(default_factory=lambda: _home("TERMLOOM_CACHE", "XDG_CACHE_HOME", ".cache"))
    """What can be made again: images, builds."""


class Quota(Section):
    """So many tasks of one cell; what is left empty may be anything."""

    category: str = ""
    complexity: str = ""
    tier: Annotated[int, Field(ge=0)] = 0
    family: str = ""
    count: PositiveInt


class GenerateSettings(Section):
    count: PositiveInt = 12
    seed: int = 0
    attempts: PositiveInt = 16
    """Solver attempts a task at most, for pass@k and the pass rate."""
    review_rounds: PositiveInt = 3
    furnish_rounds: PositiveInt = 3
    builds: PositiveInt = 5
    """Image builds a task at most, over all rounds."""
    examine_rounds: PositiveInt = 3
    certificate_repeats: PositiveInt = 3
    """The reference must pass this many times, each in a fresh sandbox."""
    author: Literal["procedural", "chat"] = "procedural"
    """Who plays the roles: task families that need no model, or the endpoint of the section `chat`."""
    attempts_least: PositiveInt = 4
    """Attempts that say something about the pass rate; with one success among them no more are made."""
    candidates_per_task: PositiveInt = 4
    """A run gives up after this many candidates for each task asked for: a lower yield wants another author."""
    command_timeout_s: PositiveFloat = 60.0
    """For one command of a reference that is played back."""
    categories: tuple[str, ...] = ()
    """Empty: all."""
    levels: tuple[int, ...] = ()
    """Empty: all, 1 to 10."""
    quotas: tuple[Quota, ...] = ()
    """Tasks wanted of each cell of the taxonomy; what they leave of `count` is drawn freely."""
    families: tuple[str, ...] = ()
    """Task families of the procedural author. Empty: all that suit the style."""
    style: Literal["", "exact", "conversational", "brief", "vague", "terse"] = ""
    """Of the instructions. Empty: each task draws its own, any but `terse`."""
    band: str = ""
    """Lowest and highest pass rate of a task, as `1/8..7/8`; empty: above 0. What always succeeds teaches nothing."""
    band_model: str = ""
    """The policy whose pass rate the band is about, at the endpoint of section `band`; empty: the author's solver."""
    band_confidence: Annotated[float, Field(gt=0.5, le=1.0)] = 1.0
    """Attempts end once the band's decision over all of them is this probable. 1: once it is certain; 0.95 saves more
    attempts and errs now and then near the band's ends."""
    overlap: Annotated[Path, AfterValidator(Path.absolute)] | None = None
    """Word n-grams of benchmarks, one a line, that no task may hold. Made absolute where the settings are loaded."""


class ErrorWeights(Section):
    """How often each of TermiGen's five error types is drawn, relative to the others. The paper is silent: uniform."""

    analysis_error: NonNegativeFloat = 1.0
    command_error: NonNegativeFloat = 1.0
    hallucination: NonNegativeFloat = 1.0
    requirement_violation: NonNegativeFloat = 1.0
    verification_failure: NonNegativeFloat = 1.0


class SynthesizeSettings(Section):
    seed: int = 0
    repeats: PositiveInt = 1
    """Trajectories for each task."""
    author: Literal["procedural", "chat"] = "procedural"
    """Who plays generator, mistake maker and critic: what is known of the task, or the endpoint of section `chat`."""
    error_rate: Annotated[float, Field(ge=0.0, le=1.0)] = 0.2
    """Probability that a step is meant to be a mistake, drawn for each step on its own; TermiGen's rate."""
    error_weights: ErrorWeights = ErrorWeights()
    mistake_weight: NonNegativeFloat = 0.0
    """Loss weight of injected mistakes: seen, not imitated."""
    critic_rounds: PositiveInt = 3
    """Drafts of one step that the critic sees at most."""
    draws: PositiveInt = 3
    """Times a step's intent is drawn at most, when mistakes are discarded; then the step is a correct one."""
    max_turns: PositiveInt = 32
    """Mistakes and repairs take room: TermiGen's trajectories have 25.5 turns on average."""
    context_tokens: PositiveInt = 16384
    """Of a whole trajectory; TermiGen trains on sequences of up to 20,000 tokens."""
    command_timeout_s: PositiveFloat = 30.0


class ExportSettings(Section):
    tau: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Least share of tests passed that a trajectory needs to be exported for training. 0 keeps failures too, which was
    best in TermiGen's ablation."""
    parquet: bool = False
    """Also write a data set in the Hugging Face layout; needs the extra `data`."""


class AgentSection(Section):
    kind: Literal["minimal", "memory", "terminus-2"] = "minimal"
    """Which agent the chat endpoint plays, solving and evaluating. A recipe says it for its policy."""


class Price(Section):
    """What a million tokens cost, in any one currency."""

    prompt: NonNegativeFloat
    completion: NonNegativeFloat


class EndpointSettings(Section):
    """An OpenAI-compatible endpoint, and how it is called."""

    base_url: str = ""
    api_key: SecretStr = SecretStr("")
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    """Empty: each role has its own. Some models accept one value only."""
    max_tokens: PositiveInt = 8192
    """Of one answer: tests and files of a task are one JSON object; longer ones are cut and get their repair turn."""
    deadline_s: PositiveFloat = 600.0
    """For one call with all its retries."""
    attempt_timeout_s: PositiveFloat = 300.0
    """For one try: long enough for a long reasoning answer. An endpoint that stalls is asked again after this time."""
    prices: dict[str, Price] = {}
    """By model name. A model without a price costs nothing in the ledger."""
    budget_tokens: PositiveInt | None = None
    """Prompt and completion tokens of a run together; at the ceiling the run drains."""
    budget_cost: PositiveFloat | None = None
    """In the currency of the prices."""


class ChatSettings(EndpointSettings):
    model: str = ""


class DaemonSettings(Section):
    """`termloom serve`, and how the other commands find it: by the state directory they share with it."""

    host: str = "127.0.0.1"
    """Where it listens. Anything but loopback is refused without a token of at least 16 characters."""
    port: Annotated[int, Field(ge=0, le=65535)] = 7717
    """0 takes any free port."""
    socket: Path | None = None
    """A Unix socket instead: whoever may open the file may use the daemon."""
    token: SecretStr = SecretStr("")
    """Empty: made at each start, and kept beside the address for this user alone."""
    names: tuple[str, ...] = ()
    """Host names under which it is reached, beside its address: a proxy's, say."""
    bus: str = ""
    """Empty: in memory. `nats://HOST:PORT`: other machines take part with `termloom work`."""
    jobs: PositiveInt = 4
    """Jobs in work at once; the others wait in the order in which they came."""


class Settings(BaseSettings):
    """The tree. Other packages' sections are plain models of their own."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix=PREFIX, env_nested_delimiter="__")

    sandbox: SandboxSettings = SandboxSettings()
    limits: LimitSettings = LimitSettings()
    paths: PathSettings = Field(default_factory=PathSettings)
    agent: AgentSection = AgentSection()
    chat: ChatSettings = ChatSettings()
    band: EndpointSettings = EndpointSettings()
    """Where the policy `generate.band_model` answers."""
    generate: GenerateSettings = GenerateSettings()
    synthesize: SynthesizeSettings = SynthesizeSettings()
    export: ExportSettings = ExportSettings()
    daemon: DaemonSettings = DaemonSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Nothing but the arguments: `load_settings` puts the sources together, to name them in errors."""
        return (init_settings,)

    def masked_json(self) -> str:
        """As recorded with a run."""
        return self.model_dump_json()

    def effective(self) -> dict[str, Any]:
        """Every key, dotted, with its value; secrets masked."""
        return dict(_leaves(self.model_dump(mode="json")))


def load_settings(*, config: Path | None = None, sets: Sequence[str] = ()) -> Settings:
    """The settings in force.

    Args:
        config: a TOML file.
        sets: `a.b=c`, the later one wins. Lists and tables as JSON.

    Raises: UserError naming the file or option, the key, the value and what to do.
    """
    layers = [_of_options(sets), _of_environment(), _of_file(config)]
    for layer in layers:
        layer.refuse_unknown_keys()
    merged: dict[str, Any] = {}
    for layer in reversed(layers):
        _merge(merged, layer.values)
    try:
        return Settings(**merged)
    except ValidationError as error:
        raise _explained(error, layers) from None


class _Layer:
    """The settings of one source, and how that source spells a key."""

    def __init__(self, values: dict[str, Any], spelling: str) -> None:
        self.values, self._spelling = values, spelling

    def where(self, path: Sequence[str]) -> str:
        """A key as it is written in this source."""
        return self._spelling.format(dotted=".".join(path), variable=PREFIX + "__".join(path).upper())

    def holds(self, path: Sequence[str]) -> bool:
        here: Any = self.values
        for key in path:
            if not isinstance(here, dict) or key not in here:
                return False
            here = here[key]
        return True

    def refuse_unknown_keys(self) -> None:
        for path, known in _unknown(self.values, Settings, ()):
            near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
            parent = ".".join(path[:-1])
            dotted = [f"{parent}.{name}" if parent else name for name in (near or sorted(known))]
            remedy = f"Did you mean '{dotted[0]}'?" if near else f"Known are {', '.join(dotted)}"
            raise UserError(self.where(path), f"unknown setting '{'.'.join(path)}'", remedy)


def _of_options(sets: Sequence[str]) -> _Layer:
    values: dict[str, Any] = {}
    for option in sets:
        dotted, equals, text = option.partition("=")
        if not equals or not all(dotted.split(".")):
            raise UserError(f"--set {option}", "not of the form section.key=value", "Write, say, --set limits.build=4")
        here = values
        *sections, key = dotted.strip().split(".")
        for section in sections:
            here = here.setdefault(section, {})
            if not isinstance(here, dict):
                raise UserError(f"--set {option}", f"'{section}' was set to a value before", "Set one of the two")
        here[key] = _value(option, text)
    return _Layer(values, "--set {dotted}")


def _value(option: str, text: str) -> Any:
    if not text.lstrip().startswith(("[", "{")):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"--set {option}", f"not JSON: {error}", "Write lists and tables as JSON") from None


def _of_environment() -> _Layer:
    try:
        values = EnvSettingsSource(Settings)()
    except SettingsError as error:
        cause = f"{error}: {error.__cause__}"
        raise UserError("environment", cause, f"Write lists and tables in {PREFIX}... as JSON") from None
    for name in os.environ:
        section, nested, _ = name.removeprefix(PREFIX).lower().partition("__")
        if name.startswith(PREFIX) and nested and section not in Settings.model_fields:
            values[section] = {}  # not read by the source above, so that it would go unnoticed
    return _Layer(values, "{variable}")


def _of_file(config: Path | None) -> _Layer:
    if config is None:
        return _Layer({}, "")
    try:
        values = tomllib.loads(config.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(str(config), error.strerror or str(error), "Give a readable TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(str(config), f"not TOML: {error}", "Mend the file at that place") from None
    return _Layer(values, f"{str(config).replace('{', '{{').replace('}', '}}')}: {{dotted}}")


def _unknown(
    values: Mapping[str, Any], model: type[BaseModel], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Paths that the tree does not have, each with the keys that it has there."""
    for key, value in values.items():
        field = model.model_fields.get(key)
        if field is None:
            yield (*path, key), list(model.model_fields)
        elif isinstance(value, dict) and isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _unknown(value, field.annotation, (*path, key))


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _explained(error: ValidationError, layers: Sequence[_Layer]) -> UserError:
    """The first problem, with the place that the value came from."""
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"]]
    while not (layer := next((layer for layer in layers if layer.holds(path)), None)):
        path.pop()  # the place inside a value that was written as one
    shown = "a secret" if {"api_key", "token"} & set(path) else repr(first["input"])
    problem = first["msg"][0].lower() + first["msg"][1:]
    return UserError(layer.where(path), f"{shown} is refused: {problem}", "See --dry-run for the settings in force")


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
