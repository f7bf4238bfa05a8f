"""Eigenvalues of ``L = I - P``: those the theory needs, each with how well it is known, and energy by frequency."""

from graphjoule.measures.spectrum.bands import BandEnergy, energy_by_band
from graphjoule.measures.spectrum.estimate import Estimate
from graphjoule.measures.spectrum.solve import Spectrum, spectrum

__all__ = ["BandEnergy", "Estimate", "Spectrum", "energy_by_band", "spectrum"]
