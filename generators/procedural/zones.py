"""Time zones with rules simple enough to write down: what a family needs to know the right answer on any machine.

Valid for the years that tasks are set in (2019 to 2024). Local times are asked for only between 04:00 and 23:00, away from
the hours in which clocks change.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

_EUROPE = {
    "Europe/Berlin": 60,
    "Europe/Madrid": 60,
    "Europe/Lisbon": 0,
    "Europe/London": 0,
    "Europe/Helsinki": 120,
    "Europe/Athens": 120,
}
_AMERICA = {"America/New_York": -300, "America/Chicago": -360, "America/Denver": -420, "America/Los_Angeles": -480}
_FIXED = {
    "Asia/Tokyo": 540,
    "Asia/Kolkata": 330,
    "Asia/Singapore": 480,
    "Asia/Dubai": 240,
    "Australia/Brisbane": 600,
    "America/Phoenix": -420,
    "America/Bogota": -300,
    "Africa/Nairobi": 180,
}

SUMMER = (*_EUROPE, *_AMERICA)
"""Zones that change their clocks."""
ALL = (*SUMMER, *_FIXED)


def standard(zone: str) -> timedelta:
    """The zone's offset in winter."""
    return timedelta(minutes={**_EUROPE, **_AMERICA, **_FIXED}[zone])


def local(moment: datetime, zone: str) -> datetime:
    """An instant on the zone's clocks."""
    return moment.astimezone(
        timezone(standard(zone) + (timedelta(hours=1) if _is_summer(moment, zone) else timedelta()))
    )


def _is_summer(moment: datetime, zone: str) -> bool:
    year = moment.year
    if zone in _EUROPE:
        return _sunday(year, 3, 25).replace(hour=1) <= moment < _sunday(year, 10, 25).replace(hour=1)
    if zone in _AMERICA:
        start = _sunday(year, 3, 8) + timedelta(hours=2) - standard(zone)
        end = _sunday(year, 11, 1) + timedelta(hours=1) - standard(zone)
        return start <= moment < end
    return False


def _sunday(year: int, month: int, day: int) -> datetime:
    """The first Sunday from that day on."""
    start = datetime(year, month, day, tzinfo=UTC)
    return start + timedelta(days=(6 - start.weekday()) % 7)
