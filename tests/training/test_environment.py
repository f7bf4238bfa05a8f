import platform

import torch

from graphjoule import __version__
from graphjoule.training.environment import describe_device, versions


def test_versions_name_everything_that_can_change_a_result():
    found = versions()
    assert set(found) == {"graphjoule", "python", "torch", "torch_geometric", "numpy"}
    assert (found["graphjoule"], found["python"]) == (__version__, platform.python_version())
    assert found["torch"] == torch.__version__
    assert type(found["torch"]) is str  # torch's own is a subclass that JSON writers may not know


def test_devices_are_told_in_words(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert describe_device(torch.device("cpu")) == "cpu (2 threads)"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert describe_device(torch.device("cpu")) == "cpu (1 thread)"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert describe_device(torch.device("cuda")) == "NVIDIA H200"
    assert describe_device(torch.device("meta")) == "meta"
