import io
import json
import zipfile
from dataclasses import replace
from functools import cache, partial

import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphjoule.errors import GraphjouleError
from graphjoule.fitting import fit, mean_prediction
from graphjoule.graph import Propagation, normalize_rows
from graphjoule.graph.relations import DirectedPropagation, MixedPropagation
from graphjoule.nn import MODELS
from graphjoule.ops import propagate
from graphjoule.tasks import Task
from graphjoule.tasks.task import ModelInput
from graphjoule.training import export
from graphjoule.training.export import EdgeList, export_model, exported_program
from graphjoule.training.hub import export_to_hub
from tests.graphs import edge_lists, few, no_edges, normal, random_edges

from . import small_recipe, small_regression, small_task

OPTIONS = {
    "egnn": {"c_max": 0.5, "srelu_init": -0.1},
    "dropedge": {"batch_norm": True},
    "gcnii": {"batch_norm": True},
    "appnp": {"batch_norm": True},
}
TASK = small_task()


def new_model(name, num_layers=2):
    """A network with parameters and running statistics that a training could have left."""
    torch.manual_seed(0)
    model = MODELS[name](TASK.num_features, 6, TASK.out_channels, num_layers, **OPTIONS.get(name, {}))
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.add_(torch.rand_like(buffer))
    return model.eval()


class Onnx:
    """A file as onnxruntime runs it."""

    def __init__(self, path):
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def __call__(self, x, edge_index, edge_weight):
        given = {"x": x, "edge_index": edge_index, "edge_weight": edge_weight}
        (found,) = self.session.run(None, {name: tensor.numpy() for name, tensor in given.items()})
        return torch.from_numpy(found)


def load_torch(path):
    return torch.export.load(path).module()


