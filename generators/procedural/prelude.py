"""Helpers at the top of every procedural test module. Source text: it travels with the task and imports nothing of ours.

Each helper fails by AssertionError with a message that explains, on anything an agent may have left: nothing, a directory, a
symbolic link, a named pipe, bytes that are no text, a gigabyte of zeros. Programs run as the agent user: what an agent left in
a repository, a makefile or a script never runs with the grader's rights.
"""

PRELUDE = '''\
import json
import os
import stat
import subprocess
from pathlib import Path

_LIMIT = 4 << 20


def read_bytes(path: str) -> bytes:
    """Content of a regular file that is no symbolic link, at most 4 MiB."""
    try:
        info = os.lstat(path)
    except OSError as error:
        raise AssertionError(f"{path}: {error.strerror}") from None
    assert stat.S_ISREG(info.st_mode), f"{path} is not a regular file"
    assert info.st_size <= _LIMIT, f"{path} is larger than expected ({info.st_size} bytes)"
    return Path(path).read_bytes()


def read_text(path: str) -> str:
    """Its text, as UTF-8."""
    data = read_bytes(path)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise AssertionError(f"{path} is not UTF-8 text") from None


def read_lines(path: str) -> list[str]:
    """Its lines without line ends; a missing newline at the end of the file is fine."""
    return read_text(path).splitlines()


def read_json(path: str) -> object:
    """Its JSON value."""
    try:
        return json.loads(read_text(path))
    except ValueError as error:
        raise AssertionError(f"{path} is not JSON: {error}") from None


def read_yaml(path: str) -> object:
    """Its YAML value, dates as text, through the image's own Python: the standard library has no YAML."""
    read_bytes(path)
    code = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1])), default=str))"
    return json.loads(run("/usr/bin/python3", "-I", "-c", code, path))


def read_toml(path: str) -> dict:
    """Its TOML table."""
    import tomllib

    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise AssertionError(f"{path} is not TOML: {error}") from None


def read_ini(path: str) -> dict:
    """Its INI sections: names to keys to texts, keys as written."""
    import configparser

    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str
    try:
        parser.read_string(read_text(path))
    except configparser.Error as error:
        raise AssertionError(f"{path} is not INI: {error}") from None
    return {name: dict(parser[name]) for name in parser.sections()}


def query(path: str, statement: str) -> list:
    """Rows, as lists, that a statement reads from an SQLite file."""
    import sqlite3
    from contextlib import closing

    read_bytes(path)
    try:
        with closing(sqlite3.connect(Path(path).as_uri() + "?mode=ro", uri=True)) as connection:
            return [list(row) for row in connection.execute(statement)]
    except sqlite3.Error as error:
        raise AssertionError(f"{path}: {error}") from None


def run(*argv: str, cwd: str | None = None, timeout: float = 20.0) -> str:
    """Standard output of a program that must succeed. It runs as the agent user."""
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/agent", "LC_ALL": "C.UTF-8"}
    who = {"user": 1000, "group": 1000, "extra_groups": []} if os.geteuid() == 0 else {}
    try:
        done = subprocess.run(
            argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False, **who
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AssertionError(f"{argv[0]}: {error}") from None
    assert done.returncode == 0, f"{' '.join(argv)} ended with {done.returncode}: {done.stderr.decode(errors='replace')[-300:]}"
    return done.stdout.decode(errors="replace")
'''
