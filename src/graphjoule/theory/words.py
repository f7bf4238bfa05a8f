"""The audit in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from graphjoule.measures.spectrum import Spectrum
from graphjoule.theory.interval import Enclosure, number
from graphjoule.theory.layers import LayerRange
from graphjoule.theory.lemmas import Lemma
from graphjoule.theory.setting import Setting


def describe(
    spectrum: Spectrum,
    setting: Setting,
    layers: Sequence[LayerRange],
    lemmas: Sequence[Lemma],
    limit: tuple[Enclosure, Enclosure] | None,
) -> list[str]:
    """What the numbers of an audit mean, one sentence or two each."""
    if limit is None:
        return ["The graph has no edges: every feature has energy 0, and every limit reads 0 <= 0."]
    return [
        *_about_kernel(spectrum),
        _about_propagation(spectrum),
        *(f"Lemma {lemma.number} {lemma.verdict}: {lemma.why}." for lemma in lemmas if lemma.verdict != "holds here"),
        _about_lower(setting, layers),
        _about_upper(setting, layers),
        _about_depth(setting, limit),
        *_about_certainty(spectrum),
        "Left out, as in the paper's proofs: activation, dropout, batch norm, and what training does to the weights.",
    ]


def _about_kernel(spectrum: Spectrum) -> list[str]:
    if spectrum.num_components == 1:
        return []
    return [
        f"The graph has {spectrum.num_components:,} connected components. Energy compares nodes within a component "
        "only: it says nothing about differences between them."
    ]


def _about_propagation(spectrum: Spectrum) -> str:
    assert spectrum.min_factor is not None
    assert spectrum.max_factor is not None
    least, most = (number(Enclosure(factor.low, factor.high)) for factor in (spectrum.min_factor, spectrum.max_factor))
    twins = ""
    if spectrum.twins is not None:
        first, second = spectrum.twins
        twins = f" Nodes {first} and {second} are twins: after one propagation their features are equal."
    return f"One plain propagation leaves between {least} and {most} of the energy, depending on the features.{twins}"


def _about_lower(setting: Setting, layers: Sequence[LayerRange]) -> str:
    broken = [layer.layer for layer in layers if layer.step_min.is_at_least(setting.c_min) == "no"]
    open_ = [layer.layer for layer in layers if layer.step_min.is_at_least(setting.c_min) == "unknown"]
    limit = f"The lower limit E(X_k) >= {setting.c_min:g} E(X_{{k-1}})"
    if not broken and not open_:
        return f"{limit} holds at every layer of the initialised network, whatever the features."
    if not broken:
        return f"{limit} could be neither proved nor refuted at {_layers(open_)}; it holds at all others."
    worst = min(layers, key=lambda layer: layer.step_min.high)
    rest = f"; at {_layers(open_)} it is open" if open_ else ""
    return (
        f"{limit} is broken by some features at {_layers(broken)}{rest}. At worst, layer {worst.layer} leaves "
        f"{number(worst.step_min)} of the energy before it."
    )


def _about_upper(setting: Setting, layers: Sequence[LayerRange]) -> str:
    broken = [layer.layer for layer in layers if layer.total_max.is_at_most(setting.c_max) == "no"]
    open_ = [layer.layer for layer in layers if layer.total_max.is_at_most(setting.c_max) == "unknown"]
    limit = f"The upper limit E(X_k) <= {setting.c_max:g} E(X_0)"
    if not broken and not open_:
        return f"{limit} holds at every layer of the initialised network, whatever the features."
    if not broken:
        return f"{limit} could be neither proved nor refuted at {_layers(open_)}; it holds at all others."
    rest = f"; at {_layers(open_)} it is open" if open_ else ""
    worst = max(layers, key=lambda layer: layer.total_max.low)
    return (
        f"{limit} is broken by some features at {_layers(broken)}{rest}. At worst, layer {worst.layer} has "
        f"{number(worst.total_max)} E(X_0)."
    )


def _about_depth(setting: Setting, limit: tuple[Enclosure, Enclosure]) -> str:
    least, most = (number(end) for end in limit)
    if setting.beta == 0 and setting.c_min < 1:
        return "With endless depth all energy is lost: beta = 0, so nothing brings X_0 in again."
    return f"With endless depth between {least} and {most} of E(X_0) is left, whatever c_max is."


def _about_certainty(spectrum: Spectrum) -> list[str]:
    if spectrum.is_complete:
        return []
    told = "proved" if not spectrum.risk else f"certain up to a risk of {spectrum.risk:g} over the random start"
    low, high = spectrum.interval or (0.0, 2.0)
    return [
        f"Not all eigenvalues were computed. That those above 0 lie between {low:.6g} and {high:.6g} is {told}; "
        "energies per layer are bounds over that interval, and 'a to b' is where the exact number lies."
    ]


def _layers(numbers: Sequence[int]) -> str:
    """Layer numbers, runs of them shortened.

    >>> _layers([1]), _layers([1, 2, 3, 7])
    ('layer 1', 'layers 1 to 3, 7')
    """
    runs: list[list[int]] = []
    for value in numbers:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
    return f"layer{'s' if len(numbers) > 1 else ''} {text}"
