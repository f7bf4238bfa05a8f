"""A pulse goes as far as the page says: the wave a hop a layer, EGNN a few hops at any depth."""

import torch

from reproduction.pages import pulse


def test_a_wave_fills_the_grid_and_a_diffusion_does_not():
    last = pulse._LAYERS[-1]
    reached = {
        name: int((x[last].abs() > 1e-3).sum()) for name, x in (("wave", pulse._wave()), ("egnn", pulse._diffusion()))
    }
    assert reached["wave"] > 3 * reached["egnn"] > 100


def test_on_a_ring_every_layer_of_a_wave_is_a_hop_and_egnn_stops():
    fronts, seen = pulse.on_a_ring(num_layers=600, last=200, pixels=100)
    assert fronts["wave"][-1] == 600
    assert fronts["wave"][399] - fronts["wave"][199] == 200
    assert fronts["EGNN"][-1] == fronts["EGNN"][99] < 20
    brightest = seen.argmax(dim=1)
    assert torch.equal(brightest, torch.arange(100))  # the pulse is where the front is, all the way
    assert seen.diagonal().min() > 0.4
    assert abs(seen[50, 60]) < 1e-9  # and nothing before it but rounding
