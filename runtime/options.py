"""What every command takes: which settings, and how to show things.

async def generate(*, count: int = 12, common: Common = Common()) -> int:
    settings = common.settings()
    if common.dry_run:
        return common.show(settings)
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from runtime.settings import Settings, load_settings


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Common:
    """Options of every command."""

    config: Path | None = None
    """TOML file with settings."""
    sets: Annotated[list[str], Parameter(name="--set", negative="")] = field(default_factory=list)
    """One setting, as section.key=value; may be repeated."""
    json: Annotated[bool, Parameter(negative="")] = False
    """Write JSON for programs: events while running, the result at the end."""
    here: Annotated[bool, Parameter(negative="")] = False
    """Run in this process, even where a daemon would take the job."""
    dry_run: Annotated[bool, Parameter(negative="")] = False
    """Show the settings in force and do nothing."""

    def settings(self, *, options: dict[str, object] | None = None) -> Settings:
        """The settings in force; `options` are a command's own, by dotted key, where they were given (not None).

        Raises: UserError.
        """
        own = [f"{key}={value}" for key, value in (options or {}).items() if value is not None]
        return load_settings(config=self.config, sets=[*self.sets, *own])

    def show(self, settings: Settings) -> int:
        """Print the settings in force; returns the exit code."""
        effective = settings.effective()
        if self.json:
            sys.stdout.write(json.dumps(effective) + "\n")
        else:
            sys.stdout.writelines(f"{key} = {json.dumps(value)}\n" for key, value in effective.items())
        return 0
