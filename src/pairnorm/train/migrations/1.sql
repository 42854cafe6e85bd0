-- NULL stands for NaN in the metrics: SQLite keeps no NaN.
CREATE TABLE trials (
    "hash" TEXT NOT NULL, "dataset" TEXT NOT NULL, "model" TEXT NOT NULL, "depth" INTEGER NOT NULL,
    "hidden" INTEGER NOT NULL, "heads" INTEGER NOT NULL, "norm" TEXT NOT NULL, "scale" REAL NOT NULL,
    "order" TEXT NOT NULL, "skip" INTEGER NOT NULL, "dropout" REAL NOT NULL, "adjacency" TEXT NOT NULL,
    "missing_rate" REAL NOT NULL, "missing_kind" TEXT NOT NULL, "split" TEXT NOT NULL,
    "learning_rate" REAL NOT NULL, "weight_decay" REAL NOT NULL, "epochs" INTEGER NOT NULL,
    "seed" INTEGER NOT NULL, "diverged" INTEGER NOT NULL, "best_epoch" INTEGER NOT NULL,
    "train_loss" REAL, "train_accuracy" REAL, "validation_loss" REAL, "validation_accuracy" REAL,
    "test_loss" REAL, "test_accuracy" REAL, "measures" TEXT NOT NULL, "curves" TEXT,
    "seconds" REAL NOT NULL, "shared_by" INTEGER NOT NULL, "pairnorm_version" TEXT NOT NULL,
    "torch_version" TEXT NOT NULL, "python_version" TEXT NOT NULL, "device" TEXT NOT NULL,
    "git_commit" TEXT, "finished" TEXT NOT NULL,
    PRIMARY KEY ("hash", "seed")
);
