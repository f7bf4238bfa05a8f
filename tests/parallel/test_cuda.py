"""Two ranks on one GPU, which talk by gloo: the arithmetic of parts on CUDA. Several GPUs and NCCL are not shown."""

import pytest
import torch

from graphjoule.parallel import load_part, write_partition

from .tasks import ring_task, small_recipe
from .test_equality import MODELS, epochs_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def cuda_epochs(group, folder, recipe, seeds):
    task = load_part(folder, group.rank, group).to("cuda")
    return [tensor.cpu() for tensor in epochs_of(task, recipe, seeds)]


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
@pytest.mark.parametrize("model", MODELS)
def test_two_ranks_on_a_gpu_train_as_one_process_does(world, tmp_path, model, seeds):
    task, recipe = ring_task(sparse=model == "gcn"), small_recipe(model, **MODELS[model])
    write_partition(task, 2, tmp_path, "blocks")
    curve, _, gradient = epochs_of(task, recipe, seeds)
    for ours, _, ours_gradient in world.run(cuda_epochs, 2, str(tmp_path), recipe, seeds):
        torch.testing.assert_close(ours[..., :2], curve[..., :2], rtol=1e-4, atol=1e-6)
        assert torch.linalg.vector_norm(ours_gradient - gradient) <= 1e-5 * torch.linalg.vector_norm(gradient)
