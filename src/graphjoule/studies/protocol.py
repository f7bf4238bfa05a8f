"""The protocol of a study: the rules that are written before its runs, and how every record cites them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from graphjoule.files import json_text

Rule = Annotated[dict[str, str], BeforeValidator(lambda rule: {"default": rule} if isinstance(rule, str) else rule)]


class Table(BaseModel):
    """A table of a study file: a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Protocol(Table):
    """What is decided before the first run; in the file ``[protocol]``.

    `select_on`, `margin` and `level` are applied by the program, the others are sentences for people. All are hashed.

    Attributes:
        select_on: the validation measure that chooses the epoch of every model at every depth: one, or a table of one
            for each dataset and "default". A dataset that is not named has what its recipes say.
        epochs: how long runs train.
        splits: how nodes are divided, and by which seed.
        search: which settings were searched, how, and with how many tries for each rival.
        failed: how runs without a result count.
        margin: how far a mean may be from the reference's and still be equal, in the unit of the ledger; None is one
            point for shares, and for other metrics no two means are called equal.
        level: of the tests.

    >>> Protocol(select_on="loss").rule_of("cora"), Protocol().rule_of("cora")
    ('loss', None)
    """

    select_on: Rule = {}
    epochs: str = ""
    splits: str = ""
    search: str = ""
    failed: str = ""
    margin: float | None = Field(default=None, gt=0)
    level: float = Field(default=0.05, gt=0, lt=1)

    def rule_of(self, dataset: str) -> str | None:
        """What selects the epoch on a dataset; None where the recipes say."""
        return self.select_on.get(dataset, self.select_on.get("default"))

    @property
    def sha256(self) -> str:
        """A hash of all of it."""
        return hashlib.sha256(json_text(self.model_dump()).encode()).hexdigest()

    def text(self, study: str) -> str:
        """The content of a file that holds it for readers of the records, `graphjoule verify` among them."""
        return json_text({"study": study, "sha256": self.sha256, "protocol": self.model_dump()}, indent=2) + "\n"

    def cited(self, study: str, overrides: Mapping[str, Any]) -> str:
        """How a record names it; settings of the user's own are named too, for they may break it.

        Args:
            study: the study's name.
            overrides: settings that win over those of the study.

        >>> Protocol().cited("mine", {"epochs": 5})
        'mine:59f9899068b5fd2e, but with epochs=5'
        """
        changed = ", ".join(f"{key}={value}" for key, value in sorted(overrides.items()))
        return f"{study}:{self.sha256[:16]}" + (f", but with {changed}" if changed else "")
