"""Add a classifier of another package to the candidates of ``fit``; here one of scikit-learn.

A package registers one by an entry point, such as this one for ``fit --model TabPFN``:

    [project.entry-points."pairnorm.candidates"]
    TabPFN = "tabpfn:TabPFNClassifier"
"""

from sklearn.ensemble import HistGradientBoostingClassifier

import pairnorm
from pairnorm.classify import NodeClassifier, register_candidate

register_candidate("histogram trees", HistGradientBoostingClassifier)

graph = pairnorm.data.csbm(300, classes=2, seed=1).with_split("per-class-20")
classifier = NodeClassifier(["histogram trees", "label propagation"]).fit(graph)
for weight, candidate in classifier.parts_:
    print(f"{weight} x {candidate.name}, validation loss {candidate.validation_loss:.3f}")
print(f"Test accuracy: {classifier.score(graph):.3f}")
