"""A job's settings: the sections its submitter decides on, over those of the process that does the work.

Secrets do not travel: a key in a section is dropped, and the working process uses its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from runtime.errors import UserError
from runtime.settings import Settings

DAEMONS_OWN = ("paths", "limits", "daemon", "sandbox")
"""Sections that a job cannot bring along."""
_SECRETS = ("api_key", "token")


def merged(own: Settings, sections: Mapping[str, Any]) -> Settings:
    """Raises: UserError for what the tree refuses."""
    if taken := sorted(set(sections) & set(DAEMONS_OWN)):
        raise UserError(taken[0], "is the daemon's own to set", "Set it where the daemon is started")
    values = own.model_dump()
    for name, section in without_secrets(sections).items():
        values[name] = {**values.get(name, {}), **section} if isinstance(section, dict) else section
    try:
        return Settings(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(where, first["msg"], "See --dry-run for the settings in force") from None


def travelling(settings: Settings) -> dict[str, Any]:
    """The sections that a submitter sends."""
    dumped = settings.model_dump(mode="json", exclude=set(DAEMONS_OWN))
    return without_secrets(dumped)


def without_secrets(sections: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {key: value for key, value in section.items() if key not in _SECRETS}
        if isinstance(section, dict)
        else section
        for name, section in sections.items()
    }


def whole(settings: Settings, *, engine: str) -> dict[str, Any]:
    """Everything, secrets included, for another process of this machine that does the work with `engine`."""
    dumped = settings.model_dump(mode="json", exclude={"daemon"})
    for section, endpoint in (("chat", settings.chat), ("band", settings.band)):
        dumped[section]["api_key"] = endpoint.api_key.get_secret_value()
    dumped["sandbox"]["engine"] = engine
    return dumped
