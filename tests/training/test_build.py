import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from graphjoule.nn import GCN, MODELS
from graphjoule.training.build import initialised
from graphjoule.training.recipe import load_recipe

GLOROT = {"egnn": {"weight_init": "glorot", "encoder": "mlp"}}
every_recipe = pytest.mark.parametrize(
    ("name", "options"), [(name, {}) for name in MODELS] + list(GLOROT.items()), ids=str
)


def state_bits(model):
    return {name: value.tolist() for name, value in model.state_dict().items()}


@every_recipe
@pytest.mark.parametrize("seed", [0, 5, -1, 2**63])
def test_it_is_what_the_constructor_draws_after_manual_seed_to_the_bit(name, options, seed):
    recipe = load_recipe(name, "digits", 3, options)
    torch.manual_seed(seed)
    expected = MODELS[name](5, recipe.model.hidden_channels, 3, 3, **recipe.model.options)
    before = torch.get_rng_state()
    assert state_bits(initialised(recipe, 5, 3, seed)) == state_bits(expected)
    assert torch.get_rng_state().equal(before)


class _OfOnesOwn(GCN):
    """Draws in ways that the zoo does not."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.layer = nn.GRU(3, 3)
        self.pairs = nn.Bilinear(2, 2, 2)
        self.table = nn.Embedding(4, 2)
        for k, draw in enumerate((torch.rand, torch.randn)):
            self.register_buffer(f"drawn_{k}", draw(3))
        self.register_buffer("order", torch.randperm(7))
        self.register_buffer("numbers", torch.randint(100, (4,)))
        self.register_buffer("normal", torch.normal(0.0, 1.0, (3,)))
        self.register_buffer("kept", torch.bernoulli(torch.full((9,), 0.5)))
        self.register_buffer("chosen", torch.full((9,), 0.5).multinomial(3))
        self.register_buffer("square", nn.init.orthogonal_(torch.empty(3, 3)))
        self.register_buffer("truncated", nn.init.trunc_normal_(torch.empty(3, 3)))
        self.register_buffer("named", torch.rand(2, generator=torch.Generator().manual_seed(1)))


def test_a_model_of_ones_own_is_drawn_from_the_seed_too(monkeypatch):
    recipe = load_recipe("gcn", "digits", 2)
    monkeypatch.setitem(MODELS, "gcn", _OfOnesOwn)
    torch.manual_seed(3)
    expected = _OfOnesOwn(5, recipe.model.hidden_channels, 3, 2, **recipe.model.options)
    before = torch.get_rng_state()
    assert state_bits(initialised(recipe, 5, 3, 3)) == state_bits(expected)
    assert torch.get_rng_state().equal(before)


def test_a_default_device_is_respected():
    recipe = load_recipe("gcn", "digits", 2)
    with torch.device("meta"):
        assert initialised(recipe, 5, 3, 0).convs[0].linear.weight.is_meta


def test_threads_neither_change_each_others_numbers_nor_those_of_the_global_generator():
    recipe, is_over, drawn = load_recipe("gcn", "digits", 4), threading.Event(), []

    def draw():
        while not is_over.is_set():
            drawn.append(torch.rand(7))

    expected = [state_bits(initialised(recipe, 64, 10, seed)) for seed in range(40)]
    torch.manual_seed(11)
    other = threading.Thread(target=draw)
    other.start()
    try:
        with ThreadPoolExecutor(16) as threads:
            found = list(threads.map(lambda seed: state_bits(initialised(recipe, 64, 10, seed)), range(40)))
    finally:
        is_over.set()
        other.join()
    assert found == expected
    generator = torch.Generator().manual_seed(11)
    assert len(drawn) > 1
    assert all(numbers.equal(torch.rand(7, generator=generator)) for numbers in drawn)
