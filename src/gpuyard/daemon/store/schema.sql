-- gpuyard's store, version 6. The log is the truth; `jobs` and `checkpoint` follow from it and can be made anew.

CREATE TABLE events (
    seq     INTEGER PRIMARY KEY,  -- 1, 2, 3 ...: the order in which things happened
    at      REAL    NOT NULL,     -- seconds since the epoch, on the daemon's clock
    kind    TEXT    NOT NULL,     -- the event's name
    job     TEXT,                 -- none for what happens to the whole yard
    attempt INTEGER,
    data    TEXT    NOT NULL      -- the rest, as JSON; empty if there is none
);
CREATE INDEX events_of_job ON events (job, seq) WHERE job IS NOT NULL;
CREATE INDEX events_of_yard ON events (kind, seq) WHERE job IS NULL;

-- Environments of jobs, which are much alike: kept once each, under a hash of their content.
CREATE TABLE environments (
    hash    TEXT PRIMARY KEY,
    content TEXT NOT NULL
) WITHOUT ROWID;

-- What the events say of each job.
CREATE TABLE jobs (
    number     INTEGER PRIMARY KEY,  -- the order of submission
    id         TEXT    NOT NULL UNIQUE,
    name       TEXT    NOT NULL,
    user       TEXT    NOT NULL,
    state      TEXT    NOT NULL,
    attempt    INTEGER NOT NULL,
    gpus       TEXT    NOT NULL,     -- indices, with commas between them
    exit_code  INTEGER,
    submitted  REAL    NOT NULL,
    started    REAL,
    ended      REAL,
    priority   REAL    NOT NULL,
    message    TEXT    NOT NULL,     -- how it ended, where that needs words
    recalled   TEXT    NOT NULL,     -- what it was told to end for
    work       TEXT    NOT NULL,     -- what it asked for, as JSON
    kind       TEXT    NOT NULL DEFAULT 'job',  -- or 'lease'
    array      TEXT    NOT NULL DEFAULT '',     -- the array that it is a task of
    failures   INTEGER NOT NULL DEFAULT 0,      -- attempts that failed and were followed by a retry
    preemptions INTEGER NOT NULL DEFAULT 0,
    measured   TEXT    NOT NULL DEFAULT ''      -- what its last attempt used, as JSON
);
CREATE INDEX jobs_open ON jobs (number) WHERE ended IS NULL;
CREATE INDEX jobs_over ON jobs (ended) WHERE ended IS NOT NULL;
CREATE INDEX jobs_by_state ON jobs (state);
CREATE INDEX jobs_by_array ON jobs (array) WHERE array <> '';
CREATE INDEX jobs_by_name ON jobs (name);
CREATE INDEX jobs_by_batch ON jobs (json_extract(work, '$.batch[0]')) WHERE json_extract(work, '$.batch[0]') IS NOT NULL;

-- Requests that came with a key, and what they were answered: sent again, they are answered the same, and done once.
CREATE TABLE answers (
    user    TEXT NOT NULL,
    key     TEXT NOT NULL,
    request TEXT NOT NULL,  -- a hash of what was asked for
    answer  TEXT NOT NULL,  -- as JSON
    at      REAL NOT NULL,
    PRIMARY KEY (user, key)
) WITHOUT ROWID;
CREATE INDEX answers_by_age ON answers (at);

-- What attempts took, as far as that is known: what is expected of their like follows from it. It outlives the jobs.
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

-- The state of the yard after the event `seq`, so that a start need not read the whole log.
CREATE TABLE checkpoint (
    seq  INTEGER PRIMARY KEY,
    data TEXT NOT NULL  -- JSON, compressed by zlib but in older stores
);

-- Requests that change many jobs, written before they are carried out, part by part: a restart goes on with them.
CREATE TABLE intents (
    number INTEGER PRIMARY KEY,
    done   INTEGER NOT NULL,  -- how many of its jobs
    what   TEXT    NOT NULL   -- is asked for, as JSON
);
