import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData

from graphjoule.errors import GraphjouleError
from graphjoule.estimators import EGNNClassifier
from graphjoule.graph import Propagation
from graphjoule.graph.features import SparseFeatures
from graphjoule.tasks.facts import TaskFacts
from graphjoule.tasks.objective import Classification, MultiLabel, Regression
from graphjoule.tasks.pooling import Pooling
from graphjoule.tasks.splits import Split
from graphjoule.tasks.task import Task, pack_features
from tests.graph.test_features import LAYOUTS, in_layout

EDGES = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])


def make(**changes):
    fields = {
        "name": "toy",
        "features": torch.ones(4, 2),
        "graph": Propagation.from_edge_index(EDGES),
        "targets": torch.tensor([0, 1, 0, 1]),
    }
    objective = Classification(changes.pop("num_classes", 2), changes.pop("class_names", None))
    return Task(**(fields | {"objective": objective} | changes))


def hetero(**changes):
    graph = HeteroData()
    for name, x in changes.items():
        graph[name].x = x
    return graph


def index(*nodes):
    return torch.tensor(nodes, dtype=torch.int64)


def data(**changes):
    fields = {"x": torch.ones(4, 2), "edge_index": EDGES, "y": torch.tensor([0, 1, 0, 1])}
    return Data(**(fields | changes))


