"""What a training was worth beside simpler models: their scores, paired intervals, and verdicts in words.

`graphjoule.tuning.worth` makes the predictions; here they are judged. Validation chooses who is compared with whom, and
the test nodes are read once, for all contenders together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from torch import Tensor

from graphjoule.errors import GraphjouleError
from graphjoule.files import read_bytes, write_json
from graphjoule.tasks.metrics import Metric
from graphjoule.tasks.objective import LOSS, OBJECTIVES, Objective
from graphjoule.training.evaluation import Predicted

SHOWN = {
    "classification": ("accuracy", "macro_f1"),
    "binary": ("roc_auc", "average_precision"),
    "multilabel": ("micro_f1", "macro_f1"),
    "regression": ("r2", "mae"),
    "ordinal": ("mae", "accuracy"),
}
"""The metrics of a comparison by objective; the first decides, unless another one selected the epochs."""
MARGIN = 0.02
"""A gain that is smaller does not count as one: of a share or an R2 as it is, else times the score of a constant."""
TOO_WIDE = 25
"""From so many margins on, half of a share or of an R2, an advice that may be worse by as much advises nothing."""
REPLICATES = 1000
_LEAST_REPLICATES = 200  # of a metric that must sort all nodes each time
_MOST_SORTED = 200_000_000  # numbers that are sorted for all replicates of a metric
_CHUNK = 4_000_000  # numbers of the resampled weights at a time

Question = Literal["graph", "features", "depth"]
Answer = Literal["helps", "does not help", "undecided"]


@dataclass(frozen=True, eq=False)
class Contender:
    """One model of a comparison and what it predicts.

    Attributes:
        name: as people read it.
        uses_graph: whether it knows the edges.
        uses_features: whether it knows the features.
        num_layers: of a network; None for anything else.
        val: predictions of the validation nodes, one per seed.
        judged: the same of the nodes that judge.
        seconds: how long it took, with all seeds.
    """

    name: str
    uses_graph: bool
    uses_features: bool
    num_layers: int | None = None
    val: list[Predicted] = field(default_factory=list)
    judged: list[Predicted] = field(default_factory=list)
    seconds: float = 0.0


class Row(BaseModel):
    """A contender's scores, each the mean over seeds; see `Contender`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    uses_graph: bool
    uses_features: bool
    num_layers: int | None
    val: dict[str, float | None]
    test: dict[str, float | None]
    seconds: float


