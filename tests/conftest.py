"""For all tests: no example has a time limit, as a shared machine may pause at any of them."""

from hypothesis import settings

settings.register_profile("patient", parent=settings(), deadline=None)
settings.load_profile("patient")
