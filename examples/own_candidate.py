"""Let a tabular foundation model compete in ``fit``; here a scikit-learn classifier takes its place.

A package does the same with an entry point, which ``fit --model TabPFN`` then finds:

    [project.entry-points."pairnorm.candidates"]
    TabPFN = "tabpfn:TabPFNClassifier"
"""

from sklearn.ensemble import HistGradientBoostingClassifier

import pairnorm
from pairnorm.classify import NodeClassifier, register_candidate

register_candidate("TabPFN", HistGradientBoostingClassifier)

graph = pairnorm.data.csbm(300, classes=2, seed=1).with_split("per-class-20")
classifier = NodeClassifier(["TabPFN", "label propagation"]).fit(graph)
for weight, candidate in classifier.parts_:
    print(f"{weight} x {candidate.name}, validation loss {candidate.validation_loss:.3f}")
print(f"Test accuracy: {classifier.score(graph):.3f}")
