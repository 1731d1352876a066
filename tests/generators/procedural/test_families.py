"""Every family, at every depth: drawn, laid out, played right, played wrong and checked for real."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_struct

from generators.procedural import library
from generators.procedural.family import Family, Piece, Place
from sandbox.spec import AGENT_HOME

from .harness import Ground, draw, problems_of
