-- Who may come in by TCP, and who did what. Times are seconds since the epoch; of secrets there are only hashes.

CREATE TABLE tokens (
    id      TEXT PRIMARY KEY,
    hash    BLOB NOT NULL,     -- SHA-256 of the secret, which has 256 random bits: it cannot be guessed from that
    user    TEXT NOT NULL,
    uid     INTEGER,           -- their number when it was made: somebody else may get the name later
    role    TEXT NOT NULL,
    label   TEXT NOT NULL,
    made_by TEXT NOT NULL,
    limits  TEXT NOT NULL,     -- of the process that made it, if it was its user's
    created REAL NOT NULL,
    expires REAL,
    used    REAL,              -- last, to within a few minutes
    revoked REAL
) STRICT;

CREATE TABLE sessions (
    id      TEXT PRIMARY KEY,
    hash    BLOB NOT NULL,
    token   TEXT NOT NULL REFERENCES tokens (id),
    place   TEXT NOT NULL,     -- where it was opened from, and may be used from
    created REAL NOT NULL,
    expires REAL NOT NULL
) STRICT;

CREATE TABLE audit (
    seq     INTEGER PRIMARY KEY,
    at      REAL NOT NULL,
    user    TEXT NOT NULL,
    via     TEXT NOT NULL,
    address TEXT NOT NULL,
    method  TEXT NOT NULL,
    path    TEXT NOT NULL,     -- never what follows a question mark
    status  INTEGER NOT NULL,
    job     TEXT NOT NULL,
    times   INTEGER NOT NULL   -- how often; above 1 where there were more than are worth a row each
) STRICT;

CREATE INDEX audit_user ON audit (user, seq);