class Gain(BaseModel):
    """How much one contender is better than another by one metric: positive is better, whatever the metric's direction.

    Attributes:
        of: the contender.
        over: the other one.
        metric: its name.
        value: the mean over seeds.
        low: lower end of the interval that holds 95 % of the resampled gains.
        high: its upper end.
        margin: a gain that is smaller does not count, see `MARGIN`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    of: str
    over: str
    metric: str
    value: float
    low: float
    high: float
    margin: float

    @property
    def answer(self) -> Answer:
        """Whether it helps: for sure, surely not by more than the margin, or undecided."""
        if self.low > 0:
            return "helps"
        return "does not help" if self.high < self.margin else "undecided"


class Comparison(BaseModel):
    """The content of ``comparison.json``.

    Attributes:
        format: version of this list of fields.
        run_ids: the runs that are compared.
        part: the nodes that judge: "test", or "val" on a split without test nodes.
        num_nodes: how many of them, the mean over seeds.
        objective: a key of `graphjoule.tasks.objective.OBJECTIVES`.
        metrics: names of the metrics; the first decides.
        rows: the contenders, the simplest first, the model that was trained last.
        answers: what the graph, the features and depth are worth; a question that nothing was tried for is missing.
        best: name of the contender that is best by validation.
        advice: name of the simplest contender that is not significantly worse than that, by any of the metrics; see
            `advised`.
        doubt: how much worse the advice may be at most, by the metric by which that is most, counted in margins; None
            where it is the best.
        worse_by: names of the metrics by which everything simpler than the best is significantly worse; empty where
            something simpler is not, and in older files.
        notes: which model another metric prefers to the advice, and what was left out or shortened, as sentences.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    run_ids: list[str]
    part: Literal["val", "test"]
    num_nodes: int
    objective: str
    metrics: list[str]
    rows: list[Row]
    answers: dict[Question, Gain]
    best: str
    advice: str
    doubt: Gain | None
    worse_by: list[str] = []
    notes: list[str]

    @model_validator(mode="after")
    def _names_what_there_is(self) -> Self:
        known = [metric.name for metric in OBJECTIVES[self.objective].metrics] if self.objective in OBJECTIVES else []
        if not self.rows or not self.metrics or not set(self.metrics) <= set(known):
            raise ValueError(f"no rows, or {self.metrics} are not metrics of {self.objective!r}")
        if not {*self.worse_by, *([] if self.doubt is None else [self.doubt.metric])} <= set(self.metrics):
            raise ValueError("`doubt` or `worse_by` names another metric than `metrics`")
        return self

    def sentences(self) -> list[str]:
        """What the graph, the features and depth are worth, and what to use."""
        metric = self._metric(self.metrics[0])
        said = [
            self._useless_depth(gain, metric)
            if question == "depth" and self._has_useless_graph and gain.answer != "does not help"
            else _answered(question, gain, metric, self._nodes)
            for question, gain in self.answers.items()
        ]
        most = "" if self.doubt is None else _amount(self._metric(self.doubt.metric), self.doubt.high)
        if self.advised is None:
            said.append(
                f"Nothing can be advised: {self.best} is the best by validation, but {self._nodes} cannot tell it from "
                f"{self.advice}, which may be worse by up to {most}; more labelled nodes could tell."
            )
        elif self.advice == self.best:
            by = " or ".join(self._metric(name).label for name in self.worse_by if self.worse_by != self.metrics[:1])
            end = "it is the best by validation, and everything simpler here is significantly worse"
            end += f" by {by}" if by else ""
            best = f"nothing beats it by {metric.label}"
            said.append(f"Use {self.advice}: {end if self.rows[0].name != self.advice else best}.")
        else:
            end = ""
            if self.doubt is not None and self.doubt.high >= self.doubt.margin:
                end = f"; it may be worse by up to {most}, finer than that {self._nodes} cannot tell"
            said.append(
                f"Use {self.advice}: it is the simplest that is not significantly worse than {self.best}, the best by "
                f"validation{end}."
            )
        return said

    @property
    def advised(self) -> str | None:
        """The advice; None where the nodes that judge are too few for it.

        That is where it is a constant that they cannot tell from the best one, and where it may be worse by `TOO_WIDE`
        margins: a model that does not find the class that is asked for is simple, and must not win by silence.
        """
        is_constant = any(row.name == self.advice and not (row.uses_graph or row.uses_features) for row in self.rows)
        most = 1 if is_constant else TOO_WIDE
        return None if self.doubt is not None and self.doubt.high >= most * self.doubt.margin else self.advice

    def _metric(self, name: str) -> Metric:
        return OBJECTIVES[self.objective].metric(name)

    @property
    def _has_useless_graph(self) -> bool:
        return "graph" in self.answers and self.answers["graph"].answer == "does not help"

    def _useless_depth(self, gain: Gain, metric: Metric) -> str:
        """What depth gains among networks on a graph that does not help, beside the best model without that graph."""
        rival = self.answers["graph"].over
        scores = {row.name: getattr(row, self.part).get(metric.name) for row in self.rows}
        mine, theirs, beside = scores.get(gain.of), scores.get(rival), ""
        if mine is not None and theirs is not None:
            better = mine - theirs if metric.is_higher_better else theirs - mine
            beside = f", and {_signed(metric, better, unit=False)} against {rival}, the best without the graph"
        return f"More layers do not make the graph useful: {_change(gain, metric)} ({_ends(gain, metric)}){beside}."

    @property
    def _nodes(self) -> str:
        return f"{self.num_nodes:,} {'test' if self.part == 'test' else 'validation'} nodes"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows of a table: names, and the scores on the nodes that judge, as people read them."""
        metrics = [self._metric(name) for name in self.metrics]
        part = "test" if self.part == "test" else "validation"
        head = ["model", *(f"{part} {metric.label}" for metric in metrics)]
        rows = [
            [row.name, *(metric.text(getattr(row, self.part).get(metric.name)) or "–" for metric in metrics)]
            for row in self.rows
        ]
        return head, rows


def _answered(question: Question, gain: Gain, metric: Metric, nodes: str) -> str:
    """One question's sentence."""
    what = {"graph": "the graph", "features": "the features", "depth": "depth"}[question]
    verb = "help" if question == "features" else "helps"
    rival = {"graph": ", the best without it", "features": ", the best without them", "depth": ""}[question]
    change, ends = f"{_change(gain, metric)}{rival}", _ends(gain, metric)
    if gain.answer == "undecided":
        return f"Whether {what} {verb} is undecided: {change} ({ends}) on {nodes}."
    if gain.answer == "helps":
        verb += " a little" if gain.value < gain.margin else ""
    else:
        verb = "do not help" if question == "features" else "does not help"
    return f"{what.capitalize()} {verb}: {change} ({ends})."


