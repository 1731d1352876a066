"""The pages over one folder, for `termloom view`."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from runtime.dashboard.charts import charts
from runtime.dashboard.library import Library
from runtime.dashboard.pages import Templates, static_routes
from runtime.dashboard.shelves import Shelf, shelf_routes


def viewer_app(path: Path) -> Starlette:
    """The application; what it shows is `path` and nothing else."""
    templates = Templates(home=False)
    shelf = Shelf(title=path.name, address="/view", back="/view", library=Library(path))

    async def curves(_: Request) -> Response:
        found = await anyio.to_thread.run_sync(shelf.library.curves)
        return templates.page("curves.html", shelf=shelf, charts=charts([(shelf.title, found)]))

    async def start(_: Request) -> Response:
        return RedirectResponse(shelf.address)

    return Starlette(
        routes=[
            Route("/", start),
            Route("/view/curves", templates.safely(curves)),
            *shelf_routes("/view", lambda _: shelf, templates),
            *static_routes(),
        ]
    )
