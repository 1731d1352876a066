"""Services of an environment: a database, a web server, a daemon, running inside before anyone works there.

A service is a command that stays in the foreground and a check that succeeds once it can be used. One script starts
them in order, each healthy before the next. Our engines run it in every sandbox of the task; in the image it is the
entry point, so that any other runner has the services too.

Invariants:
- Services run as the agent user, without capabilities: what an agent configured gains nothing when it is started again
  in a grading sandbox, where the tests belong to root.
- Waiting is done inside, by the script. It ends when a service is healthy, has ended, or is late.
- Only files outlive a freeze: a service has to come up on what a killed one left.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from sandbox.engine import Sandbox
from sandbox.errors import ServiceUnhealthy
from sandbox.spec import AGENT_HOME, File, Record

SCRIPT = "services.sh"
"""In the build context."""
_ENTRYPOINT = "/usr/local/bin/start-services"
_MARGIN_S = 30.0
_SHOWN_BYTES = 4000

_START = r"""#!/bin/bash
# Starts the services in order, each healthy before the next one, and becomes the command that it is given.

start() {
  local name=$1 within_s=$2 interval_s=$3 check=$4 command=$5
  local log=/tmp/services/$name.log end=$((SECONDS + within_s))
  mkdir -p /tmp/services
  setsid /bin/bash -c "exec $command" </dev/null >>"$log" 2>&1 &
  until timeout "$within_s" /bin/bash -c "$check" </dev/null >"$log.check" 2>&1; do
    if ! kill -0 $! 2>/dev/null; then
      fail "$name" "ended before it was healthy"
    elif ((SECONDS >= end)); then
      fail "$name" "is not healthy after $within_s s"
    fi
    sleep "$interval_s"
  done
  kill -0 $! 2>/dev/null || fail "$name" "has ended"
}

fail() {
  echo "service $1 $2. Its output ends:"
  tail -c 2000 "/tmp/services/$1.log"
  echo "Its check said:"
  tail -c 500 "/tmp/services/$1.log.check"
  exit 1
} >&2

"""


class Service(Record, frozen=True):
    """One service. Those of a task start in the order in which they are listed."""

    name: str
    """Lower-case letters, digits and hyphens."""
    command: str
    """A bash command that becomes the service and stays in the foreground; it starts in the agent's home."""
    check: str
    """A bash command that succeeds when the service can be used."""
    timeout_s: int = 30
    """How long it may take to become healthy."""
    interval_s: float = 0.2
    """Between two checks."""


def start_script(services: Sequence[Service]) -> str:
    """A bash script that starts the services and then becomes its arguments."""
    calls = [shlex.join(["start", s.name, str(s.timeout_s), f"{s.interval_s:g}", s.check, s.command]) for s in services]
    return "\n".join([_START.rstrip("\n"), "", f"cd {AGENT_HOME} || exit 1", *calls, 'exec "$@"', ""])


def entry_point(services: Sequence[Service]) -> tuple[tuple[File, ...], str]:
    """What makes an image start its services by itself: files of the build context, and its last Dockerfile lines."""
    if not services:
        return (), ""
    script = File(path=SCRIPT, data=start_script(services).encode(), mode=0o755)
    return (script,), f"COPY {SCRIPT} {_ENTRYPOINT}\nUSER agent\nENTRYPOINT {json.dumps([_ENTRYPOINT])}\n"


async def start_services(sandbox: Sandbox, services: Sequence[Service]) -> None:
    """Start the services in a fresh sandbox, and wait until they are healthy.

    Raises: ServiceUnhealthy with the end of its output; SandboxLost, EngineFault.
    """
    if not services:
        return
    done = await sandbox.exec(
        ["/bin/bash", "-c", start_script(services), "services", "/bin/true"],
        cwd="/",
        timeout_s=sum(service.timeout_s for service in services) * 2 + _MARGIN_S,
    )
    if done.exit_code != 0:
        said = done.stderr[-_SHOWN_BYTES:].decode("utf-8", "replace").strip()
        raise ServiceUnhealthy(sandbox.id, said or "the services took too long to start")