def _change(gain: Gain, metric: Metric) -> str:
    return f"{gain.of} has {_signed(metric, gain.value)} against {gain.over}"


def _ends(gain: Gain, metric: Metric) -> str:
    low, high = (gain.low, gain.high) if metric.is_higher_better else (gain.high, gain.low)
    return f"95 % interval {_signed(metric, low, unit=False)} to {_signed(metric, high, unit=False)}"


def _amount(metric: Metric, gain: float) -> str:
    return f"{100 * gain:.1f} points of {metric.label}" if metric.is_share else f"{gain:.3g} of {metric.name}"


def _signed(metric: Metric, gain: float, *, unit: bool = True) -> str:
    """A gain in the metric's own direction: a lower error is a negative number."""
    if metric.is_share:
        shown = round(100 * gain if metric.is_higher_better else -100 * gain, 1) + 0.0
        return f"{shown:+.1f}{f' points of {metric.label}' if unit else ''}"
    return f"{gain if metric.is_higher_better else -gain:+.3g}{f' {metric.label}' if unit else ''}"


# Judging.


def compare(
    objective: Objective,
    contenders: Sequence[Contender],
    *,
    select_on: str,
    run_ids: Sequence[str],
    part: Literal["val", "test"],
    notes: Sequence[str] = (),
    unanswered: Collection[Question] = (),
) -> Comparison:
    """Score all contenders and say what follows.

    Intervals are of a paired bootstrap over nodes and, where there are several, over seeds (Owen 2007): every
    replicate draws the same nodes and seeds for all contenders. They reach at least ``3 / n`` to both sides, the rule
    of three for what n nodes do not show.

    Args:
        objective: what was asked.
        contenders: the simplest first, the model that was trained last; all with the same nodes.
        select_on: what chose the epochs; a metric decides here too.
        run_ids: of the runs that are compared.
        part: what the nodes that judge are called.
        notes: what was left out or shortened, as sentences.
        unanswered: questions that these contenders cannot answer.
    """
    names = dict.fromkeys([*([] if select_on == LOSS else [select_on]), *SHOWN[objective.name]])
    metrics = [objective.metric(name) for name in names]
    values = {
        which: {
            c.name: {metric.name: _mean_score(objective, metric, getattr(c, which)) for metric in metrics}
            for c in contenders
        }
        for which in ("val", "judged")
    }
    first, places = metrics[0], {c.name: place for place, c in enumerate(contenders)}

    def best(kept: Callable[[Contender], bool], metric: Metric = first) -> str | None:
        """Of those kept the best by validation; of equal ones the simplest."""
        scored = [(values["val"][c.name][metric.name], c.name) for c in contenders if kept(c)]
        known = [(s if metric.is_higher_better else -s, -places[name], name) for s, name in scored if s is not None]
        return max(known)[2] if known else None

    num_nodes = max(round(sum(len(each.target) for each in contenders[0].judged) / len(contenders[0].judged)), 1)
    resampled = {metric.name: _resampled(objective, metric, contenders) for metric in metrics}

    def gain(of: str, over: str, metric: Metric) -> Gain | None:
        """None where the nodes that judge do not define the metric."""
        sign = 1.0 if metric.is_higher_better else -1.0
        mine, theirs, constant = (values["judged"][name][metric.name] for name in (of, over, contenders[0].name))
        drawn = sign * (resampled[metric.name][of] - resampled[metric.name][over])
        drawn = drawn[~drawn.isnan()]
        if mine is None or theirs is None or not len(drawn):
            return None
        low, high = drawn.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
        scale = 1.0 if metric.is_share or metric.name == "r2" or constant is None else abs(constant)
        # Nodes that are drawn again are all alike where none differs; what 3 in n nodes do, n nodes may not show.
        value, unseen = sign * (mine - theirs), 3 * scale / num_nodes
        low, high = min(low, value - unseen), max(high, value + unseen)
        if metric.is_share:
            low, high = max(low, -1.0), min(high, 1.0)
        more = {"low": low, "high": high, "margin": MARGIN * scale}
        return Gain(of=of, over=over, metric=metric.name, value=value, **more)

    winner: str = best(lambda c: True) or contenders[-1].name

    def gains_over(name: str) -> list[Gain]:
        """How much better the winner is than a contender, by every metric that is defined."""
        return [found for metric in metrics if (found := gain(winner, name, metric)) is not None]

    # By which metrics everything simpler than the winner is significantly worse, each named once; the first suffices.
    advice, worse_by = winner, dict[str, None]()
    for contender in contenders:
        if contender.name == winner:
            break
        shown = [each.metric for each in gains_over(contender.name) if each.low > 0]
        if not shown:
            advice, worse_by = contender.name, {}
            break
        worse_by[shown[0]] = None

    answers: dict[Question, Gain] = {}
    questions: dict[Question, tuple[str | None, str | None]] = {
        "graph": (best(lambda c: c.uses_graph), best(lambda c: not c.uses_graph)),
        "features": (best(lambda c: c.uses_features), best(lambda c: not c.uses_features)),
        "depth": (
            best(lambda c: c.uses_graph and (c.num_layers or 0) > 2),
            best(lambda c: c.uses_graph and c.num_layers in (1, 2)),
        ),
    }
    for question, (with_it, without) in questions.items():
        if question in unanswered:
            continue
        if with_it is not None and without is not None and (found := gain(with_it, without, first)) is not None:
            answers[question] = found
    otherwise = []  # the metric that decides may see nothing, as accuracy where one class is rare
    for metric in metrics[1:]:
        other = best(lambda c: True, metric)
        found = None if other is None or other == advice else gain(other, advice, metric)
        if found is not None and found.low > 0:
            change, ends = _change(found, metric), _ends(found, metric)
            otherwise.append(f"By {metric.label} another model is better: {change} ({ends}).")
    return Comparison(
        run_ids=list(run_ids),
        part=part,
        num_nodes=num_nodes,
        objective=objective.name,
        metrics=list(names),
        rows=[
            Row(
                name=c.name,
                uses_graph=c.uses_graph,
                uses_features=c.uses_features,
                num_layers=c.num_layers,
                val=values["val"][c.name],
                test=values["judged"][c.name] if part == "test" else {},
                seconds=round(c.seconds, 3),
            )
            for c in contenders
        ],
        answers=answers,
        best=winner,
        advice=advice,
        doubt=None if advice == winner else max(gains_over(advice), key=_in_margins, default=None),
        worse_by=[metric.name for metric in metrics if metric.name in worse_by],
        notes=[*otherwise, *notes],
    )


