-- Features may be left as they are.
ALTER TABLE trials ADD COLUMN "scaling" TEXT NOT NULL DEFAULT 'rows';
