-- A sweep has many specs that differ only in depth, scale and missing rate: the other fields are a protocol, kept once.
-- Trials that were computed together share an origin. A hash is stored as the integer of its 16 hexadecimal digits.
-- NULL stands for NaN in the metrics: SQLite has no NaN. The view `results` has one row per trial with all columns.
CREATE TABLE protocols (
    id INTEGER PRIMARY KEY, dataset TEXT NOT NULL, model TEXT NOT NULL, hidden INTEGER NOT NULL,
    heads INTEGER NOT NULL, norm TEXT NOT NULL, "order" TEXT NOT NULL, skip INTEGER NOT NULL,
    dropout REAL NOT NULL, adjacency TEXT NOT NULL, missing_kind TEXT NOT NULL, split TEXT NOT NULL,
    learning_rate REAL NOT NULL, weight_decay REAL NOT NULL, epochs INTEGER NOT NULL, scaling TEXT NOT NULL,
    remedy TEXT NOT NULL, strength REAL NOT NULL, fill TEXT NOT NULL, precision TEXT NOT NULL,
    metric TEXT NOT NULL
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

CREATE TABLE trials (
    hash INTEGER NOT NULL REFERENCES specs, seed INTEGER NOT NULL, diverged INTEGER NOT NULL,
    best_epoch INTEGER NOT NULL, train_loss REAL, train_accuracy REAL, validation_loss REAL,
    validation_accuracy REAL, test_loss REAL, test_accuracy REAL, measures TEXT, curves TEXT,
    origin INTEGER NOT NULL REFERENCES origins, PRIMARY KEY (hash, seed)
) WITHOUT ROWID;

CREATE VIEW results AS
SELECT printf('%016x', hash) AS hash, dataset, model, depth, hidden, heads, norm, scale, "order", skip,
    dropout, adjacency, missing_rate, missing_kind, split, learning_rate, weight_decay, epochs, scaling,
    remedy, strength, fill, precision, metric, seed, diverged, best_epoch, train_loss, train_accuracy,
    validation_loss, validation_accuracy, test_loss, test_accuracy, measures, curves, seconds, shared_by, pairnorm_version,
    torch_version, python_version, device, git_commit, finished
FROM trials JOIN specs USING (hash) JOIN protocols ON protocols.id = specs.protocol
    JOIN origins ON origins.id = trials.origin;
