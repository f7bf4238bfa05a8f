import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Matrices this small gain nothing from a second thread, and lose a lot to waiting for it on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
