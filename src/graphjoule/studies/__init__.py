"""The paper's tables and figures, each as trainings, records of them, and what is drawn from the records."""

from graphjoule.studies.catalogue import STUDIES, find_study
from graphjoule.studies.collection import Collection, read_collection
from graphjoule.studies.ledger import LedgerRow, make_ledger
from graphjoule.studies.ledger_text import ledger_text
from graphjoule.studies.plan import Plan, Tasks, plan_study
from graphjoule.studies.study import Cell, Local, Study, Variant
from graphjoule.studies.worker import StudyProgress, work

__all__ = [
    "STUDIES",
    "Cell",
    "Collection",
    "LedgerRow",
    "Local",
    "Plan",
    "Study",
    "StudyProgress",
    "Tasks",
    "Variant",
    "find_study",
    "ledger_text",
    "make_ledger",
    "plan_study",
    "read_collection",
    "work",
]
