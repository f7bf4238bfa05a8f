"""EGNN as a scikit-learn classifier."""

from graphjoule.classifier.estimator import EGNNClassifier

__all__ = ["EGNNClassifier"]
