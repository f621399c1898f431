"""Packed binary kernels for stompp: C++ for AVX-512, AVX2 and any CPU, numpy in and out, no torch."""

from ._kernels import Program, available_isas, register_loop

__all__ = ["Program", "available_isas", "register_loop"]
