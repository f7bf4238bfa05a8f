"""Train two models of PyTorch Geometric on the embedded digits: every seed, validation and records, without a loop."""

from functools import partial

from torch_geometric.nn import GAT, GraphSAGE

from graphjoule import fit, load_task

task = load_task("digits")
for network in (GAT, GraphSAGE):
    build = partial(network, hidden_channels=32, num_layers=2, dropout=0.3)
    result = fit(build, task, seeds=range(2), settings={"lr": 0.02, "epochs": 30}, device="cpu")
    print(f"{network.__name__}: {result.summary.metric.text(result.summary.test_mean, result.summary.test_std)}")
