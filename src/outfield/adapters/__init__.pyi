"""Made by tools/stubs.py from __init__.py: what type checkers and editors see."""

from outfield.adapters.mlflow import to_mlflow as to_mlflow
from outfield.adapters.onnx import to_onnx as to_onnx
from outfield.adapters.onnx import to_pt2 as to_pt2
from outfield.adapters.triton import to_triton as to_triton
from outfield.adapters.triton import to_triton_ensemble as to_triton_ensemble

__all__ = [
    "to_mlflow",
    "to_onnx",
    "to_pt2",
    "to_triton",
    "to_triton_ensemble",
]
