"""The NumPy backend: written to be read, and the oracle of the others. It computes row by row."""

from turbospark.kernels.reference.backend import ReferenceKernels

__all__ = ["ReferenceKernels"]
