"""The conformance kit: cases, golden vectors, real traffic, and a judge for any implementation of the plan.

>>> from shared_ref.conformance import check, load_implementation, vectors
>>> launch = load_implementation("shared_ref:launch_canary_plan_kernels_reference")
>>> check(launch, vectors()[0].case()) is None
True
"""

from ..backends import Backend, backends
from .case import Case, PlanInputs, Plans
from .compare import Difference, FieldDifferences, compare
from .golden import Vector, VectorResult, check_vector, read_vectors, vectors
from .kit import ImplementationError, implementation_backend, load_implementation
from .runner import Failure, Outcome, check, run
from .step import case_of_step

__all__ = [
    "Backend",
    "Case",
    "Difference",
    "Failure",
    "FieldDifferences",
    "ImplementationError",
    "Outcome",
    "PlanInputs",
    "Plans",
    "Vector",
    "VectorResult",
    "backends",
    "case_of_step",
    "check",
    "check_vector",
    "compare",
    "implementation_backend",
    "load_implementation",
    "read_vectors",
    "run",
    "vectors",
]
