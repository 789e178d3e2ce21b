-- From version 5: requests that change many jobs are written before they are carried out; tasks of an array share what
-- they have in common, under a hash among the environments.

-- Requests that change many jobs, written before they are carried out, part by part: a restart goes on with them.
CREATE TABLE intents (
    number INTEGER PRIMARY KEY,
    done   INTEGER NOT NULL,  -- how many of its jobs
    what   TEXT    NOT NULL   -- is asked for, as JSON
);
