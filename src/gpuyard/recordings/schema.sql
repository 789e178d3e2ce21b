-- What GPUs did, and jobs on them. It is no part of the queue: losing it loses no job.

-- Whom values are about: a GPU (without a job), or one attempt of a job on one GPU.
CREATE TABLE subjects (
    id        INTEGER PRIMARY KEY,
    gpu       INTEGER NOT NULL,            -- its index then
    uuid      TEXT    NOT NULL,
    name      TEXT    NOT NULL DEFAULT '',
    memory    INTEGER NOT NULL DEFAULT 0,  -- bytes in all; 0 where that is not known
    simulated INTEGER NOT NULL DEFAULT 0,
    job       TEXT    NOT NULL DEFAULT '',
    attempt   INTEGER NOT NULL DEFAULT 0,
    UNIQUE (job, attempt, gpu, uuid, name, memory, simulated)
);

-- Values of a span of time, all metrics of a subject together (`codec`).
CREATE TABLE chunks (
    level   INTEGER NOT NULL,              -- 0: samples of a minute; 1: minutes of six hours; 2: hours of a week
    subject INTEGER NOT NULL,
    at      INTEGER NOT NULL,              -- when the span begins, in seconds since the epoch
    open    INTEGER NOT NULL DEFAULT 0,    -- of samples: whether the next level does not know of them yet
    data    BLOB    NOT NULL,
    PRIMARY KEY (level, subject, at)
) WITHOUT ROWID;
CREATE INDEX chunks_open ON chunks (subject, at) WHERE open = 1;
