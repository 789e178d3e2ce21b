-- Version 3 could not tell whether a request had been answered before.
CREATE TABLE answers (
    user    TEXT NOT NULL,
    key     TEXT NOT NULL,
    request TEXT NOT NULL,
    answer  TEXT NOT NULL,
    at      REAL NOT NULL,
    PRIMARY KEY (user, key)
) WITHOUT ROWID;
CREATE INDEX answers_by_age ON answers (at);
