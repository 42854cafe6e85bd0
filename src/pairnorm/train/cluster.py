"""Tasks of a Ray cluster: connect, start, handle what tasks yield, and restart those whose worker died.

Ray itself retries nothing, since it would retry forever what runs out of memory.
"""

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from pairnorm.base.errors import PairNormError
from pairnorm.version import __version__

MAX_ATTEMPTS = 10
"""How often the workers of a task may die without getting further than before."""


class Task(ABC):
    """A remote generator that starts again when its worker dies."""

    stream: Any = None
    attempts: int = 0

    @abstractmethod
    def start(self) -> Any:
        """Start the remote generator and return its stream of object references."""

    @abstractmethod
    def handle(self, event: Any) -> bool:
        """Handle an event and return whether the task got further than in earlier attempts."""

    @abstractmethod
    def finish(self) -> None:
        """Handle the end of the stream."""

    @abstractmethod
    def retry(self, error: Exception) -> bool:
        """Prepare another attempt after an error of the task; return False to stop without an error."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Handle an error that the task itself raised."""

    @abstractmethod
    def give_up(self, error: Exception) -> None:
        """Handle a task that ran out of memory, or whose workers died ``MAX_ATTEMPTS`` times."""


class Cluster:
    """A connection to a Ray cluster, and the tasks that run there."""

    def __init__(self) -> None:
        self.ray, self._is_own_connection = _connect()
        self.running: list[Task] = []

    def nodes(self) -> list[dict[str, float]]:
        """Return the resources of every node that has a core for tasks."""
        nodes = self.ray.nodes()
        return [node["Resources"] for node in nodes if node["Alive"] and node["Resources"].get("CPU", 0)]

    def check_object_store(self, name: str, size: int) -> None:
        """Raise an error for an object that is larger than the smallest object store.

        Args:
            name: of the object.
            size: its bytes.
        """
        room = min((int(node.get("object_store_memory", 0)) for node in self.nodes()), default=0)
        if size > room:
            problem = f"{name} has {size / 1e9:.2g} GB, the smallest object store {room / 1e9:.2g} GB"
            hint = "Start its node with more --object-store-memory; a container needs a larger --shm-size."
            raise PairNormError(problem, code="no-room", value=size, hint=hint)

    def remote(self, generator: Callable[..., Iterator[Any]], **resources: float) -> Any:
        """Return a generator function as a Ray task that streams what it yields."""
        options = {"name": "pairnorm", "max_retries": 0, "num_returns": "streaming"}
        return self.ray.remote(generator).options(**options, **resources)

    def start(self, task: Task) -> None:
        """Start a task."""
        self.running.append(task)
        task.stream = task.start()

    def poll(self) -> None:
        """Handle the events that have arrived, without waiting, and restart the tasks of dead workers."""
        for task in list(self.running):
            try:
                while self.ray.wait([task.stream], timeout=0)[0]:
                    if task.handle(self.ray.get(next(task.stream))):
                        task.attempts = 0
            except StopIteration:
                self._remove(task)
                task.finish()
            except self.ray.exceptions.RayError as error:
                self._remove(task)
                self._retry(task, error)

    def _retry(self, task: Task, error: Exception) -> None:
        errors = self.ray.exceptions
        cause = getattr(error, "cause", None)
        died = isinstance(error, errors.WorkerCrashedError | errors.NodeDiedError | errors.ObjectLostError)
        if not died and not isinstance(error, errors.OutOfMemoryError):
            error = cause if isinstance(cause, Exception) else error
            if is_not_seen(error) and task.retry(error):
                self.start(task)
            else:
                task.fail(error)
            return
        task.attempts += 1
        if not task.retry(error):
            task.finish()
        elif died and task.attempts < MAX_ATTEMPTS:
            self.start(task)
        else:
            task.give_up(error)

    def _remove(self, task: Task) -> None:
        self.running.remove(task)
        task.stream = None  # a process that still refers to a stream when it disconnects is ended by Ray

    def cancel(self) -> None:
        """Cancel all tasks and disconnect."""
        for task in list(self.running):
            self.ray.cancel(task.stream, force=True)
            self._remove(task)
        self.close()

    def close(self) -> None:
        """Disconnect, unless the caller had connected before."""
        if self._is_own_connection:
            self.ray.shutdown()


def _connect() -> tuple[Any, bool]:
    """Return ray, connected to a cluster, and whether this call connected it."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        problem, hint = "running on a Ray cluster needs ray", "pip install 'pairnorm[ray]'"
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
            warnings.simplefilter("ignore")  # about changes in future versions of Ray
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


def check_version(driver: str) -> None:
    """Raise an error on a worker that has another version than the driver."""
    if driver != __version__:
        problem = f"a worker of the Ray cluster has pairnorm {__version__}, the driver {driver}"
        hint = "Install the same version on all machines."
        raise PairNormError(problem, code="version-mismatch", value=__version__, expected=driver, hint=hint)


def is_not_seen(error: Exception) -> bool:
    """Return whether a worker does not see the files of a graph."""
    return isinstance(error, PairNormError) and error.code == "not-seen"
