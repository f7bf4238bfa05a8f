"""What every model of the zoo promises. A new model adds its variants here and its formula to dense.py."""

import copy
import inspect

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from torch.func import functional_call

from graphjoule import EnergyConstraint, Trace
from graphjoule.errors import GraphjouleError
from graphjoule.graph import Propagation
from graphjoule.graph.features import SparseFeatures
from graphjoule.measures import MEASURES
from graphjoule.nn import EGNN, MODELS, GraphModel
from graphjoule.ops import make_key, split_key
from tests.graphs import Edges, edge_lists, few, no_edges, normal, random_edges
from tests.nn.dense import DENSE, dense_scores

VARIANTS = {
    "egnn": [
        {},
        {"c_min": 0.3, "beta": 0.3, "c_max": 0.4, "srelu_init": -0.1},
        {"activation": "relu", "output_dropout": 0.0},
        {"activation": "linear", "weight_init": "glorot"},
        {"encoder": "mlp", "batch_norm": True, "srelu_init": -1.0, "freeze_last_shift": True},
    ],
    "gcn": [{}, {"batch_norm": True}],
    "pairnorm": [{}, {"scale": 3.0}],
    "dropedge": [{}, {"edge_dropout": 0.7, "batch_norm": True}],
    "sgc": [{}, {"batch_norm": True}],
    "jknet": [{}, {"batch_norm": True}],
    "appnp": [{}, {"alpha": 0.3, "edge_dropout": 0.0}, {"edge_dropout": 0.8, "batch_norm": True}],
    "resgcn": [{}, {"batch_norm": False}],
    "gcnii": [{}, {"alpha": 0.4, "theta": 1.2}, {"batch_norm": True}],
    "wave": [{}, {"delta": 0.0, "mu": 0.0, "step": 0.99}, {"speeds": "spread", "encoder": "mlp", "head": "mlp"}],
}
DROPPING = [name for name, model in MODELS.items() if "dropout" in inspect.signature(model).parameters]
NOT_ON_THE_INPUT = ["jknet"]  # drops after its layers
CASES = [(name, options) for name, variants in VARIANTS.items() for options in variants]
EDGES = random_edges(weighted=True)
X = normal(9, 5)
LABELS = torch.arange(9) % 3

every_model = pytest.mark.parametrize(("name", "options"), CASES, ids=lambda v: str(v))
every_dropping_model = pytest.mark.parametrize(
    ("name", "options"), [case for case in CASES if case[0] in DROPPING], ids=lambda v: str(v)
)


def build(name: str, options: dict, *, sizes=(5, 4, 3, 3), seed: int | None = None) -> GraphModel:
    """A float64 model with dropout 0.5; with `seed`, all its parameters and batch statistics are random numbers."""
    model = MODELS[name](*sizes, **({"dropout": 0.5} if name in DROPPING else {}) | options).double()
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        for key, value in model.state_dict().items():
            if value.is_floating_point():
                value.normal_(generator=generator)
                if key.endswith("running_var"):
                    value.abs_().add_(0.5)
    return model


def loss(model: GraphModel, scores: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores, LABELS[: len(scores)] % scores.size(1)) + model.penalty()


def test_every_model_has_variants_and_a_dense_formula():
    assert VARIANTS.keys() == MODELS.keys()
    assert DENSE.keys() == set(MODELS.values())


@every_model
@pytest.mark.parametrize("num_layers", [1, 2, 6])
def test_scores_are_the_dense_formula(name, options, num_layers):
    model = build(name, options, sizes=(5, 4, 3, num_layers), seed=0).eval()
    scores = model(X, EDGES.graph64())
    assert scores.shape == (9, 3)
    torch.testing.assert_close(scores, dense_scores(model, X, EDGES.dense()), rtol=1e-9, atol=1e-11)


@every_model
def test_training_scores_are_the_dense_formula_with_its_dropout_and_batch_statistics(name, options):
    model, key = build(name, options, seed=0), make_key(4)
    expected = dense_scores(model, X, EDGES.dense(), split_key(key, model.num_layers + 2))
    torch.testing.assert_close(model(X, EDGES.graph64(), key=key), expected, rtol=1e-9, atol=1e-11)
    evaluated = dense_scores(model.eval(), X, EDGES.dense())
    is_plain = name not in DROPPING and not options.get("batch_norm")
    assert torch.allclose(expected, evaluated) == is_plain


