"""A Ray cluster: how it is joined, what it has room for, and what its errors mean."""

import os
import warnings
from typing import Any

from pairnorm.base.errors import PairNormError
from pairnorm.version import __version__

ATTEMPTS = 10
"""How often workers may die of something without getting further than before."""


def connect() -> tuple[Any, bool]:
    """Return ray, connected to a cluster, and whether that was done here."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        problem = "running on a Ray cluster needs ray"
        hint = "pip install 'pairnorm[ray]'"
        raise PairNormError(problem, code="not-installed", value="ray", hint=hint) from error
    if ray.is_initialized():
        return ray, False
    address = os.environ.get("RAY_ADDRESS", "auto")
    if address.startswith("ray://"):
        problem = f"RAY_ADDRESS is {address!r}, a Ray Client's"
        expected = "the address of the cluster itself, from one of its machines"
        hint = "Submit this command as a job: ray job submit -- pairnorm …"
        raise PairNormError(problem, code="no-cluster", value=address, expected=expected, hint=hint)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Ray's own future
            ray.init(address=address, log_to_driver=False, logging_level="error")
    except ConnectionError as error:
        problem = f"no Ray cluster was found ({address})"
        hint = "Start one: ray start --head, elsewhere ray start --address=…; or set RAY_ADDRESS."
        raise PairNormError(problem, code="no-cluster", value=address, hint=hint) from error
    except RuntimeError as error:
        if "ersion mismatch" not in str(error):
            raise
        problem = f"the Ray cluster runs other versions: {' '.join(str(error).split())}"
        hint = "Install the same versions of Python and ray on all machines."
        raise PairNormError(problem, code="version-mismatch", value=address, hint=hint) from error
    return ray, True


def check_room(ray: Any, what: str, size: int) -> None:
    """Refuse what is larger than the object store of a node that works.

    Args:
        ray: connected.
        what: what it is, in words.
        size: its bytes.
    """
    room = min((int(node.get("object_store_memory", 0)) for node in working_nodes(ray)), default=0)
    if size > room:
        problem = f"{what} has {size / 1e9:.2g} GB, the smallest object store {room / 1e9:.2g} GB"
        hint = "Start its node with more --object-store-memory; a container needs a larger --shm-size."
        raise PairNormError(problem, code="no-room", value=size, hint=hint)


def working_nodes(ray: Any) -> list[dict[str, float]]:
    """Return the resources of every node that has a core to work with."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0)]


def check_version(driver: str) -> None:
    """Refuse to work, where a worker calls this, for a driver of another version."""
    if driver != __version__:
        problem = f"a worker of the Ray cluster has pairnorm {__version__}, the driver {driver}"
        hint = "Install the same version on all machines."
        raise PairNormError(problem, code="version-mismatch", value=__version__, expected=driver, hint=hint)


def has_died(error: Exception) -> bool:
    """Say whether an error is the end of a worker or of its machine, and not of what it did."""
    from ray.exceptions import NodeDiedError, ObjectLostError, WorkerCrashedError

    return isinstance(error, WorkerCrashedError | NodeDiedError | ObjectLostError)


def cause_of(error: Exception) -> Exception:
    """Return what a task has raised, or the error itself where it is Ray's own."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Exception) else error
