"""Tests under another date: whether a verdict depends on the day on which it is given.

The module is run as it is, in a process whose Python clock was moved first: `time` and `datetime` as the tests see
them. Programs that tests start, and times that the file system holds, stay real, so a test that asks `date` goes
unnoticed; one that wants a file to be fresh is caught as well, for it holds on the day of the work only.
"""

from __future__ import annotations

from msgspec.structs import replace

from sandbox.spec import Suite

MOVED_S = 400 * 86400 + 11 * 3600 + 23 * 60 + 45
"""Into another year, month, weekday, hour and minute."""

_MODULE = '''\
def _move_clock(by):
    import datetime
    import time

    names = ("time", "time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime")
    real = {name: getattr(time, name) for name in names}
    real_date, real_datetime = datetime.date, datetime.datetime

    def now():
        return real["time"]() + by

    def at(name):
        return lambda seconds=None: real[name](now() if seconds is None else seconds)

    time.time = now
    time.time_ns = lambda: real["time_ns"]() + by * 10**9
    time.localtime, time.gmtime, time.ctime = at("localtime"), at("gmtime"), at("ctime")
    time.asctime = lambda moment=None: real["asctime"](time.localtime() if moment is None else moment)
    time.strftime = lambda form, moment=None: real["strftime"](form, time.localtime() if moment is None else moment)

    class Likeness(type):
        """What the real classes make counts as an instance."""

        def __instancecheck__(cls, value):
            return isinstance(value, cls.__mro__[1])

    class date(real_date, metaclass=Likeness):
        @classmethod
        def today(cls):
            return cls.fromtimestamp(now())

    class moved_datetime(real_datetime, metaclass=Likeness):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(now(), tz)

        @classmethod
        def utcnow(cls):
            return cls.fromtimestamp(now(), datetime.timezone.utc).replace(tzinfo=None)

        @classmethod
        def today(cls):
            return cls.fromtimestamp(now())

    moved_datetime.__name__ = moved_datetime.__qualname__ = "datetime"
    datetime.date, datetime.datetime = date, moved_datetime


_move_clock({by})
del _move_clock
exec(compile({source!r}, __file__, "exec", dont_inherit=True))
'''


def with_moved_clock(suite: Suite) -> Suite:
    """The same test modules under a clock that is `MOVED_S` ahead."""
    return replace(suite, files=tuple(replace(file, data=_moved(file.data.decode()).encode()) for file in suite.files))


def _moved(source: str) -> str:
    return _MODULE.replace("{by}", str(MOVED_S)).replace("{source!r}", repr(source))
