"""The pool of ranks, started once."""

from collections.abc import Iterator

import pytest

from .world import World


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """Four gloo ranks over loopback."""
    world = World()
    yield world
    world.close()
