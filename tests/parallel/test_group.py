"""What processes say to each other, and what one process alone says to itself."""

import pytest
import torch

from graphjoule.errors import GraphjouleError
from graphjoule.parallel.group import ALONE


def talk(group):
    mine = torch.full((3,), float(group.rank + 1), dtype=torch.float64, requires_grad=True)
    total = group.total(mine)
    (gradient,) = torch.autograd.grad((total * (group.rank + 1)).sum(), mine)
    joined = group.joined(mine)
    (of_joined,) = torch.autograd.grad((joined * (group.rank + 1)).sum(), mine)
    runs = torch.vmap(group.total)(torch.arange(6.0).view(2, 3) + group.rank)
    second = torch.vmap(group.total, in_dims=1)(torch.arange(6.0).view(2, 3) + group.rank)
    return total.detach(), gradient, of_joined, runs, second, group.any(group.rank == 1), group.largest(-group.rank)


@pytest.mark.parametrize("size", [1, 3])
def test_sums_and_their_gradients(world, size):
    everyone = sum(range(1, size + 1))
    for total, gradient, of_joined, runs, second, any_, largest in world.run(talk, size):
        assert total.tolist() == [everyone] * 3
        assert gradient.tolist() == of_joined.tolist() == [everyone] * 3
        ranks = sum(range(size))
        assert runs.equal(torch.arange(6.0).view(2, 3) * size + ranks)
        assert second.equal((torch.arange(6.0).view(2, 3) * size + ranks).T)
        assert any_ == (size > 1)
        assert largest == 0


def hear(group):
    calls = []

    def first():
        calls.append(group.rank)
        return {"rank": group.rank, "text": "Überall gleich"}

    heard = group.from_first(first)
    tensors = {
        "a": torch.arange(4).view(2, 2),
        "empty": torch.empty(0, 3),
        "flag": torch.tensor([True, False]),
        "key": torch.tensor([1, 2], dtype=torch.int32),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
    }
    received = group.from_first(lambda: tensors if group.rank == 0 else pytest.fail("called"))
    nothing = group.from_first(lambda: None)
    same = all(received[name].equal(value) and received[name].dtype == value.dtype for name, value in tensors.items())
    return heard, calls, same, nothing


def test_all_hear_the_first(world):
    for rank, (heard, calls, same, nothing) in enumerate(world.run(hear, 3)):
        assert heard == {"rank": 0, "text": "Überall gleich"}
        assert calls == ([0] if rank == 0 else [])
        assert same
        assert nothing is None


def refuse(group, culprit):
    def fail():
        raise GraphjouleError(f"Process {group.rank} cannot.")

    said = []
    for call in (
        lambda: group.from_first(fail),
        lambda: group.from_first(fail),
        lambda: group.together(fail if group.rank == culprit else lambda: 1),
    ):
        with pytest.raises(GraphjouleError) as error:
            call()
        said.append(str(error.value))
    return said, group.together(lambda: group.rank)


def test_what_one_refuses_all_refuse(world):
    for rank, (said, value) in enumerate(world.run(refuse, 3, 2)):
        assert said == ["Process 0 cannot.", "Process 0 cannot.", "Process 2 cannot."]
        assert value == rank


def test_alone_everything_is_said_to_oneself():
    x = torch.ones(2)
    assert ALONE.total(x) is x
    assert ALONE.joined(x) is x
    assert ALONE.any(True)
    assert not ALONE.any(False)
    assert ALONE.largest(3) == 3
    assert ALONE.from_first(lambda: 5) == ALONE.together(lambda: 5) == 5
    assert ALONE.from_first(lambda: None) is None
    assert ALONE.is_first
