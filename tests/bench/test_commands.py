"""Every bench can be called by its name."""

from pathlib import Path

from bench.__main__ import app

PARTS = {"faulty", "nats_server", "netns", "record"}


def test_each_module_of_the_bench_has_its_command():
    modules = {path.stem for path in Path("bench").glob("[!_]*.py")} - PARTS
    assert modules == {name for name in app if not name.startswith("-")}
