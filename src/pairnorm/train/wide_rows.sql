-- Schema versions 1 and 2 kept a trial with its spec and origin in one wide row: divide these rows among the tables.
INSERT INTO protocols
SELECT DISTINCT NULL, dataset, model, hidden, heads, norm, "order", skip, dropout, adjacency, missing_kind,
    split, learning_rate, weight_decay, epochs, scaling, remedy, strength, fill, precision, metric
FROM wide ORDER BY 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16;

INSERT INTO specs
SELECT DISTINCT hash_number(hash), protocols.id, depth, scale, missing_rate
FROM wide JOIN protocols USING (dataset, model, hidden, heads, norm, "order", skip, dropout, adjacency,
    missing_kind, split, learning_rate, weight_decay, epochs, scaling);

INSERT INTO origins
SELECT DISTINCT NULL, seconds, shared_by, pairnorm_version, torch_version, python_version, device,
    git_commit, finished
FROM wide ORDER BY finished, seconds;

INSERT INTO trials
SELECT hash_number(hash), seed, diverged, best_epoch, train_loss, train_accuracy, validation_loss,
    validation_accuracy, test_loss, test_accuracy, nullif(measures, '{}'), curves, origins.id
FROM wide JOIN origins ON wide.finished = origins.finished AND wide.seconds = origins.seconds
    AND wide.shared_by = origins.shared_by AND wide.device = origins.device
    AND wide.pairnorm_version = origins.pairnorm_version AND wide.torch_version = origins.torch_version
    AND wide.python_version = origins.python_version AND wide.git_commit IS origins.git_commit;

DROP TABLE wide;