@every_model
@pytest.mark.parametrize("key", [None, make_key(4)], ids=["eval", "training"])
@pytest.mark.parametrize("num_layers", [1, 9])
def test_float32_gives_the_scores_and_gradients_of_float64(name, options, key, num_layers):
    """float32 may run by a faster backend than float64, which always has the plain one."""
    wide = build(name, options, sizes=(5, 4, 3, num_layers), seed=0).train(key is not None)
    with torch.no_grad():
        for parameter in wide.parameters():
            parameter.mul_(0.5)
    narrow = copy.deepcopy(wide).float()

    def scores_and_gradients(model, x, graph):
        scores = model(x, graph, key=key)
        assert scores.dtype == x.dtype
        return scores.detach(), torch.autograd.grad(scores.square().mean(), list(model.parameters()))

    scores, gradients = scores_and_gradients(narrow, X.float(), EDGES.graph())
    expected, wanted = scores_and_gradients(wide, X, EDGES.graph64())
    torch.testing.assert_close(scores.double(), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    largest = max(float(gradient.abs().max()) for gradient in wanted)
    for gradient, want in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient.double(), want, rtol=1e-3, atol=1e-5 * largest)


@pytest.mark.parametrize("name", MODELS)
@few
@given(edges=edge_lists())
def test_any_graph_gives_the_dense_formula(name, edges):
    model, x = build(name, {}, seed=1).eval(), normal(edges.num_nodes, 5)
    expected = dense_scores(model, x, edges.dense())
    torch.testing.assert_close(model(x, edges.graph64()), expected, rtol=1e-9, atol=1e-11)


@every_model
def test_renaming_the_nodes_permutes_the_scores(name, options):
    model = build(name, options, seed=0).eval()
    permutation = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    scores, renamed = model(X, EDGES.graph64()), model(X[permutation], EDGES.permuted(permutation).graph64())
    torch.testing.assert_close(renamed, scores[permutation], rtol=1e-9, atol=1e-11)


@every_model
def test_a_reset_under_the_same_seed_is_a_new_model_to_the_bit(name, options):
    def state(model):
        return model.state_dict() | {"": torch.get_rng_state()}

    torch.manual_seed(7)
    new = state(MODELS[name](5, 4, 3, 3, **options))
    old = MODELS[name](5, 4, 3, 3, **options)
    F.cross_entropy(old(X.float(), EDGES.graph()), LABELS).backward()  # batch norms have seen data
    with torch.no_grad():
        for parameter in old.parameters():
            parameter.add_(1)
    torch.manual_seed(7)
    old.reset_parameters()
    assert new.keys() == state(old).keys()
    assert all(value.equal(new[key]) for key, value in state(old).items())


@every_model
def test_parameter_groups_are_a_partition(name, options):
    model = build(name, options)
    groups = model.parameter_groups()
    grouped = [parameter for names in groups.values() for parameter in names]
    assert sorted(grouped) == sorted(parameter for parameter, _ in model.named_parameters())
    assert groups.keys() - {"frozen"} == set(model.parameter_group_names)
    assert ("frozen" in groups) == bool(options.get("freeze_last_shift"))


@every_model
@pytest.mark.parametrize("num_layers", [1, 32])
def test_gradients_are_finite_at_initialisation(name, options, num_layers):
    torch.manual_seed(0)
    model = MODELS[name](5, 4, 3, num_layers, **options)
    scores = model(X.float(), EDGES.graph(), key=make_key(0))
    loss(model, scores).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name


@every_model
def test_evaluation_is_deterministic_and_needs_no_key(name, options):
    model = build(name, options, seed=0).eval()
    before, generator = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    scores = model(X, EDGES.graph64())
    assert scores.equal(model(X, EDGES.graph64()))
    assert scores.equal(model(X, EDGES.graph64(), key=make_key(0)))
    assert torch.get_rng_state().equal(generator)
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())


@every_dropping_model
def test_training_draws_its_dropout_from_the_global_generator(name, options):
    model, graph = build(name, options, seed=0), EDGES.graph64()
    torch.manual_seed(3)
    first, second = model(X, graph), model(X, graph)
    torch.manual_seed(3)
    assert model(X, graph).equal(first)
    assert not first.equal(second)


@every_dropping_model
def test_training_with_a_key_leaves_the_global_generator_alone(name, options):
    model, graph, before = build(name, options, seed=0), EDGES.graph64(), torch.get_rng_state()
    scores = model(X, graph, key=make_key(1))
    assert scores.equal(model(X, graph, key=make_key(1)))
    assert not scores.equal(model(X, graph, key=make_key(2)))
    assert torch.get_rng_state().equal(before)


