"""The settings of a training on clusters of nodes: ``clusters`` is how many, ``clusters.per_step`` and so on how."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from graphjoule.errors import GraphjouleError
from graphjoule.parallel.partition import CutMethod

__all__ = ["CLUSTER_NAMES", "ClusterSettings", "cluster_setting", "take_clusters"]


class ClusterSettings(BaseModel):
    """How nodes are cut into clusters and how an epoch goes over them.

    Attributes:
        parts: number of clusters.
        per_step: clusters that are joined for one step; the last step of an epoch may have fewer.
        accumulate: groups whose gradients one Adam step takes the mean of; several processes share them.
        method: how the nodes are cut, see `graphjoule.parallel.partition.cut_nodes`.
        validate_every: epochs between two validations, each a pass over the whole graph; the last epoch is always
            validated.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    parts: int = Field(ge=1)
    per_step: int = Field(default=1, ge=1)
    accumulate: int = Field(default=1, ge=1)
    method: CutMethod = "metis"
    validate_every: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _has_so_many(self) -> "ClusterSettings":
        if self.per_step > self.parts:
            raise GraphjouleError(
                f"clusters.per_step is {self.per_step}, but there are {self.parts} clusters: it must be from 1 to "
                f"{self.parts}."
            )
        return self

    def settings(self) -> dict[str, Any]:
        """As `Recipe.settings` spells them.

        >>> list(ClusterSettings(parts=50, per_step=5).settings().items())[:2]
        [('clusters', 50), ('clusters.per_step', 5)]
        """
        return {cluster_setting(name): value for name, value in self.model_dump().items()}


def cluster_setting(name: str) -> str:
    """How `Recipe.settings` spells a field of `ClusterSettings`.

    >>> cluster_setting("parts"), cluster_setting("per_step")
    ('clusters', 'clusters.per_step')
    """
    return "clusters" if name == "parts" else f"clusters.{name}"


CLUSTER_NAMES = tuple(cluster_setting(name) for name in ClusterSettings.model_fields)
"""The keys of `ClusterSettings.settings`."""


def take_clusters(settled: dict[str, tuple[Any, Any]]) -> dict[str, Any] | None:
    """Take the clusters' settings out of those of a recipe, with what is not set by its default; None without clusters.

    Args:
        settled: value and source by name; without clusters their other settings must not be there.
    """
    found = {name: settled.pop(name) for name in CLUSTER_NAMES if name in settled}
    if found.get("clusters", (None,))[0] is None:
        for name in found:
            if name != "clusters":
                raise GraphjouleError(f"{name} is set, but there are no clusters: say how many with --clusters.")
        return None
    fields = ClusterSettings.model_fields.items()
    return {name: found.get(cluster_setting(name), (field.default, "default")) for name, field in fields}
