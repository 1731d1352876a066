#!/usr/bin/env python3
"""Check ATIF files with Harbor's own validator: the installed `harbor` package, which needs Python 3.12.

    pip install harbor
    python scripts/harbor-validate.py FOLDER_OR_FILE...

Prints every problem with its file, and a count. Exit code 1 when a file is invalid, 2 when there is none.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    from harbor.utils.trajectory_validator import TrajectoryValidator

    paths = [path for argument in arguments for path in _documents(Path(argument))]
    invalid = 0
    for path in paths:
        validator = TrajectoryValidator()
        if not validator.validate(path):
            invalid += 1
            print("\n".join(f"{path}: {error}" for error in validator.errors))
    print(f"{len(paths) - invalid} of {len(paths)} ATIF files are valid")
    return 1 if invalid else 0 if paths else 2


def _documents(path: Path) -> list[Path]:
    return sorted(path.glob("*.json")) if path.is_dir() else [path]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
