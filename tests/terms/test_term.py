import torch

from graphjoule.nn import EGNN, GCN
from graphjoule.terms import ModelPenalty, Term


class Counting(Term):
    """Adds nothing, and counts the epochs of its state."""

    def initial(self):
        return torch.zeros(1)

    def value(self, state):
        return state.sum() * 0, torch.ones(1)

    def updated(self, state, seen, epoch):
        return state + seen


class Plain(Term):
    def value(self, state):
        return torch.tensor(2.0), state


def test_a_term_without_a_state_implements_value_alone():
    term = Plain()
    state = term.initial()
    assert state.numel() == 0
    value, seen = term.value(state)
    assert value == 2
    assert term.updated(state, seen, torch.tensor(1)) is state
    term.forget()


def test_a_state_is_what_updated_makes_of_it():
    term = Counting()
    state = term.initial()
    for epoch in (1, 2, 3):
        _, seen = term.value(state)
        state = term.updated(state, seen, torch.tensor(epoch))
    assert state.tolist() == [3]


def test_the_penalty_of_a_model_is_its_own():
    model = EGNN(3, 4, 2, num_layers=2, gamma=0.5, weight_init="glorot")
    assert ModelPenalty(model).value(torch.zeros(0))[0] == model.penalty() > 0
    assert ModelPenalty(GCN(3, 4, 2, num_layers=2)).value(torch.zeros(0))[0] == 0
