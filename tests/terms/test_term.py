import pytest
import torch

from graphjoule.nn import EGNN, GCN
from graphjoule.terms import ModelPenalty, Term


class Constant(Term):
    def value(self, state):
        return torch.tensor(2.0), state


def test_a_term_that_has_no_state_implements_its_value_alone():
    term = Constant()
    state = term.initial()
    value, seen = term.value(state)
    assert (float(value), state.numel()) == (2.0, 0)
    assert term.updated(state, seen, torch.tensor(1)) is state
    term.forget()


def test_a_term_without_a_value_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        Term()


def test_a_models_own_penalty_is_a_term_and_zero_where_it_has_none():
    model = EGNN(5, 4, 2, num_layers=3, gamma=0.7)
    with torch.no_grad():
        model.convs[1].weight.add_(1)
    value, _ = ModelPenalty(model).value(torch.zeros(0))
    assert value.equal(model.penalty())
    assert value > 0
    assert ModelPenalty(GCN(5, 4, 2, num_layers=3)).value(torch.zeros(0))[0] == 0