@every_model
def test_sparse_and_dense_features_give_the_same_scores_and_gradients(name, options):
    x = X * (normal(9, 5, seed=3) > 0.3)
    undropped = {**options, "dropout": 0.0} if name in DROPPING else options
    for model in (build(name, options, seed=0).eval(), build(name, undropped, seed=0)):
        parameters, key = list(model.parameters()), make_key(0)
        dense, sparse = (model(f, EDGES.graph64(), key=key) for f in (x, SparseFeatures.from_dense(x)))
        torch.testing.assert_close(sparse, dense, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(
            torch.autograd.grad(loss(model, sparse), parameters),
            torch.autograd.grad(loss(model, dense), parameters),
            rtol=1e-8,
            atol=1e-10,
        )


@pytest.mark.parametrize("name", [name for name in DROPPING if name not in NOT_ON_THE_INPUT])
def test_all_stored_values_dropped_are_features_of_zero(name):
    model, key = build(name, {"dropout": 1 - 2**-16}, seed=0), make_key(0)
    x = SparseFeatures.from_dense(X)
    scores, zero = (model(f, EDGES.graph64(), key=key) for f in (x, x.with_value(torch.zeros_like(x.value))))
    assert scores.equal(zero)
    assert not model.eval()(x, EDGES.graph64()).equal(zero)


@every_model
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_plain_edge_index_is_its_propagation(name, options, dtype):
    edges, model, x = random_edges(), build(name, options, seed=0).eval().to(dtype), X.to(dtype)
    assert model(x, edges.index).equal(model(x, edges.graph(dtype=dtype)))
    assert model(x, edges.index).dtype == dtype


@every_model
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (5, 1, 1, 2), (1, 4, 3, 1)], ids=str)
@pytest.mark.parametrize(
    "edges", [no_edges(1), no_edges(9), Edges(random_edges(4).index, None, 9)], ids=["one", "no", "few"]
)
def test_the_smallest_models_on_the_emptiest_graphs_have_scores(name, options, sizes, edges):
    model, x = build(name, options, sizes=sizes), normal(edges.num_nodes, sizes[0])
    has_norm = any(isinstance(module, torch.nn.BatchNorm1d) for module in model.modules())
    for mode in (True, False):
        if mode and has_norm and edges.num_nodes == 1:
            continue  # one node has no batch statistics; torch says so
        scores = model.train(mode)(x, edges.graph64())
        assert scores.shape == (edges.num_nodes, sizes[2])
        assert scores.isfinite().all()


@every_model
def test_a_state_dict_goes_there_and_back(name, options):
    model, other = build(name, options, seed=0).eval(), build(name, options).eval()
    assert not other(X, EDGES.graph64()).equal(model(X, EDGES.graph64()))
    other.load_state_dict(model.state_dict())
    assert other(X, EDGES.graph64()).equal(model(X, EDGES.graph64()))


