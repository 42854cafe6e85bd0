"""Compare your own method against oversmoothing on Cora, with features of the training nodes only.

To compare it with other methods: pairnorm compare --dataset cora --method own_method:Whiten
"""

import sys
import tempfile
from pathlib import Path

from torch import Tensor, nn

from pairnorm.train import Spec, Store, register, run


class Whiten(nn.Module):
    """Center each feature over the nodes, and divide it by a power of its standard deviation."""

    version, grid = "1", (1.0, 0.5)  # validation selects one of two strengths

    def __init__(self, features: int, strength: float) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x``, ``[nodes, features]``, normalized."""
        centered = x - x.mean(0)
        return centered / (centered.var(0) + 1e-6) ** (self.strength / 2)


register("Whiten", Whiten)

if __name__ == "__main__":
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    specs = [
        Spec("cora", "GCN", 8, method=name, missing_rate=1.0, epochs=epochs)
        for name in ("none", "PN-SI", "Whiten")
    ]
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "own.sqlite") as store:
        run([(spec, 0) for spec in specs], store, device="cpu", workers=2)
        for spec in specs:
            (trial,) = store.trials(spec)
            print(f"{100 * trial.test_accuracy:.1f}% of the test papers right: {spec}")