ABOUT = {"model_type": "a model", "classes": ["a", "ä"]}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The files of every model in both formats, each written once."""

    @cache
    def path_of(name, format):
        path = tmp_path_factory.mktemp(name) / ("m.onnx" if format == "onnx" else "m.pt2")
        export_model(new_model(name), TASK, path, format=format, about=ABOUT)
        return path

    return path_of


@pytest.fixture(scope="module")
def programs(written):
    """Every model in both formats, each read once."""
    return cache(lambda name, format: (Onnx if format == "onnx" else load_torch)(written(name, format)))


def inputs_of(edges):
    """What the program gets for a graph: the list as it is if it has weights, else what `Propagation` made of it."""
    if edges.weight is not None:
        return edges.index, edges.weight.float()
    graph = edges.graph()
    return graph.edge_index, graph.edge_weight


@torch.no_grad()
def expected(model, x, edges):
    weight = None if edges.weight is None else edges.weight.float()
    graph = Propagation.from_edge_index(edges.index, weight, edges.num_nodes)
    return model(x, graph).double().softmax(dim=-1)


QUICK = [("egnn", "onnx"), ("gcn", "onnx"), ("gcn", "torch")]  # the others are slow: a program takes seconds to write


@pytest.mark.parametrize(
    ("name", "format"),
    [
        pytest.param(name, format, marks=() if (name, format) in QUICK else pytest.mark.slow)
        for name in MODELS
        for format in ("onnx", "torch")
    ],
)
@few
@given(edges=edge_lists(), seed=st.integers(0, 3))
def test_a_program_says_what_the_model_says_on_any_graph(programs, name, format, edges, seed):
    x = normal(edges.num_nodes, TASK.num_features, seed=seed, dtype=torch.float32)
    found = programs(name, format)(x, *inputs_of(edges))
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected(new_model(name), x, edges), rtol=0, atol=1e-5)


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_a_larger_graph_gives_the_same_in_every_call(programs, format):
    # Sums by ScatterND differ from call to call in onnxruntime; see `EdgeList.product`.
    edges = random_edges(600, 20_000, weighted=True)
    x = normal(600, TASK.num_features, dtype=torch.float32)
    want = expected(new_model("gcn"), x, edges)
    for _ in range(10):
        torch.testing.assert_close(programs("gcn", format)(x, *inputs_of(edges)), want, rtol=0, atol=1e-5)


BAD_EDGES = {
    "one direction": ([[0, 1, 1], [1, 0, 2]], [1, 1, 1]),
    "a directed cycle, all degrees equal": ([[0, 1, 2], [1, 2, 0]], [1, 1, 1]),
    "another weight back": ([[0, 1], [1, 0]], [1, 1.001]),
    "two edges against two, the same nodes in sum": ([[0, 0, 1, 2], [3, 4, 0, 0]], [1, 1, 1, 1]),
    "a negative weight": ([[0, 1], [1, 0]], [-0.5, -0.5]),
    "an infinite weight": ([[0, 1], [1, 0]], [float("inf"), float("inf")]),
    "a weight that is no number": ([[0, 1], [1, 0]], [float("nan"), float("nan")]),
}


@pytest.mark.parametrize("case", BAD_EDGES)
def test_edges_that_are_no_graph_make_all_predictions_nan(programs, case):
    index, weight = (torch.tensor(given) for given in BAD_EDGES[case])
    x = normal(5, TASK.num_features, dtype=torch.float32)
    with pytest.raises(GraphjouleError):
        Propagation.from_edge_index(index, weight, 5)
    for format in ("onnx", "torch"):
        assert programs("gcn", format)(x, index, weight.float()).isnan().all(), format


def test_a_negative_node_is_not_taken_for_one_from_the_end(programs):
    given = normal(5, TASK.num_features, dtype=torch.float32), torch.tensor([[0, -1], [-1, 0]]), torch.ones(2)
    assert programs("gcn", "onnx")(*given).isnan().all()
    with pytest.raises(RuntimeError, match="out of bounds"):  # torch says it itself
        programs("gcn", "torch")(*given)


@few
@given(edges=edge_lists(weighted=True, directed=True))
def test_edges_are_valid_where_propagation_takes_them(edges):
    x = torch.zeros(edges.num_nodes, 1)
    try:
        edges.graph()
    except GraphjouleError:
        assert not EdgeList(edges.index, edges.weight, x).is_valid()
    else:
        assert EdgeList(edges.index, edges.weight, x).is_valid()


@pytest.mark.slow
def test_features_are_normalised_within_where_the_recipe_says_so(tmp_path):
    export_model(new_model("gcn"), TASK, tmp_path / "m.onnx", normalize_features=True)
    edges = random_edges(weighted=True)
    x = normal(9, TASK.num_features, dtype=torch.float32).abs()
    x[3] = 0
    want = expected(new_model("gcn"), normalize_rows(x), edges)
    torch.testing.assert_close(Onnx(tmp_path / "m.onnx")(x, *inputs_of(edges)), want, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("num_targets", [1, 2])
def test_a_regression_gives_numbers_in_the_unit_of_the_targets(tmp_path, num_targets):
    task, recipe = small_regression(num_targets=num_targets), small_recipe("gcn")
    (model,) = fit(recipe, task, device="cpu").models
    want = mean_prediction([model], recipe, task.objective, ModelInput.of(task))
    export_model(model, task, tmp_path / "m.onnx", normalize_features=recipe.data.normalize_features)
    found = Onnx(tmp_path / "m.onnx")(task.features, task.graph.edge_index, task.graph.edge_weight)
    assert want.mean() > 20
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("how", ["mean", "sum", "max"])
def test_a_task_about_graphs_takes_one_graph_and_gives_one_row(tmp_path, how):
    from torch_geometric.data import Batch, Data

    generator = torch.Generator().manual_seed(0)
    graphs = []
    for number in range(4):
        edges = random_edges(5, 6, seed=number).index
        graphs.append(Data(torch.rand(5, 3, generator=generator), edges, y=torch.tensor([number % 2])))
    task = Task.from_data(Batch.from_data_list(graphs), name="graphs", pooling=how)
    model = MODELS["gcn"](3, 4, 2, 2).eval()
    recipe = small_recipe("gcn", normalize_features=False)
    want = mean_prediction([model], recipe, task.objective, ModelInput.of(task))
    program = exported_program(model, task.facts()).module()
    for graph, row in zip(graphs, want, strict=True):
        clean = Propagation.from_edge_index(graph.edge_index, num_nodes=5)
        found = program(graph.x, clean.edge_index, clean.edge_weight)
        torch.testing.assert_close(found, row[None], rtol=0, atol=1e-6)


# Modules of the user's own.


class Steps(torch.nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.linear = torch.nn.Linear(in_channels, out_channels)

    def forward(self, x, graph):
        return propagate(self.linear(x), graph)


class Picky(Steps):
    def forward(self, x, graph):
        return self.linear(x) if float(graph.degree.sum()) > 3 else super().forward(x, graph)


class ByIndexAdd(Steps):
    def forward(self, x, edge_index):
        h = self.linear(x)
        return h.index_add(0, edge_index[0], h[edge_index[1]])


def pyg(name):
    import torch_geometric.nn

    options = {"in_channels": TASK.num_features, "hidden_channels": 4, "num_layers": 2, "out_channels": 3}
    return getattr(torch_geometric.nn, name)(**options)


@pytest.mark.parametrize("format", [pytest.param("onnx", marks=pytest.mark.slow), "torch"])
@pytest.mark.parametrize(
    "build",
    [partial(pyg, "GCN"), pytest.param(partial(pyg, "GraphSAGE"), marks=pytest.mark.slow), partial(Steps, 7, 3)],
)
def test_modules_of_ones_own_can_leave_too(tmp_path, build, format):
    torch.manual_seed(0)
    module = build().eval()
    path = tmp_path / ("m.onnx" if format == "onnx" else "m.pt2")
    export_model(module, TASK, path, format=format)
    program = Onnx(path) if format == "onnx" else load_torch(path)
    recipe = small_recipe("gcn", normalize_features=False)
    for edges in (random_edges(12, 30), random_edges(12, 30, weighted=True), no_edges(3)):
        x = normal(edges.num_nodes, 7, dtype=torch.float32)
        graph = edges.graph()
        given = ModelInput(x, graph, torch.zeros(edges.num_nodes), ())
        want = mean_prediction([module], recipe, TASK.objective, given)
        found = program(x, graph.edge_index, graph.edge_weight)
        torch.testing.assert_close(found, want, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def program_of_pyg():
    return exported_program(pyg("GCN").eval(), TASK).module()


@pytest.mark.parametrize(
    ("index", "weight"),
    [([[0, 1, 2], [1, 0, 2]], [1, 1, 1]), ([[0, 1, 0, 1], [1, 0, 1, 0]], [1, 1, 1, 1]), ([[0, 1], [1, 0]], [0, 0])],
    ids=["self-loop", "duplicate", "weight of zero"],
)
def test_a_module_that_reads_edges_itself_gets_clean_ones_or_says_nan(program_of_pyg, index, weight):
    x, index, weight = torch.ones(3, 7), torch.tensor(index), torch.tensor(weight, dtype=torch.float32)
    assert program_of_pyg(x, index, weight).isnan().all()
    clean = Propagation.from_edge_index(index, weight, 3)
    assert program_of_pyg(x, clean.edge_index, clean.edge_weight).isfinite().all()


def test_a_module_that_looks_at_the_graph_is_refused():
    with pytest.raises(GraphjouleError, match=r"Picky cannot be exported: .*no branches that depend on the graph"):
        exported_program(Picky(7, 3), TASK)


def test_sums_that_onnxruntime_gets_wrong_are_refused(tmp_path):
    with pytest.raises(GraphjouleError, match=r"ByIndexAdd adds up by index_add .* use scatter_add"):
        export_model(ByIndexAdd(7, 3), TASK, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
    export_model(ByIndexAdd(7, 3), TASK, tmp_path / "m.pt2", format="torch")


# The files.


def test_files_say_what_they_are_and_nothing_of_the_machine(written):
    as_onnx, as_torch = written("gcn", "onnx"), written("gcn", "torch")
    found = onnx.load(as_onnx)
    onnx.checker.check_model(found)
    sizes = {
        each.name: [dim.dim_param or dim.dim_value for dim in each.type.tensor_type.shape.dim]
        for each in (*found.graph.input, *found.graph.output)
    }
    assert sizes == {
        "x": ["num_nodes", 7],
        "edge_index": [2, "num_edges"],
        "edge_weight": ["num_edges"],
        "prediction": ["num_nodes", 3],
    }
    assert {each.key: json.loads(each.value) for each in found.metadata_props} == {"graphjoule": ABOUT}
    assert b".py" not in as_onnx.read_bytes()
    extra = {"graphjoule.json": ""}
    torch.export.load(as_torch, extra_files=extra)
    assert json.loads(extra["graphjoule.json"]) == ABOUT
    with zipfile.ZipFile(io.BytesIO(as_torch.read_bytes())) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    assert not [name for name, bytes_ in content.items() if b".py" in bytes_]
    assert not [name for name, bytes_ in content.items() if bytes_[:2] in (b"\x80\x02", b"PK")]  # pickles


def test_what_cannot_be_written_is_refused(tmp_path, monkeypatch):
    with pytest.raises(GraphjouleError, match="format is 'tflite'; the choices are: onnx, torch"):
        export_model(new_model("sgc"), TASK, tmp_path / "m", format="tflite")
    broken = new_model("sgc")
    next(broken.parameters()).data[0] = torch.nan  # the program would say NaN, and the largest of these is class 0
    for write in (exported_program, lambda model, data: export_to_hub(tmp_path / "hub", model, None, None, data)):
        with pytest.raises(GraphjouleError, match=r"not finite \(the first is .*\), so its training blew up"):
            write(broken, TASK.facts())
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    with pytest.raises(GraphjouleError, match="needs onnx and onnxscript, which are not installed: pip install 'graph"):
        export_model(new_model("sgc"), TASK, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_sixty_four_layers_leave_in_a_minute(tmp_path):
    import time

    before = time.process_time()
    export_model(new_model("egnn", 64), TASK, tmp_path / "m.onnx")
    assert time.process_time() - before < 60  # 34 s of one core were measured
    edges = random_edges(50, 90, weighted=True)
    x = normal(50, TASK.num_features, dtype=torch.float32)
    want = expected(new_model("egnn", 64), x, edges)
    torch.testing.assert_close(Onnx(tmp_path / "m.onnx")(x, *inputs_of(edges)), want, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_a_program_of_directed_edges_follows_them(tmp_path, format):
    task = replace(TASK, graph=DirectedPropagation.of(torch.tensor([[0], [1]]), num_nodes=TASK.num_nodes))
    path = tmp_path / ("m.onnx" if format == "onnx" else "m.pt2")
    export_model(new_model("sgc"), task, path, format=format)
    arrows, weight = torch.tensor([[0, 1, 2, 2, 3], [1, 2, 0, 0, 3]]), torch.tensor([1.0, 0.5, 2.0, 1.0, 4.0])
    x = normal(5, TASK.num_features, dtype=torch.float32)
    found = (Onnx(path) if format == "onnx" else load_torch(path))(x, arrows, weight)
    graph = DirectedPropagation.of(arrows, weight, 5)
    torch.testing.assert_close(found, new_model("sgc")(x, graph).double().softmax(dim=-1), rtol=0, atol=1e-5)


def test_types_of_edges_are_no_input_of_a_program(tmp_path):
    types = MixedPropagation.of([TASK.graph, TASK.graph])
    with pytest.raises(GraphjouleError, match="2 types of edges with an operator each, and a program takes"):
        export_model(new_model("sgc"), replace(TASK, graph=types), tmp_path / "m.onnx")