def _in_margins(gain: Gain) -> float:
    """The most that a gain may be, so that metrics of different units compare; 0 where a constant makes no error."""
    return gain.high / gain.margin if gain.margin else 0.0


def _pairs(objective: Objective, said: Predicted) -> tuple[Tensor, Tensor]:
    """Predictions and targets as metrics take them, numbers less what they have in common."""
    target = said.target.double()
    middle = torch.nan_to_num(target.view(len(target), -1).nanmean(dim=0))
    return objective.scored(said.prediction.double(), said.target, lambda values: values - middle)


def _mean_score(objective: Objective, metric: Metric, parts: Sequence[Predicted]) -> float | None:
    found = torch.stack([metric.value(*_pairs(objective, part)) for part in parts])
    mean = float(found.mean())
    return None if mean != mean else mean


def _resampled(objective: Objective, metric: Metric, contenders: Sequence[Contender]) -> dict[str, Tensor]:
    """Of every contender the mean over seeds of its score in every replicate; the draws are the same for all."""
    index = [part.index.cpu() for part in contenders[0].judged if part.index is not None]
    nodes, places = torch.unique(torch.cat(index), return_inverse=True)
    at = places.split([len(each) for each in index])
    number, replicates = len(nodes), REPLICATES
    if metric.finish is None:  # every replicate sorts its nodes
        each = number * objective.out_channels * len(at) * len(contenders)
        replicates = max(_LEAST_REPLICATES, min(REPLICATES, _MOST_SORTED // max(each, 1)))
    scorers = {
        c.name: [_scorer(objective, metric, said, place, number) for said, place in zip(c.judged, at, strict=True)]
        for c in contenders
    }
    generator = torch.Generator().manual_seed(0)
    found: dict[str, list[Tensor]] = {c.name: [] for c in contenders}
    step = max(1, _CHUNK // max(number * (objective.out_channels if metric.finish is None else 1), 1))
    for start in range(0, replicates, step):
        rows = min(step, replicates - start)
        drawn = torch.randint(number, (rows, number), generator=generator)
        seeds = torch.randint(len(at), (rows, len(at)), generator=generator)
        weight = torch.zeros(rows, number, dtype=torch.float64)
        weight.scatter_add_(1, drawn, torch.ones(1, dtype=torch.float64).expand_as(drawn))
        for name, of_seeds in scorers.items():
            scores = torch.stack([score(drawn, weight) for score in of_seeds], dim=1)
            found[name].append(scores.gather(1, seeds).mean(dim=1))
    return {name: torch.cat(each) for name, each in found.items()}


def _scorer(
    objective: Objective, metric: Metric, said: Predicted, at: Tensor, number: int
) -> Callable[[Tensor, Tensor], Tensor]:
    """A function of the nodes of every replicate, and how often each is drawn, that gives the replicates' scores."""
    p, t = (each.cpu() for each in _pairs(objective, said))
    if metric.finish is not None:
        finish = metric.finish
        sums = torch.vmap(metric.of)(p[:, None], t[:, None])
        return lambda drawn, weight: finish(weight[:, at] @ sums)
    # A node that is not of this seed has no target, and so counts nowhere.
    all_p = torch.zeros(number, p.size(1), dtype=p.dtype)
    all_t = objective.scored(all_p, objective.unknown(number))[1].to(t.dtype)
    all_p[at], all_t[at] = p, t
    return lambda drawn, weight: torch.vmap(metric.value)(all_p[drawn], all_t[drawn])


# The file.


def write_comparison(path: str | os.PathLike[str], comparison: Comparison) -> None:
    """Write a comparison so that `read_comparison` gives it back."""
    write_json(path, comparison.model_dump(mode="json"))


def read_comparison(path: str | os.PathLike[str]) -> Comparison:
    """The comparison of a file; a damaged one is refused with a sentence."""
    try:
        return Comparison.model_validate_json(read_bytes(path))
    except (OSError, ValidationError, ValueError) as error:
        raise GraphjouleError(
            f"{path} is damaged or not a comparison; delete it, and the same call makes it again."
        ) from error
