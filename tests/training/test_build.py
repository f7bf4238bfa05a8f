import random
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit
from graphjoule.graph import Propagation
from graphjoule.nn import GCN, MODELS
from graphjoule.training.build import Draws, count_state, initialised, own_architecture
from graphjoule.training.recipe import load_recipe

from . import same_bits, small_task

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


# Random numbers while a model of the user's own trains.

RECURRENT = {kind.__name__: kind(8, 4, num_layers=2, dropout=0.5) for kind in (nn.GRU, nn.LSTM)}
FUNCTIONS = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "torch.dropout": lambda x: torch.dropout(x, 0.3, True),
    "in place": lambda x: F.dropout(x.clone(), 0.3, inplace=True),
    "alpha": lambda x: F.alpha_dropout(x, 0.3, True),
    "channels": lambda x: F.dropout2d(x[None, :, :, None], 0.3),
    "gumbel": lambda x: F.gumbel_softmax(x),
    "rrelu": lambda x: F.rrelu(-x, training=True),
    "like": lambda x: torch.rand_like(x) + torch.randn_like(x) + torch.randint_like(x, 100),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5),
    "a tensor's own": lambda x: torch.empty_like(x).uniform_() + torch.bernoulli(x),
    "native": lambda x: torch.native_dropout(x, 0.3, True)[0],
    "features": lambda x: torch.feature_dropout(x, 0.3, True),
    "gamma": lambda x: torch.distributions.Gamma(x + 1, 2.0).sample(),
    "beta": lambda x: torch.distributions.Beta(x + 1, 2.0).sample(),
    "GRU": lambda x: RECURRENT["GRU"](x)[0].detach(),
    "LSTM": lambda x: RECURRENT["LSTM"](x)[0].detach(),
    "a permutation": lambda x: x[torch.randperm(len(x))],
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_whatever_draws_draws_from_the_runs_own_numbers(function):
    x = torch.rand(60, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    found = []
    for seed in (4, 4, 5):
        with Draws(seed):
            found.append((function(x), function(x)))
    assert torch.get_rng_state().equal(before)
    assert found[0][0].equal(found[1][0])
    assert found[0][1].equal(found[1][1])
    assert not found[0][0].equal(found[0][1])
    assert not found[0][0].equal(found[2][0])


@pytest.mark.parametrize(
    ("draw", "whose"),
    [(random.random, "Python's random"), (np.random.rand, "NumPy"), (torch.seed, "torch")],
    ids=["Python", "NumPy", "torch"],
)
def test_draws_that_no_seed_reaches_are_one_warning(caplog, draw, whose):
    class Noisy(_Linear):
        def forward(self, x, edge_index):
            draw()
            return super().forward(x)

    fit(Noisy, small_task(), [0, 1], settings={"epochs": 2})
    found = [r.message for r in caplog.records if f"the random numbers of {whose} moved while" in r.message]
    assert len(found) == 1
    assert found[0].endswith("in docs/own-model.md")


def test_dropout_is_torchs_in_everything_but_the_numbers():
    x = torch.ones(200, 50)
    with Draws(0):
        assert F.dropout(x, 0.3, training=False) is x
        dropped = F.dropout(x, 0.3)
        kept = x.clone()
        assert F.dropout(kept, 0.3, inplace=True) is kept
        assert F.dropout(x, 1.0).eq(0).all()
        with pytest.raises(ValueError, match="between 0 and 1"):
            F.dropout(x, 1.5)
    assert sorted(set(dropped.flatten().tolist())) == pytest.approx([0.0, 1 / 0.7])
    assert float(dropped.mean()) == pytest.approx(1, abs=0.03)
    assert float(kept.mean()) == pytest.approx(1, abs=0.03)


def test_the_numbers_of_a_training_are_not_those_that_its_parameters_were_drawn_from():
    drawn = []

    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(7, 3))

        def forward(self, x, edge_index):
            if self.training:
                drawn.append(torch.rand(7, 3))
            return x @ self.weight

    model = fit(Noisy, small_task(), settings={"epochs": 1, "lr": 1e-30}).models[0]
    torch.manual_seed(0)
    assert model.weight.equal(torch.rand(7, 3))
    assert len(drawn) == 1
    assert not drawn[0].equal(model.weight)


