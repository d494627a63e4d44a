"""Outfield's detectors in the clothes of other libraries: scikit-learn, pyod, pytorch-ood, OpenOOD. Each file needs its library.

Signs are theirs: scikit-learn and OpenOOD have lower = OOD, pyod and pytorch-ood higher = OOD as Outfield has it.
"""
