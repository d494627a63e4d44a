"""Made by tools/stubs.py from __init__.py: what type checkers and editors see."""

from outfield.guard.annotations import BoxPlan as BoxPlan
from outfield.guard.annotations import are_annotated as are_annotated
from outfield.guard.annotations import overlaps as overlaps
from outfield.guard.boxes import Boxes as Boxes
from outfield.guard.build import ImagePlan as ImagePlan
from outfield.guard.decision import Decision as Decision
from outfield.guard.decision import PER_CLASS as PER_CLASS
from outfield.guard.decision import true_classes as true_classes
from outfield.guard.description import describe_guard as describe_guard
from outfield.guard.explanation import ColumnWhy as ColumnWhy
from outfield.guard.explanation import ExplainedVerdict as ExplainedVerdict
from outfield.guard.explanation import RowWhy as RowWhy
from outfield.guard.guard import Guard as Guard
from outfield.guard.guard import RowGuard as RowGuard
from outfield.guard.guard import open_guard as open_guard
from outfield.guard.readers import ImageReader as ImageReader
from outfield.guard.readers import Reader as Reader
from outfield.guard.readers import TableReader as TableReader
from outfield.guard.review import ReviewFolder as ReviewFolder
from outfield.guard.review import classes_of as classes_of
from outfield.guard.texts import Texts as Texts
from outfield.guard.verdict import BoxVerdict as BoxVerdict
from outfield.guard.verdict import COLUMNS as COLUMNS
from outfield.guard.verdict import ImageVerdict as ImageVerdict
from outfield.guard.verdict import VERDICT_ENDINGS as VERDICT_ENDINGS
from outfield.guard.verdict import Verdict as Verdict
from outfield.guard.verdict import Verdicts as Verdicts
from outfield.guard.verdict import as_json as as_json
from outfield.guard.verdict import as_json_lines as as_json_lines
from outfield.guard.verdict import write_verdicts as write_verdicts

__all__ = [
    "BoxPlan",
    "BoxVerdict",
    "Boxes",
    "COLUMNS",
    "ColumnWhy",
    "Decision",
    "ExplainedVerdict",
    "Guard",
    "ImagePlan",
    "ImageReader",
    "ImageVerdict",
    "PER_CLASS",
    "Reader",
    "ReviewFolder",
    "RowGuard",
    "RowWhy",
    "TableReader",
    "Texts",
    "VERDICT_ENDINGS",
    "Verdict",
    "Verdicts",
    "are_annotated",
    "as_json",
    "as_json_lines",
    "classes_of",
    "describe_guard",
    "open_guard",
    "overlaps",
    "true_classes",
    "write_verdicts",
]
