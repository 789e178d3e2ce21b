-- Who wants to be told of what. A row with `of_jobs` was given with a job, and serves those that name it.
CREATE TABLE subscriptions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    url TEXT NOT NULL,
    events TEXT NOT NULL,
    long_wait REAL NOT NULL,
    title TEXT NOT NULL,
    body TEXT NOT NULL,
    created REAL NOT NULL,
    used REAL NOT NULL,
    of_jobs INTEGER NOT NULL
);
CREATE UNIQUE INDEX subscription_names ON subscriptions (user, name) WHERE NOT of_jobs;

-- What is to be sent, or was. A job's event is told once to each.
CREATE TABLE deliveries (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    subscription INTEGER NOT NULL,
    name TEXT NOT NULL,
    target TEXT NOT NULL,
    user TEXT NOT NULL,
    job TEXT NOT NULL,
    event TEXT NOT NULL,
    at REAL NOT NULL,
    title TEXT NOT NULL,
    body TEXT NOT NULL,
    fields TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    next REAL NOT NULL DEFAULT 0,
    ended REAL,
    error TEXT NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX deliveries_once ON deliveries (subscription, job, event) WHERE job != '';
CREATE INDEX deliveries_due ON deliveries (next) WHERE state = 'waiting';
CREATE INDEX deliveries_of_jobs ON deliveries (job);
CREATE INDEX deliveries_of_users ON deliveries (user, state);

-- The last event of the log that was looked at.
CREATE TABLE cursor (seq INTEGER NOT NULL);
