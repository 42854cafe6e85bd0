-- The states of a network may lie in memory in half precision.
ALTER TABLE protocols ADD COLUMN precision TEXT NOT NULL DEFAULT 'float32';

DROP VIEW results;

CREATE VIEW results AS
SELECT printf('%016x', hash) AS hash, dataset, model, depth, hidden, heads, norm, scale, "order", skip,
    dropout, adjacency, missing_rate, missing_kind, split, learning_rate, weight_decay, epochs, scaling,
    remedy, strength, fill, precision, seed, diverged, best_epoch, train_loss, train_accuracy, validation_loss,
    validation_accuracy, test_loss, test_accuracy, measures, curves, seconds, shared_by, pairnorm_version,
    torch_version, python_version, device, git_commit, finished
FROM trials JOIN specs USING (hash) JOIN protocols ON protocols.id = specs.protocol
    JOIN origins ON origins.id = trials.origin;
