"""The paper's limits and lemmas as numbers for a given graph and setting, with the corrected bounds beside them."""

from graphjoule.theory.audit import Audit, audit
from graphjoule.theory.certificate import Certificate, CertifiedLayer, CertifiedLimit, certify
from graphjoule.theory.layers import Enclosure, LayerRange, Setting, depth_limit, layer_ranges
from graphjoule.theory.lemmas import Lemma, lemmas, srelu_energy_limit
from graphjoule.theory.reach import LAWS, StepLaw
from graphjoule.theory.wave import WaveEnergies, wave_energies
from graphjoule.theory.weights import WeightLayer, WeightReport, weight_report

__all__ = [
    "LAWS",
    "Audit",
    "Certificate",
    "CertifiedLayer",
    "CertifiedLimit",
    "Enclosure",
    "LayerRange",
    "Lemma",
    "Setting",
    "StepLaw",
    "WaveEnergies",
    "WeightLayer",
    "WeightReport",
    "audit",
    "certify",
    "depth_limit",
    "layer_ranges",
    "lemmas",
    "srelu_energy_limit",
    "wave_energies",
    "weight_report",
]
