"""What tests of several rooms need: the raw data where there is some, and a task small enough to work out by hand."""

import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from graphjoule.graph import Propagation
from graphjoule.tasks import Task
from graphjoule.tasks.objective import Classification

# The same examples at every run, so that only a change makes a test fail; HYPOTHESIS_PROFILE=default looks for
# others and for more.
settings.register_profile("repeatable", derandomize=True, max_examples=40)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# Started in the background or under nohup, this process ignores signals, and so would all that tests start.
for signum, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(signum) is signal.SIG_IGN:
        signal.signal(signum, handler)

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start; see `one_thread`
SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Matrices this small gain nothing from a second thread, and lose a lot to waiting for it on a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """A test that leaves another number of threads behind changes the last bits of all after it: it fails here."""
    before = torch.get_num_threads()
    yield
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert after == before, f"the test leaves {after} threads"


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of raw Cora, PubMed and Physics files; never to be written to."""
    given = os.environ.get("GRAPHJOULE_DATA")
    root = Path(given) if given else SHARED_DATA
    if not root.is_dir():
        pytest.skip(f"no raw data: GRAPHJOULE_DATA is not set and {SHARED_DATA} does not exist")
    return root


@pytest.fixture
def tiny_task() -> Task:
    """Two triangles joined by one edge; the class is the triangle, node 5 is unlabelled, features are dense."""
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 2], [1, 2, 0, 4, 5, 3, 3]])
    return Task(
        name="tiny",
        features=torch.arange(1.0, 19.0).view(6, 3),
        graph=Propagation.from_edge_index(edges, symmetrize=True),
        targets=torch.tensor([0, 0, 0, 1, 1, -1]),
        objective=Classification(2),
        default_split="per-class-1-1",
    )


class Trap:
    """An object whose pickle runs code: reading it makes the folder `sprung`."""

    def __init__(self, sprung: Path) -> None:
        self.sprung = sprung

    def __reduce__(self):
        return os.mkdir, (str(self.sprung),)


@pytest.fixture
def trap(tmp_path) -> Trap:
    """A malicious object to hide in a file; it was tried once, or a test that it stays quiet would prove nothing."""
    trap = Trap(tmp_path / "sprung")
    pickle.loads(pickle.dumps(trap))
    trap.sprung.rmdir()
    return trap
