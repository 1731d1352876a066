"""Where a task's private truth must not be: instruction, build context, built image.

The image is searched from inside, as the agent, in every file it can read that no package of the base owns: an answer
that happens to be part of a dictionary in /usr/share gives nothing away.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from generators.messages import Draft, Environment
from sandbox.engine import Sandbox
from sandbox.errors import EngineFault

_SCAN_TIMEOUT_S = 60.0
_SCAN = """
import glob, json, os, stat, sys
needles = [text.encode() for text in json.load(sys.stdin)]
owned = set()
for name in glob.glob("/var/lib/dpkg/info/*.list"):
    with open(name, encoding="utf-8") as lines:
        owned.update(line.rstrip("\\n") for line in lines)
owned |= {"/usr" + path for path in owned if path.startswith(("/bin/", "/sbin/", "/lib"))}
away = ("/proc", "/sys", "/dev", "/var/lib/dpkg", "/var/cache", "/var/log")
found = []
for folder, folders, names in os.walk("/"):
    folders[:] = sorted(f for f in folders if f != "__pycache__" and os.path.join(folder, f) not in away)
    for path in (os.path.join(folder, name) for name in sorted(names)):
        if path in owned and not path.startswith("/etc/"):
            continue
        try:
            if stat.S_ISREG(os.lstat(path).st_mode):
                with open(path, "rb") as handle:
                    data = handle.read(64 << 20)
                if any(needle in data for needle in needles):
                    found.append(path)
        except OSError:
            pass
print(json.dumps(found))
"""


def stated_truth(draft: Draft) -> list[str]:
    """Truth strings that the public text gives away."""
    return _occurring(draft.truth.strings, (draft.instruction.encode(), draft.title.encode()))


def shipped_truth(draft: Draft, environment: Environment) -> list[str]:
    """Truth strings that the build context gives away."""
    texts = (environment.dockerfile.encode(), *(file.data for file in environment.files))
    return _occurring(draft.truth.strings, texts)


async def files_with_truth(sandbox: Sandbox, strings: Iterable[str]) -> list[str]:
    """Files in a started sandbox that hold one of the strings. Raises: EngineFault when it cannot be searched."""
    needles = json.dumps(list(strings))
    if needles == "[]":
        return []
    done = await sandbox.exec(["python3", "-I", "-S", "-c", _SCAN], stdin=needles.encode(), timeout_s=_SCAN_TIMEOUT_S)
    if done.exit_code != 0:
        raise EngineFault("sandbox", "search for truth", done.stderr.decode(errors="replace")[-300:])
    return [str(path) for path in json.loads(done.stdout)]


def _occurring(strings: Iterable[str], texts: Iterable[bytes]) -> list[str]:
    contents = list(texts)
    return [string for string in strings if any(string.encode() in content for content in contents)]
