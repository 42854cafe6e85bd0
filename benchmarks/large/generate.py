"""Tables of a generated graph whose classes are far apart on a ring: deep propagation finds them.

Nodes lie on a ring that is cut into blocks, each of one class; their numbers say nothing about where. Edges
join neighbors on the ring, and a few any two nodes. Features are the class's center under much noise, so one
node are weakly informative, those of a block strongly; many nodes have none. All is drawn by chunks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 2**18
FORMATS = ("parquet", "csv", "npz")


@dataclass(frozen=True)
class Ring:
    """A graph to be drawn.

    Args:
        nodes: how many.
        edges: how many, undirected; some may be drawn twice.
        columns: features of a node.
        missing: share of nodes without features.
        labeled: share of nodes with a class.
        classes: how many.
        block: nodes that lie together and have one class.
        reach: maximum distance of an edge on the ring.
        far: share of edges that join any two nodes.
        signal: distance of a class's center from zero, where noise has one in every column.
        seed: for everything that is drawn.
    """

    nodes: int
    edges: int
    columns: int
    missing: float = 0.5
    labeled: float = 0.1
    classes: int = 5
    block: int = 200
    reach: int = 20
    far: float = 0.02
    signal: float = 1.0
    seed: int = 0

    def write(self, folder: Path, format: str = "parquet") -> list[Path]:
        """Write ``nodes`` and ``edges``, or one ``.npz``, unless they exist; return their paths."""
        if format == "npz":
            return [self._write_npz(folder / "graph.npz")]
        result = []
        for name, chunks in (("nodes", self._nodes()), ("edges", self._edges())):
            path = folder / f"{name}.{format}"
            if not path.exists():
                folder.mkdir(parents=True, exist_ok=True)
                draft = path.with_suffix(".draft")
                _write(draft, chunks, format)
                draft.replace(path)
            result.append(path)
        return result

    def _write_npz(self, path: Path) -> Path:
        if not path.exists():
            nodes, edges = list(self._nodes()), list(self._edges())
            columns = [name for name in nodes[0] if name.startswith("x")]
            x = np.concatenate([np.stack([chunk[name][0] for name in columns], 1) for chunk in nodes])
            labels = [np.where(unlabeled, -1, classes) for classes, unlabeled in (c["label"] for c in nodes)]
            ends = [np.concatenate([chunk[name] for chunk in edges]) for name in ("source", "target")]
            missing = np.concatenate([chunk[columns[0]][1] for chunk in nodes])
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(path, x=x, y=np.concatenate(labels), edge_index=np.stack(ends), missing=missing)
        return path

    @property
    def _step(self) -> int:
        """Node v lies at v · step on the ring: a number without a divisor in common with n."""
        step = int(self.nodes * 0.6180339887) | 1
        while np.gcd(step, self.nodes) > 1:
            step += 2
        return step

    def _nodes(self) -> Iterator[dict[str, Any]]:
        generator = np.random.default_rng([self.seed, 0])
        centers = generator.standard_normal((self.classes, self.columns))
        centers *= self.signal / np.linalg.norm(centers, axis=1, keepdims=True)
        for start in range(0, self.nodes, CHUNK):
            node = np.arange(start, min(start + CHUNK, self.nodes))
            labels = (node * self._step % self.nodes) // self.block % self.classes
            x = generator.standard_normal((len(node), self.columns), np.float32)
            x += centers[labels].astype(np.float32)
            is_missing = generator.random(len(node)) < self.missing
            unlabeled = generator.random(len(node)) >= self.labeled
            yield {"id": node, "label": (labels, unlabeled)} | {
                f"x{column_number}": (column, is_missing) for column_number, column in enumerate(x.T)
            }

    def _edges(self) -> Iterator[dict[str, Any]]:
        generator = np.random.default_rng([self.seed, 1])
        back = pow(self._step, -1, self.nodes)
        for start in range(0, self.edges, CHUNK):
            count = min(CHUNK, self.edges - start)
            source = generator.integers(0, self.nodes, count)
            offset = generator.integers(1, self.reach + 1, count)
            anywhere = generator.random(count) < self.far
            offset[anywhere] = generator.integers(1, self.nodes, np.count_nonzero(anywhere))
            target = (source + offset) % self.nodes
            yield {"source": source * back % self.nodes, "target": target * back % self.nodes}


def _write(path: Path, chunks: Iterator[dict[str, Any]], format: str) -> None:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    kind = {"parquet": pyarrow.parquet.ParquetWriter, "csv": pyarrow.csv.CSVWriter}[format]
    writer = None
    for chunk in chunks:
        table = pa.table({name: _column(values) for name, values in chunk.items()})
        writer = writer or kind(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def _column(values: NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]) -> Any:
    import pyarrow as pa

    numbers, is_missing = values if isinstance(values, tuple) else (values, None)
    return pa.array(np.ascontiguousarray(numbers), mask=is_missing)
