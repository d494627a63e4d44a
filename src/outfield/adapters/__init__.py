"""Outfield's detectors in the interfaces of other libraries: scikit-learn, pyod, pytorch-ood, OpenOOD, ONNX, Triton, MLflow.

Signs are theirs: scikit-learn and OpenOOD have lower = OOD, pyod and pytorch-ood higher = OOD as Outfield has it.
Each needs its library.
"""

from outfield.extras import door

__getattr__, __dir__, __all__ = door(
    __name__, {"mlflow": ("to_mlflow",), "onnx": ("to_onnx", "to_pt2"), "triton": ("to_triton", "to_triton_ensemble")}
)
