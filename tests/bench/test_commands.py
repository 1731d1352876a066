"""The command line of the benches."""

from inspect import isfunction

from bench import __main__ as command_line


def test_every_measurement_is_a_command():
    own = {f.__name__ for f in vars(command_line).values() if isfunction(f) and f.__module__ == command_line.__name__}
    assert {name for name in own if not name.startswith("_")} <= set(command_line.app)
