import pytest
import torch
from graphjoule.bench.synthetic import CitationGraph

from graphjoule.fitting import fit
from graphjoule.nn import MODELS
from graphjoule.parallel.streaming import evaluate_in_blocks
from graphjoule.training.recipe import load_recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def citations(num_nodes: int = 3000):
    return CitationGraph(num_nodes, 5 * num_nodes, num_features=20, num_classes=4).task("citations")


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_scores_in_blocks_on_a_gpu_are_those_of_the_forward(name):
    task = citations()
    model = MODELS[name](20, 16, 4, 6).eval()
    want = model(task.features, task.graph)
    scores = evaluate_in_blocks(model.cuda(), task.features, task.graph, block_bytes=5000)
    assert scores.device.type == "cpu"
    torch.testing.assert_close(scores, want, rtol=1e-3, atol=1e-4)


def test_the_graph_stays_in_host_memory():
    task = citations(200_000)
    model = MODELS["egnn"](20, 64, 4, 8).cuda()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    evaluate_in_blocks(model, task.features, task.graph, block_bytes=2**20)
    assert torch.cuda.max_memory_allocated() - before < 2**24  # one activation is 51 MB


def test_a_run_on_clusters_is_about_the_same_on_both_devices():
    pytest.importorskip("pymetis")
    recipe = load_recipe("egnn", "citations", 4, {"clusters": 10, "clusters.per_step": 2, "epochs": 5})
    on_cpu, on_gpu = (fit(recipe, citations(), [0], device=device).records[0] for device in ("cpu", "cuda"))
    assert on_gpu.val_loss == pytest.approx(on_cpu.val_loss, rel=0.02)