def test_sizes():
    task = make(features=torch.ones(4, 3), targets=torch.tensor([0, 2, -1, 1]), num_classes=3)
    assert (task.num_nodes, task.num_features, task.out_channels) == (4, 3, 3)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"features": torch.ones(3, 2)}, "features of task 'toy' have 3 rows; expected 4"),
        ({"features": torch.ones(4, 2).int()}, "floating-point dtype"),
        ({"features": torch.full((4, 2), torch.nan)}, "nan at node 0, column 0"),
        ({"targets": torch.zeros(3).long()}, r"shape \[3\]; expected \[4\]"),
        ({"targets": torch.zeros(4)}, "dtype torch.float32; expected an integer"),
        ({"targets": torch.tensor([0, 1, 2, 1])}, "label of node 2 in task 'toy' is 2; expected 0 to 1"),
        ({"targets": torch.tensor([0, -2, 1, 1])}, "label of node 1 in task 'toy' is -2"),
        ({"targets": torch.full((4,), -1)}, "has no label"),
        ({"num_classes": 1, "targets": torch.zeros(4).long()}, "has 1 class; at least two"),
        ({"class_names": ("a", "b", "c")}, "has 2 classes but 3 class names"),
        ({"default_split": "publik"}, "Unknown split 'publik' for task 'toy'"),
        ({"default_split": "public"}, "Unknown split 'public'"),
        ({"node_ids": ("a", "b")}, "has 2 node ids; expected 4, one per node"),
    ],
)
def test_bad_input_is_one_sentence(changes, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        make(**changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"graph": EDGES},
            r"graph of task 'toy' is of type Tensor; expected a Propagation: Propagation.from_edge_index\(",
        ),
        ({"graph": [[0], [1]]}, r"graph of task 'toy' is of type list; expected a Propagation\.$"),
        (
            {"features": np.ones((4, 2))},
            r"features are of type ndarray; expected a floating-point torch tensor, such as torch",
        ),
        ({"targets": np.array([0, 1, 0, 1])}, "targets of task 'toy' are of type ndarray; expected a tensor"),
        ({"objective": Classification}, r"objective of task 'toy' is the class Classification; .*\(num_classes=3\)"),
        (
            {"objective": "classification"},
            r"is of type str; expected an objective, .* The choices are: .*Regression\(\.\.\.\)",
        ),
    ],
)
def test_something_of_another_type_is_one_sentence(changes, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        make(**changes)


def test_a_fixed_split_must_name_labelled_nodes():
    split = Split("mine", None, index(0), index(1), index(2))
    with pytest.raises(GraphjouleError, match="names node 2, whose target is unknown"):
        make(targets=torch.tensor([0, 1, -1, 1]), fixed_splits=(split,))


def test_labels_of_any_integer_dtype_become_int64():
    assert make(targets=torch.tensor([0, 1, 0, 1], dtype=torch.uint8)).targets.dtype == torch.int64


def test_split_by_name_by_rule_and_by_default():
    fixed = Split("mine", None, index(0), index(1), index(2, 3))
    task = make(fixed_splits=(fixed,), default_split="mine")
    assert task.split_names == ("mine",)
    assert task.split().sha256 == task.split("mine", seed=5).sha256 == fixed.sha256
    drawn = task.split("per-class-1-1", seed=3)
    assert (drawn.name, drawn.seed, len(drawn.train), len(drawn.val), len(drawn.test)) == ("per-class-1-1", 3, 2, 2, 0)


def test_unknown_split_lists_the_choices():
    fixed = Split("mine", None, index(0), index(1), index(2, 3))
    with pytest.raises(GraphjouleError, match=r"Unknown split 'per-class' .* expected one of: mine, per-class-A-B"):
        make(fixed_splits=(fixed,)).split("per-class")


def test_a_class_with_too_few_nodes_is_called_by_its_name():
    with pytest.raises(GraphjouleError, match=r"Class 0 \(cats\) has 2 labelled nodes"):
        make(class_names=("cats", "dogs")).split("per-class-2-1")


def test_to_changes_the_dtype_of_features_and_graph_only():
    task = make(features=SparseFeatures.from_dense(torch.eye(4))).to(dtype=torch.float64)
    assert (task.features.dtype, task.graph.dtype, task.targets.dtype) == (torch.float64, torch.float64, torch.int64)
    assert task.features.to_dense().equal(torch.eye(4).double())


@pytest.mark.gpu
def test_to_moves_all_and_splits_follow():
    task = make().to("cuda")
    split = task.split("per-class-1-1", seed=1)
    assert all(t.is_cuda for t in (task.features, task.graph.value, task.targets, split.train, split.val, split.test))
    assert split.sha256 == make().split("per-class-1-1", seed=1).sha256


def test_features_are_sparse_only_below_a_quarter():
    x = torch.zeros(4, 10)
    x.view(-1)[:9] = 1
    assert isinstance(pack_features(x), SparseFeatures)
    assert pack_features(x).to_dense().equal(x)
    x.view(-1)[9] = 1
    assert pack_features(x) is x


@pytest.mark.parametrize("layout", LAYOUTS)
def test_features_in_a_sparse_layout_of_torch_are_the_same_task(layout):
    for x in (torch.eye(4), torch.eye(5)[:4]):  # a quarter of non-zeros is kept dense, a fifth is not
        features = in_layout(x, layout)
        assert make(features=features).features.to_dense().equal(x)
        assert Task.from_data(data(x=features)).facts() == Task.from_data(data(x=x)).facts()


def test_from_data_reads_masks_as_public():
    masks = {f"{part}_mask": torch.arange(4) == i for i, part in enumerate(("train", "val", "test"))}
    task = Task.from_data(data(**masks), name="mine")
    assert (task.name, task.default_split, task.out_channels) == ("mine", "public", 2)
    split = task.split()
    assert (split.train.tolist(), split.val.tolist(), split.test.tolist()) == ([0], [1], [2])


def test_from_data_without_masks_offers_a_drawn_split():
    assert Task.from_data(data()).split_names == ("per-class-20-30",)


def test_from_data_with_two_masks_has_no_test_part_and_with_other_ones_is_refused():
    one, other = torch.arange(4) == 0, torch.arange(4) > 1
    split = Task.from_data(data(train_mask=other, val_mask=one)).split()
    assert (split.name, split.train.tolist(), split.val.tolist(), split.test.tolist()) == ("public", [2, 3], [0], [])
    with pytest.raises(GraphjouleError, match="There is train_mask but no val_mask"):
        Task.from_data(data(train_mask=one))
    with pytest.raises(GraphjouleError, match="There is val_mask and test_mask but no train_mask"):
        Task.from_data(data(val_mask=one, test_mask=other))
    with pytest.raises(GraphjouleError, match="must not overlap"):
        Task.from_data(data(train_mask=one, val_mask=one))


def test_from_data_takes_weights_a_column_of_labels_and_isolated_nodes():
    weight = torch.tensor([1.0, 1.0, 2.0, 2.0, 3.0, 3.0])
    given = data(x=torch.ones(5, 2), y=torch.tensor([[0], [1], [0], [1], [-1]]), edge_weight=weight)
    task = Task.from_data(given)
    assert task.graph.degree.tolist() == [1, 3, 5, 3, 0]
    assert task.targets.tolist() == [0, 1, 0, 1, -1]
    assert given.y.shape == (5, 1)


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_from_data_warns_of_numbers_of_edges_that_it_does_not_read(shape):
    with pytest.warns(UserWarning, match="edge_attr has one number per edge, which is not used; if they are weights"):
        task = Task.from_data(data(edge_attr=torch.full(shape, 2.0)))
    assert task.graph.degree.tolist() == [1, 2, 2, 1]
    with pytest.warns(UserWarning, match="edge_attr has one number"):
        EGNNClassifier(num_layers=1, epochs=1, device="cpu").fit(data(edge_attr=torch.full(shape, 2.0)))


def test_from_data_is_quiet_about_features_of_edges_and_where_weights_are_given():
    features, weight = torch.ones(6, 3), torch.full((6,), 2.0)
    assert Task.from_data(data(edge_attr=features)).graph.degree.tolist() == [1, 2, 2, 1]
    assert Task.from_data(data(edge_attr=weight, edge_weight=weight)).graph.degree.tolist() == [2, 4, 4, 2]


def test_from_data_symmetrizes_only_when_told():
    directed = data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]))
    with pytest.raises(GraphjouleError, match=r"as symmetrize=True of Task\.from_data does"):
        Task.from_data(directed)
    assert Task.from_data(directed, symmetrize=True).graph.to_dense().equal(make().graph.to_dense())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"x": None}, "has no tensor 'x'"),
        ({"y": None}, "has no tensor 'y'"),
        ({"x": torch.ones(4)}, r"shape \[4\]"),
        ({"y": torch.full((4,), torch.nan)}, "has no target"),
        ({"y": torch.tensor([0, 1, 0, -1]).to(torch.uint64)}, "'data' have the number 18446744073709551615; expected"),
        ({"y": torch.full((4,), -1)}, "has no label"),
        ({"y": torch.ones(4, 3).long()}, r"shape \[4, 3\]"),
        ({"edge_index": torch.tensor([[0, 4], [4, 0]])}, "names node 4"),
    ],
)
def test_from_data_refuses_bad_data(changes, sentence):
    with pytest.raises(GraphjouleError, match=sentence):
        Task.from_data(data(**changes))