class _Checkpointed(nn.Module):
    """Runs its layers again in the backward pass, by one kind of checkpoint, or keeps them."""

    def __init__(self, kind, drop):
        super().__init__()
        self.kind, self.drop = kind, drop
        self.first, self.head = nn.Linear(7, 8), nn.Linear(8, 3)
        self.layers, self.norm = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)]), nn.BatchNorm1d(8)

    def layer(self, layer, x):
        return self.drop(self.norm(layer(x)).relu())

    def forward(self, x, edge_index):
        x = self.first(x)
        for layer in self.layers:
            if self.kind and self.training:
                x = checkpoint(self.layer, layer, x, use_reentrant=self.kind == "reentrant")
            else:
                x = self.layer(layer, x)
        return self.head(F.dropout(x, 0.3, self.training))


@pytest.mark.parametrize("kind", ["reentrant", "without reentry"])
@pytest.mark.parametrize(
    "drop", [nn.Identity(), nn.Dropout(0.5), nn.AlphaDropout(0.5)], ids=["none", "ours", "torch's"]
)
@pytest.mark.parametrize("more", [{}, {"clusters.parts": 4, "clusters.per_step": 2, "clusters.method": "blocks"}])
def test_a_checkpointed_model_trains_as_the_same_model_without(kind, drop, more):
    settings = {"epochs": 6, "lr": 0.05, **more}
    torch.manual_seed(0)
    before = torch.get_rng_state()
    kept, again = (fit(partial(_Checkpointed, each, drop), small_task(), settings=settings) for each in (None, kind))
    assert again.records[0].curve == kept.records[0].curve
    assert same_bits(again.models[0], kept.models[0])
    assert torch.get_rng_state().equal(before)


def test_checkpoints_within_checkpoints_repeat_their_draws():
    def inner(x):
        return F.dropout(x, 0.5)

    def outer(x, call):
        return F.dropout(call(inner, F.dropout(x, 0.5).sin()).sin(), 0.5).sin()

    def gradient(call):
        x = torch.linspace(0, 1, 50, requires_grad=True)
        with Draws(1):
            y = call(outer, call(outer, x, call), call)
        y.sum().backward()
        return x.grad

    expected = gradient(lambda function, *inputs: function(*inputs))
    assert gradient(partial(checkpoint, use_reentrant=False)).equal(expected)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "None of the inputs have requires_grad=True")  # the outer one hides them
        assert gradient(partial(checkpoint, use_reentrant=True)).equal(expected)


def test_a_checkpoint_outside_of_draws_is_torchs_own():
    with Draws(0):
        pass
    masks = []

    def layer(x):
        masks.append(F.dropout(torch.ones(50), 0.5))
        return (x * masks[-1]).sin()

    x = torch.ones(50, requires_grad=True)
    for is_reentrant in (False, True):
        checkpoint(layer, x, use_reentrant=is_reentrant).sum().backward()
        torch.rand(3)
    assert masks[0].equal(masks[1])
    assert masks[2].equal(masks[3])
    assert not masks[0].equal(masks[2])


def test_a_builder_that_returns_one_module_twice_is_refused():
    module = _WithoutWeights()
    with pytest.raises(
        GraphjouleError, match="returned the same _WithoutWeights twice; expected a new module at every call"
    ):
        fit(lambda task: module, small_task())


def test_modules_that_share_a_part_train_apart_and_leave_it_as_it_is():
    class Head(nn.Module):
        def __init__(self, encoder):
            super().__init__()
            self.encoder, self.head = encoder, nn.Linear(5, 3)

        def forward(self, x, edge_index):
            return self.head(self.encoder(x))

    encoder = nn.Linear(7, 5)
    before = encoder.weight.clone()
    both, alone = (fit(lambda: Head(encoder), small_task(), seeds, settings={"epochs": 3}) for seeds in ([0, 1], [1]))
    assert same_bits(both.models[1], alone.models[0])
    assert not both.models[0].encoder.weight.equal(both.models[1].encoder.weight)
    assert encoder.weight.equal(before)


class _Linear(nn.Linear):
    def __init__(self):
        super().__init__(7, 3)


class _WithoutWeights(_Linear):
    def forward(self, x, edge_index):
        return super().forward(x)


class _NeedsWeights(_Linear):
    def forward(self, x, edge_index, edge_weight):
        assert edge_weight.shape == edge_index[0].shape
        return super().forward(x)


def weighted(task):
    edges = task.graph.edge_index
    return replace(task, graph=Propagation.from_edge_index(edges, torch.full((edges.size(1),), 2.0), task.num_nodes))


