import torch

from graphjoule.ops.memory import Memory, current_memory, using_memory


def test_what_was_given_back_is_taken_again_and_the_smallest_that_will_do():
    memory = Memory()
    small, large = memory.take(10), memory.take(100)
    memory.give_back(large)
    memory.give_back(small)
    assert memory.take(10) is small
    assert memory.take(10) is large
    assert memory.take(10).numel() == 10  # nothing was free


def test_what_is_too_small_goes():
    memory = Memory()
    small = memory.take(10)
    memory.give_back(small)
    assert memory.take(11).numel() == 11
    assert memory.take(10) is not small


def test_a_block_has_its_own_memory_and_gives_the_one_before_back():
    outer, inner = Memory(), Memory()
    with using_memory(outer):
        with using_memory(inner):
            assert current_memory() is inner
        assert current_memory() is outer
    assert current_memory() is not current_memory()
    assert isinstance(current_memory().take(3), torch.Tensor)


def test_it_is_float32_whatever_the_default_dtype():
    """A float32 network may run in a program whose default is float64; its stack writes into this memory."""
    torch.set_default_dtype(torch.float64)
    try:
        assert Memory().take(3).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_an_inference_took_can_be_written_to_in_training():
    memory = Memory()
    with torch.inference_mode():
        memory.give_back(memory.take(3))
    torch.add(torch.ones(3), torch.ones(3), out=memory.take(3))