@every_model
def test_three_runs_in_one_program_are_three_models(name, options):
    models = [build(name, options, seed=seed) for seed in range(3)]
    keys, graph = make_key(torch.arange(3)), EDGES.graph64()
    parameters = {n: torch.stack([m.get_parameter(n) for m in models]) for n, _ in models[0].named_parameters()}
    buffers = {n: torch.stack([m.get_buffer(n).clone() for m in models]) for n, _ in models[0].named_buffers()}
    objective = Objective(models[0])

    def run(parameters, buffers, key):
        state = {f"model.{n}": v for n, v in (parameters | buffers).items()}
        return functional_call(objective, state, (X, graph, key))

    losses, scores = torch.vmap(run)(parameters, buffers, keys)
    gradients = torch.autograd.grad(losses.sum(), list(parameters.values()))

    for k, model in enumerate(models):
        alone_loss, alone_scores = Objective(model)(X, graph, keys[k])
        torch.testing.assert_close(scores[k], alone_scores, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(losses[k], alone_loss, rtol=1e-9, atol=1e-11)
        alone = torch.autograd.grad(alone_loss, [model.get_parameter(n) for n in parameters])
        torch.testing.assert_close(tuple(g[k] for g in gradients), alone, rtol=1e-8, atol=1e-10)
        for n, buffer in model.named_buffers():
            torch.testing.assert_close(buffers[n][k], buffer, rtol=1e-9, atol=1e-11)


class Objective(torch.nn.Module):
    """Model and loss in one forward: what `functional_call` can call."""

    def __init__(self, model: GraphModel):
        super().__init__()
        self.model = model

    def forward(self, x, graph, key):
        scores = self.model(x, graph, key=key)
        return loss(self.model, scores), scores


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("position", range(4))
def test_a_size_below_one_is_refused(name, position):
    sizes = [5, 4, 3, 2]
    sizes[position] = 0
    what = ["in_channels", "hidden_channels", "out_channels", "num_layers"][position]
    with pytest.raises(GraphjouleError, match=f"{what} is 0; it must be at least 1"):
        MODELS[name](*sizes)


@pytest.mark.parametrize("name", MODELS)
def test_features_and_graphs_that_do_not_fit_are_refused_with_a_sentence(name):
    model = build(name, {})
    for x in (normal(9, 6), SparseFeatures.from_dense(normal(9, 6))):
        with pytest.raises(GraphjouleError, match="have 6 columns; this model expects 5"):
            model(x, EDGES.graph64())
    with pytest.raises(GraphjouleError, match="graph has 9 nodes but the features have 8 rows"):
        model(normal(8, 5), EDGES.graph64())
    with pytest.raises(GraphjouleError, match="names node 8; with 8 nodes"):
        model(normal(8, 5), EDGES.index)
    with pytest.raises(GraphjouleError, match=r"torch.float64 over a graph of 9 nodes, torch.float32; use graph.to"):
        model(X, EDGES.graph())
    with pytest.raises(GraphjouleError, match="symmetrize=True"):
        model(X, torch.tensor([[0], [1]]))


@pytest.mark.parametrize("name", DROPPING)
@pytest.mark.parametrize("dropout", [1.0, -0.1, 2.0, torch.nan])
def test_a_dropout_outside_its_range_is_refused(name, dropout):
    with pytest.raises(GraphjouleError, match=rf"dropout is {dropout}; it must be in \[0, 1\)"):
        MODELS[name](5, 4, 3, 2, dropout=dropout)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
def test_autocast_and_half_precision_give_nearly_the_scores_of_float32(name, is_sparse):
    """Sparse products have no kernels in half precision: none of them may be reached."""
    model, x = build(name, {}, seed=0).float().eval(), X.float().abs()
    x = SparseFeatures.from_dense(x) if is_sparse else x
    half, expected = copy.deepcopy(model).bfloat16(), model(x, EDGES.graph()).detach()
    tolerance = 0.05 * float(expected.abs().max())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = model(x, EDGES.graph())
    assert (scores.dtype, expected.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(scores, expected, rtol=0, atol=tolerance)
    model.train()
    with torch.autocast("cpu", dtype=torch.bfloat16), Trace(model) as trace, EnergyConstraint(model) as constraint:
        (loss(model, model(x, EDGES.index)) + constraint()).backward()  # the constraint's hooks make layers run singly
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())
    assert len(trace.layers) >= 2
    scores = half(x.to(dtype=torch.bfloat16), EDGES.graph().to(dtype=torch.bfloat16))
    assert scores.dtype == torch.bfloat16
    torch.testing.assert_close(scores.float(), expected, rtol=0, atol=2 * tolerance)
    loss(half, half(x.to(dtype=torch.bfloat16), EDGES.index)).backward()


def test_autocast_changes_neither_energies_nor_traced_outputs():
    model = build("egnn", {}, seed=0).float().eval()
    graph = EDGES.graph()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = model(X.float(), graph)
        with Trace(model, graph) as trace:
            assert model(X.float(), graph).equal(plain)
        x = X.float()
        inside = MEASURES["energy"].function(x, graph)
    torch.testing.assert_close(inside, MEASURES["energy"].function(x, graph), rtol=1e-6, atol=0)
    assert trace.layers


def test_features_of_another_dtype_are_refused_and_ids_for_an_embedding_are_not():
    model, index = EGNN(4, 8, 2, num_layers=2).eval(), torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(GraphjouleError, match=r"features are torch.float64 and the parameters of EGNN torch.float32"):
        model(torch.ones(2, 4, dtype=torch.float64), index)

    class Embedded(EGNN):
        def __init__(self):
            super().__init__(1, 8, 2, num_layers=2)
            self.names = torch.nn.Embedding(5, 1)

        def _forward(self, x, graph, keys):
            return super()._forward(self.names(x[:, 0]), graph, keys)

    assert Embedded().eval()(torch.tensor([[3], [4]]), index).shape == (2, 2)


def test_weights_beside_an_edge_index_are_those_of_the_graph():
    index, weight, x = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.tensor([1.0, 1.0, 3.0, 3.0]), torch.eye(3)
    for name in ("egnn", "gcn", "wave"):
        torch.manual_seed(0)
        model = MODELS[name](3, 8, 2, num_layers=2).eval()
        found = model(x, index, weight)
        assert found.equal(model(x, Propagation.from_edge_index(index, weight)))
        assert not found.equal(model(x, index))
        with pytest.raises(GraphjouleError, match="edge_weight was given beside a Propagation"):
            model(x, Propagation.from_edge_index(index), weight)