def test_the_shared_tiny_task_can_be_split(tiny_task):
    split = tiny_task.split()
    assert (len(split.train), len(split.val), len(split.test)) == (2, 2, 1)


def test_a_stratified_split_can_be_asked_for_and_be_the_default():
    task = make(targets=torch.tensor([0, 0, 1, 1]), default_split="stratified-20-0")
    split = task.split(seed=3)
    assert (split.name, len(split.train), len(split.val), len(split.test)) == ("stratified-20-0", 2, 2, 0)
    assert task.split("stratified-20-0", seed=3).sha256 == split.sha256


def test_facts_say_what_a_task_is():
    facts = make(targets=torch.tensor([0, 1, -1, 1])).facts()
    assert (facts.num_nodes, facts.num_edges, facts.num_features, facts.num_labels) == (4, 3, 2, 3)
    assert (facts.name, facts.objective, facts.classes) == ("toy", Classification(2), ("0", "1"))
    assert make(class_names=("cat", "dog")).facts().classes == ("cat", "dog")
    assert TaskFacts.model_validate_json(facts.model_dump_json()) == facts


def test_the_hash_changes_with_features_graph_and_labels_and_with_nothing_else():
    base = make().facts().sha256
    assert make(name="other", class_names=("a", "b"), default_split="per-class-1-1").facts().sha256 == base
    changed = torch.ones(4, 2)
    changed[3, 1] = 2
    others = [
        make(features=changed),
        make(features=SparseFeatures.from_dense(torch.eye(4))),
        make(targets=torch.tensor([1, 0, 0, 1])),
        make(graph=Propagation.from_edge_index(EDGES[:, :4], num_nodes=4)),
        make(graph=Propagation.from_edge_index(EDGES, torch.tensor([1.0, 1, 1, 1, 2, 2]))),
    ]
    assert len({base, *(task.facts().sha256 for task in others)}) == 6


def test_a_label_that_would_turn_into_unknown_is_refused():
    with pytest.raises(GraphjouleError, match="labels of task 'toy' have the number 18446744073709551615; expected"):
        make(targets=torch.tensor([0, 1, 0, -1]).to(torch.uint64))
    assert make(targets=torch.tensor([0, 1, 0, 1]).to(torch.uint64)).targets.dtype == torch.int64


def test_equal_class_names_are_refused():
    with pytest.raises(GraphjouleError, match=r"The classes 0 and 2 of task 'toy' are both called 'a'; names must"):
        make(num_classes=3, class_names=("a", "b", "a"))


def test_features_that_are_all_zero_have_a_hash_too():
    empty = make(features=pack_features(torch.zeros_like(make().features)))
    assert isinstance(empty.features, SparseFeatures)
    assert empty.facts().sha256 != make().facts().sha256


