"""The callback and a constraint in trainings by Lightning itself."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from graphjoule import EnergyConstraint
from graphjoule.errors import GraphjouleError
from graphjoule.nn import GCN
from graphjoule.trace import LayerCollapse, Trace
from graphjoule.trace.lightning import LightningTrace
from tests.graphs import normal, path3

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning"),  # Lightning's own
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]


@pytest.fixture(scope="module")
def lightning():
    """Lightning takes seconds to import."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import pytorch_lightning
    return pytorch_lightning


def batches(count: int = 4):
    return [(normal(3, 4, seed=k, dtype=torch.float32), path3().index, torch.tensor([0, 1, 0])) for k in range(count)]


@pytest.fixture
def make(lightning):
    """What a user writes."""

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = GCN(4, 4, 2, num_layers=3, dropout=0.0)
            self.constraint = EnergyConstraint(self.net, layers=["convs.*"], c_min=0.9)
            self.logged, self.num_updates = [], 0

        def log_dict(self, numbers):
            self.logged.append(numbers)
            super().log_dict(numbers)

        def training_step(self, batch, batch_idx):
            x, edge_index, y = batch
            return F.cross_entropy(self.net(x, edge_index).float(), y) + self.constraint()

        def validation_step(self, batch, batch_idx):
            self.net(*batch[:2])

        def optimizer_step(self, *args, **kwargs):
            super().optimizer_step(*args, **kwargs)
            self.constraint.update()
            self.num_updates += 1

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    return Module


@pytest.fixture
def fit(lightning, tmp_path):
    def fit(module, *callbacks, epochs=1, resumed=None, **options):
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            callbacks=list(callbacks),
            **quiet,
            **options,
        )
        data = DataLoader(batches(), batch_size=None)
        trainer.fit(module, data, data, ckpt_path=resumed, weights_only=True)
        return trainer

    return fit


@pytest.mark.parametrize("name", ["", "net"])
def test_energies_are_logged_and_multipliers_are_in_the_checkpoint(make, fit, name):
    module = make()
    trainer = fit(module, LightningTrace(name, every=2))
    assert len(module.logged) == 2
    prefix = "energy/" if name else "energy/net."
    assert {f"{prefix}convs.{k}" for k in range(2)} <= set(trainer.logged_metrics)
    assert module.logged[0] != module.logged[1]
    other = make()
    with torch.no_grad(), Trace(other.net) as trace:
        other.net(*batches()[0][:2])
    first = {f"{prefix}{row.name}": row.energy for row in trace.select("convs.0", "convs.1").layers}
    assert {key: module.logged[0][key] for key in first} == pytest.approx(first, rel=1e-5)
    state = module.state_dict()
    assert state["constraint.multipliers"].shape == (2, 2)  # of the two layers before the class scores
    other.load_state_dict(state)
    assert other.constraint.multipliers.equal(module.constraint.multipliers)


def test_a_resumed_training_goes_on_with_its_multipliers(make, fit, tmp_path):
    whole, first, second = make(), make(), make()
    fit(whole, LightningTrace("net"), epochs=2)
    fit(first, LightningTrace("net")).save_checkpoint(tmp_path / "a.ckpt", weights_only=False)
    saved = first.constraint.multipliers.clone()
    loaded = make.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    assert loaded.constraint.multipliers.equal(saved)
    fit(second, LightningTrace("net"), epochs=2, resumed=tmp_path / "a.ckpt")
    assert not second.constraint.multipliers.equal(saved)
    assert second.constraint.multipliers.equal(whole.constraint.multipliers)
    for found, expected in zip(second.parameters(), whole.parameters(), strict=True):
        assert found.equal(expected)


def test_multipliers_move_once_for_accumulated_batches(make, fit):
    module = make()
    fit(module, accumulate_grad_batches=2)
    assert module.num_updates == 2


def test_half_precision_averaged_weights_and_two_traces(make, fit, lightning):
    module = make()
    callbacks = [LightningTrace("net"), LightningTrace(log=("norm",)), lightning.callbacks.WeightAveraging()]
    fit(module, *callbacks, precision="bf16-mixed")
    assert {"energy/convs.0", "norm/net.convs.0"} <= {key for numbers in module.logged for key in numbers}
    assert module.constraint.multipliers.dtype == torch.float64


def test_the_hooks_are_gone_after_an_error(make, fit):
    module = make()
    hooks = sum(len(m._forward_hooks) for m in module.modules())
    with torch.no_grad():
        for parameter in module.net.parameters():
            parameter.zero_()
    with pytest.raises(LayerCollapse):
        fit(module, LightningTrace("net", on_collapse="stop"))
    assert sum(len(m._forward_hooks) for m in module.modules()) == hooks


def test_each_graph_of_a_batch_is_logged_by_its_name():
    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(4, 4)

        def forward(self, x, edge_index, batch):
            return self.first(x)

    model, logged = Encoder(), []
    model.log_dict = logged.append
    callback = LightningTrace(by_graph=True)
    callback.on_train_batch_start(None, model, None, 0)
    edge_index = torch.cat([path3().index, path3().index + 3], dim=1)
    model(normal(6, 4, dtype=torch.float32), edge_index, torch.tensor([0, 0, 0, 1, 1, 1]))
    callback.on_train_batch_end(None, model, None, None, 0)
    assert sorted(logged[0]) == ["energy/first/graph 0", "energy/first/graph 1"]


def test_what_is_not_a_hook_is_not_there():
    callback = LightningTrace()
    assert callback.state_dict() == {}
    callback.load_state_dict({})
    with pytest.raises(AttributeError, match="no attribute 'forward'"):
        callback.forward  # noqa: B018
    with pytest.raises(GraphjouleError, match="every is 0"):
        LightningTrace(every=0)