def test_edge_weights_that_a_model_does_not_take_are_a_warning(caplog):
    once = {"epochs": 1}
    fit(_WithoutWeights, weighted(small_task()), [0, 1], settings=once)
    assert [
        r.message for r in caplog.records if "has edge weights, and _WithoutWeights.forward takes none" in r.message
    ]
    assert sum("edge weights" in record.message for record in caplog.records) == 1
    caplog.clear()
    fit(_WithoutWeights, small_task(), settings=once)
    fit(_NeedsWeights, weighted(small_task()), settings=once)
    assert not any("edge weights" in record.message for record in caplog.records)


def test_a_model_that_needs_edge_weights_has_them_on_an_unweighted_task_too():
    assert fit(_NeedsWeights, small_task(), settings={"epochs": 1}).records[0].status == "done"


class _OfData(_Linear):
    def forward(self, data):
        return super().forward(data.x)


class _OfFeatures(_Linear):
    def forward(self, x, edge_index, edge_attr):
        return super().forward(x)


class _OfAdjacency(_Linear):
    def forward(self, feats, adj):
        return adj @ super().forward(feats)


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (_OfData, r"_OfData.forward\(data\) cannot be called: too many positional arguments. A module is called as"),
        (
            _OfFeatures,
            r"forward\(x, edge_index, edge_attr\) cannot be called: missing a required argument: 'edge_attr'",
        ),
        (_OfAdjacency, r"_OfAdjacency.forward\(feats, adj\) failed with x and a Propagation: .* A module is called as"),
    ],
)
def test_a_forward_with_other_arguments_is_a_sentence(model, match):
    with pytest.raises(GraphjouleError, match=match):
        fit(model, small_task())


@pytest.mark.parametrize("is_buffer", [False, True])
def test_a_plain_number_that_forward_changes_is_a_warning(caplog, is_buffer):
    class Counting(_Linear):
        def __init__(self):
            super().__init__()
            if is_buffer:
                self.register_buffer("step", torch.zeros(()))
            else:
                self.step = 0

        def forward(self, x, edge_index):
            if self.training:
                self.step += 1
            return super().forward(x)

    fit(Counting, small_task(), [0, 1], settings={"epochs": 2})
    found = [r.message for r in caplog.records if "Counting.step changed in training; validation" in r.message]
    assert len(found) == (0 if is_buffer else 1)


def test_a_loss_that_no_parameter_changes_is_refused():
    class Detached(nn.Linear):
        def forward(self, x, edge_index):
            return super().forward(x).detach()

    with pytest.raises(GraphjouleError, match="loss of Detached depends on no parameter that requires a gradient"):
        fit(lambda task: Detached(7, 3), small_task())


def test_a_buffer_that_forward_replaces_is_that_of_the_trained_model():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(7, 3)
            self.register_buffer("steps", torch.zeros(()))
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x, edge_index):
            out = self.head(x)
            if self.training:
                self.steps = self.steps + 1
                self.mean = 0.5 * self.mean + out.mean(dim=0)
            return out + 0.1 * self.mean

    model = fit(Counting, small_task(), settings={"epochs": 4, "lr": 1e-3}).models[0]
    assert model.steps == 4
    assert model.mean.abs().sum() > 0


def test_a_model_of_ones_own_is_built_from_the_seed_alone():
    architecture = own_architecture(_WithoutWeights, small_task())
    torch.manual_seed(7)
    expected = nn.Linear(7, 3)
    assert state_bits(architecture.initialised(7, 3, 7).module) == state_bits(expected)
    assert architecture.settings.is_own
    assert architecture.settings.num_layers == 1


@every_recipe
@pytest.mark.parametrize("depth", [1, 2, 3, 7])
@pytest.mark.parametrize("width", [1, 6])
def test_the_size_of_a_network_is_known_without_building_it(name, options, depth, width):
    recipe = load_recipe(name, "digits", depth, {**options, "hidden_channels": width})
    state = initialised(recipe, 11, 4, 0).state_dict().values()
    assert count_state(recipe.model, 11, 4) == (len(state), sum(value.numel() for value in state))


def test_a_network_that_does_not_fit_into_memory_is_refused_with_its_size():
    recipe = load_recipe("egnn", "digits", 2, {"hidden_channels": 10**6})
    with pytest.raises(GraphjouleError, match=r"hidden_channels = 1000000 takes [\d,]+ GiB, and \d+ GiB of memory are"):
        initialised(recipe, 64, 10, 0)