@pytest.mark.gpu
def test_the_hash_does_not_depend_on_the_device():
    assert make().to("cuda").facts() == make().facts()


# Tasks about graphs.


def graphs(targets):
    return [data(x=torch.full((4, 2), float(k)), y=y) for k, y in enumerate(targets)]


@pytest.mark.parametrize("form", [list, tuple, Batch.from_data_list])
def test_graphs_with_a_target_each_are_one_task(form):
    task = Task.from_data(form(graphs([torch.tensor([0]), torch.tensor([2]), torch.tensor([1])])), name="rings")
    assert (task.unit, task.num_units, task.num_nodes, task.out_channels) == ("graph", 3, 12, 3)
    assert task.targets.tolist() == [0, 2, 1]
    assert task.pooling.batch.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert task.graph.num_edges == 9  # three paths, and nothing between them
    output = torch.arange(12.0)[:, None]
    assert task.readout(output).tolist() == [[1.5], [5.5], [9.5]]
    assert (task.facts().num_graphs, task.facts().pooling) == (3, "mean")
    assert TaskFacts.model_validate(task.facts().model_dump()) == task.facts()
    assert task.facts().sha256 != Task.from_data(graphs(task.targets.view(-1, 1)), pooling="max").facts().sha256


def test_graphs_may_have_several_targets_and_labels():
    rows = [torch.tensor([[1.0, 0.0]]), torch.tensor([[torch.nan, 1.0]])]
    assert Task.from_data(graphs(rows)).objective == Regression(2)
    task = Task.from_data(graphs(rows), objective=MultiLabel(2), pooling="sum")
    assert (task.objective, task.pooling.how, task.is_known.tolist()) == (MultiLabel(2), "sum", [True, True])


def test_nodes_of_a_batch_are_nodes_where_each_has_a_target():
    task = Task.from_data(Batch.from_data_list([data(), data()]))
    assert (task.unit, task.num_units, task.pooling) == ("node", 8, None)
    assert task.readout(torch.ones(8, 2)).equal(torch.ones(8, 2))


def test_a_split_of_graphs_names_graphs():
    task = Task.from_data(graphs([torch.tensor([k % 2]) for k in range(10)]))
    split = task.split("stratified-20-20", seed=0)
    assert sorted(torch.cat([split.train, split.val, split.test]).tolist()) == list(range(10))
    several = graphs([torch.tensor([0]), torch.tensor([1])])
    for number, each in enumerate(several):
        each.train_mask, each.val_mask = torch.tensor([number == 0]), torch.tensor([number == 1])
    split = Task.from_data(several).split()
    assert (split.name, split.train.tolist(), split.val.tolist()) == ("public", [0], [1])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "The list of graphs is empty"),
        (hetero(), r"The graph is of type HeteroData; expected PyG's Data .*; to_homogeneous\(\) makes one"),
        (hetero(a=torch.ones(3, 2)), "The graph is of type HeteroData"),
        ([hetero(a=torch.ones(3, 2))] * 2, "The graph is of type HeteroData"),
        (7, "The graph is of type int; expected PyG's Data with x, edge_index and y, or a list of such.$"),
        ([data(), None], "The graph is of type NoneType"),
        (EDGES, "The graph is of type Tensor"),
        ([data(), Data(x=torch.ones(4, 2))], "The 2 graphs cannot be joined; expected Data with the same attributes"),
        (graphs([torch.tensor([1.0, 2.0, 3.0])] * 2), r"y of task 'data' has 6 rows; expected 2, one per graph, or 8"),
    ],
)
def test_graphs_that_do_not_fit_are_a_sentence(given, said):
    with pytest.raises(GraphjouleError, match=said):
        Task.from_data(given)


def test_what_is_wrong_about_graphs_is_said_of_graphs():
    pooling = Pooling(torch.tensor([0, 0, 1, 1]))
    with pytest.raises(GraphjouleError, match=r"have shape \[4\]; expected \[2\], one per graph"):
        make(pooling=pooling)
    with pytest.raises(GraphjouleError, match="label of graph 1 in task 'toy' is 5"):
        make(pooling=pooling, targets=torch.tensor([0, 5]))
    with pytest.raises(GraphjouleError, match="has 4 graph ids; expected 2, one per graph"):
        make(pooling=pooling, targets=torch.tensor([0, 1]), node_ids=("a", "b", "c", "d"))
    with pytest.raises(GraphjouleError, match="graph numbers for 3 nodes; expected 4"):
        make(pooling=Pooling(torch.tensor([0, 0, 1])))
