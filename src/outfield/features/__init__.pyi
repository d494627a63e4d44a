"""Made by tools/stubs.py from __init__.py: what type checkers and editors see."""

from outfield.features.clusters import clustered as clustered
from outfield.features.columns import Cells as Cells
from outfield.features.columns import Column as Column
from outfield.features.columns import NUMBER as NUMBER
from outfield.features.columns import TEXT as TEXT
from outfield.features.columns import TRUTH as TRUTH
from outfield.features.columns import array_of as array_of
from outfield.features.columns import as_texts as as_texts
from outfield.features.columns import cells_of as cells_of
from outfield.features.columns import is_missing as is_missing
from outfield.features.columns import rows_of as rows_of
from outfield.features.fields import FIELDS as FIELDS
from outfield.features.fields import MOST_STAGES as MOST_STAGES
from outfield.features.fields import TWO_CLASSES as TWO_CLASSES
from outfield.features.fields import made_by as made_by
from outfield.features.fields import spaces as spaces
from outfield.features.formats import columns_by_field as columns_by_field
from outfield.features.formats import split_source as split_source
from outfield.features.formats import values_of as values_of
from outfield.features.head import HEAD as HEAD
from outfield.features.head import HEAD_FIELDS as HEAD_FIELDS
from outfield.features.head import has_head as has_head
from outfield.features.head import head_of as head_of
from outfield.features.set import FeatureSet as FeatureSet
from outfield.features.source import FeatureSource as FeatureSource
from outfield.features.source import NETWORK as NETWORK
from outfield.features.source import Part as Part
from outfield.features.source import Wrapped as Wrapped
from outfield.features.source import agree as agree
from outfield.features.source import checked_about as checked_about
from outfield.features.source import network_text as network_text
from outfield.features.source import normalise as normalise
from outfield.features.split import copies_of as copies_of
from outfield.features.split import split_rows as split_rows
from outfield.features.split import stratified_rows as stratified_rows
from outfield.features.stand_in_rows import feature_stand_ins as feature_stand_ins
from outfield.features.stream import FeatureStream as FeatureStream
from outfield.features.stream import open_features as open_features
from outfield.features.stream import open_or_read as open_or_read
from outfield.features.table_files import TABLE_ENDINGS as TABLE_ENDINGS
from outfield.features.table_files import arrow as arrow
from outfield.features.table_files import csv_text as csv_text
from outfield.features.table_files import named_columns as named_columns
from outfield.features.table_files import parquet_file as parquet_file
from outfield.features.table_files import read_column as read_column
from outfield.features.table_files import read_table as read_table
from outfield.features.table_files import readable as readable
from outfield.features.table_files import whole_parquet as whole_parquet
from outfield.features.table_files import write_columns as write_columns
from outfield.features.table_preprocessing import LARGEST as LARGEST
from outfield.features.table_preprocessing import TablePreprocessing as TablePreprocessing
from outfield.features.table_preprocessing import read_columns as read_columns
from outfield.features.table_preprocessing import within_float32 as within_float32

__all__ = [
    "Cells",
    "Column",
    "FIELDS",
    "FeatureSet",
    "FeatureSource",
    "FeatureStream",
    "HEAD",
    "HEAD_FIELDS",
    "LARGEST",
    "MOST_STAGES",
    "NETWORK",
    "NUMBER",
    "Part",
    "TABLE_ENDINGS",
    "TEXT",
    "TRUTH",
    "TWO_CLASSES",
    "TablePreprocessing",
    "Wrapped",
    "agree",
    "array_of",
    "arrow",
    "as_texts",
    "cells_of",
    "checked_about",
    "clustered",
    "columns_by_field",
    "copies_of",
    "csv_text",
    "feature_stand_ins",
    "has_head",
    "head_of",
    "is_missing",
    "made_by",
    "named_columns",
    "network_text",
    "normalise",
    "open_features",
    "open_or_read",
    "parquet_file",
    "read_column",
    "read_columns",
    "read_table",
    "readable",
    "rows_of",
    "spaces",
    "split_rows",
    "split_source",
    "stratified_rows",
    "values_of",
    "whole_parquet",
    "within_float32",
    "write_columns",
]
