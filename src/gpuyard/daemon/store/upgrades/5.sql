-- Version 4 did not measure what jobs use.
ALTER TABLE jobs ADD COLUMN measured TEXT NOT NULL DEFAULT '';
CREATE INDEX jobs_by_batch ON jobs (json_extract(work, '$.batch[0]')) WHERE json_extract(work, '$.batch[0]') IS NOT NULL;
CREATE TABLE runs (
    job               TEXT    NOT NULL,
    attempt           INTEGER NOT NULL,
    signature         TEXT    NOT NULL,  -- what it has in common with jobs that use as much
    likeness          TEXT    NOT NULL,  -- the same, whatever its script holds
    user              TEXT    NOT NULL,
    name              TEXT    NOT NULL,
    command           TEXT    NOT NULL,  -- as JSON
    at                REAL    NOT NULL,  -- when it ended
    seconds           REAL    NOT NULL,
    outcome           TEXT    NOT NULL,  -- a state, or requeued or preempted
    peak              INTEGER,           -- bytes on one GPU at most; none where that is not known
    mean              REAL,
    samples           INTEGER NOT NULL,
    utilization       REAL,              -- percent
    alone             INTEGER NOT NULL,  -- whether it had its GPUs for itself all the time
    settled           REAL,              -- seconds for which its peak had not risen any more
    gpus              INTEGER NOT NULL,
    promised          INTEGER,           -- bytes on each GPU that it was given; none if it had them whole
    predicted_peak    INTEGER,
    predicted_seconds REAL,
    PRIMARY KEY (job, attempt)
) WITHOUT ROWID;
CREATE INDEX runs_by_signature ON runs (signature, at);
CREATE INDEX runs_by_likeness ON runs (likeness, at);
