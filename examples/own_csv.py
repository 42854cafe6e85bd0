"""Label your own graph: from two CSV files to a class and its probability for every node."""

import csv
import random
import sys
from pathlib import Path

import pairnorm
from pairnorm import NodeClassifier


def write_customers(folder: Path, count: int = 300) -> None:
    """Write a small shop: customers in two groups, most payments within a group; 40% have no history."""
    draw = random.Random(0)
    groups = [draw.random() < 0.5 for _ in range(count)]
    with open(folder / "customers.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["customer", "age", "income", "job", "risk"])
        for number, risky in enumerate(groups):
            history = [
                draw.gauss(35 if risky else 45, 8),
                draw.gauss(30 if risky else 45, 10),
                draw.choice("abc"),
            ]
            known = (
                [round(history[0]), round(history[1], 1), history[2]] if draw.random() < 0.6 else ["", "", ""]
            )
            table.writerow([f"c{number}", *known, ("low", "high")[risky] if number < count // 2 else ""])
    with open(folder / "payments.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["source", "target"])
        for _ in range(4 * count):
            source, target = draw.randrange(count), draw.randrange(count)
            if groups[source] == groups[target] or draw.random() < 0.2:
                table.writerow([f"c{source}", f"c{target}"])


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    write_customers(folder)

    graph = pairnorm.Graph.from_files(folder / "customers.csv", folder / "payments.csv", label="risk")
    print(graph)

    classifier = NodeClassifier().fit(graph)  # selects a model on validation nodes
    low, high = (f"{bound:.0%}" for bound in classifier.held_out_.interval)
    print(f"\nChosen: {classifier.best_.name}")
    print(f"Right on {classifier.score(graph):.0%} of held-out customers (95% interval {low} to {high})")

    predicted, probabilities = classifier.predict(graph), classifier.predict_proba(graph)
    for node in range(297, 300):
        print(f"{graph.node_names[node]}: {predicted[node]} ({probabilities[node].max():.0%})")
    classifier.save(folder / "model")

    # Read later files with the columns, categories and classes of the first ones.
    saved = NodeClassifier.load(folder / "model")
    later = pairnorm.Graph.from_files(
        folder / "customers.csv", folder / "payments.csv", encoder=saved.encoder_
    )
    assert (saved.predict(later) == predicted).all()
