"""The command `view`: look at tasks, trajectories and curves in a browser, without a daemon."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from runtime.options import Common


async def view(path: Path = Path("tasks"), /, *, port: int = 0, common: Common = Common()) -> int:
    """Show tasks and trajectories of a folder, or of one file, in a browser.

    Args:
        path: A folder of task directories or trajectory files, one task directory, or one trajectory file.
        port: 0 takes any free one.
    """
    settings = common.settings()
    if common.dry_run:
        return common.show(settings)
    import secrets

    import anyio

    from runtime.daemon.auth import Guard
    from runtime.dashboard.viewer import viewer_app
    from runtime.errors import UserError
    from runtime.http_server import serving
    from runtime.interrupts import interrupts

    if not path.exists():
        raise UserError(str(path), "is not there", "Name a folder of tasks or a file of trajectories")
    token = secrets.token_urlsafe(24)
    with interrupts(cleanup="termloom gc") as stop, socket.create_server(("127.0.0.1", port)) as listener:
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        app = Guard(viewer_app(path.absolute()), token=token, hosts={host, host.replace("127.0.0.1", "localhost")})
        async with serving(app, listener):
            sys.stdout.write(f"http://{host}/?token={token}\n")
            sys.stdout.flush()
            ended = anyio.Event()
            stop.on_drain(ended.set)
            await ended.wait()
    return 0
