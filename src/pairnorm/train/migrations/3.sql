-- A sweep has many specs that differ in depth, scale and missing rate alone: the rest of them is a protocol, kept
-- once. Trials that were computed together share an origin. The hash of a spec is kept as the number that its 16
-- digits are. The view has a row per trial with all columns, for whoever asks in SQL.
CREATE TABLE protocols (
    id INTEGER PRIMARY KEY, dataset TEXT NOT NULL, model TEXT NOT NULL, hidden INTEGER NOT NULL,
    heads INTEGER NOT NULL, norm TEXT NOT NULL, "order" TEXT NOT NULL, skip INTEGER NOT NULL,
    dropout REAL NOT NULL, adjacency TEXT NOT NULL, missing_kind TEXT NOT NULL, split TEXT NOT NULL,
    learning_rate REAL NOT NULL, weight_decay REAL NOT NULL, epochs INTEGER NOT NULL,
    scaling TEXT NOT NULL
);

CREATE TABLE specs (
    hash INTEGER PRIMARY KEY, protocol INTEGER NOT NULL REFERENCES protocols, depth INTEGER NOT NULL,
    scale REAL NOT NULL, missing_rate REAL NOT NULL
);

CREATE TABLE origins (
    id INTEGER PRIMARY KEY, seconds REAL NOT NULL, shared_by INTEGER NOT NULL,
    pairnorm_version TEXT NOT NULL, torch_version TEXT NOT NULL, python_version TEXT NOT NULL,
    device TEXT NOT NULL, git_commit TEXT, finished TEXT NOT NULL
);

ALTER TABLE trials RENAME TO wide;

CREATE TABLE trials (
    hash INTEGER NOT NULL REFERENCES specs, seed INTEGER NOT NULL, diverged INTEGER NOT NULL,
    best_epoch INTEGER NOT NULL, train_loss REAL, train_accuracy REAL, validation_loss REAL,
    validation_accuracy REAL, test_loss REAL, test_accuracy REAL, measures TEXT, curves TEXT,
    origin INTEGER NOT NULL REFERENCES origins, PRIMARY KEY (hash, seed)
) WITHOUT ROWID;

INSERT INTO protocols
SELECT DISTINCT NULL, dataset, model, hidden, heads, norm, "order", skip, dropout, adjacency,
    missing_kind, split, learning_rate, weight_decay, epochs, scaling
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

CREATE VIEW results AS
SELECT printf('%016x', hash) AS hash, dataset, model, depth, hidden, heads, norm, scale, "order", skip,
    dropout, adjacency, missing_rate, missing_kind, split, learning_rate, weight_decay, epochs, scaling,
    seed, diverged, best_epoch, train_loss, train_accuracy, validation_loss, validation_accuracy,
    test_loss, test_accuracy, measures, curves, seconds, shared_by, pairnorm_version, torch_version,
    python_version, device, git_commit, finished
FROM trials JOIN specs USING (hash) JOIN protocols ON protocols.id = specs.protocol
    JOIN origins ON origins.id = trials.origin;
