-- A store as version 5 of its schema had it: `sqlite3 FILE .dump`, and the version, which a dump leaves out.
PRAGMA user_version = 5;
BEGIN TRANSACTION;
CREATE TABLE answers (
    user    TEXT NOT NULL,
    key     TEXT NOT NULL,
    request TEXT NOT NULL,
    answer  TEXT NOT NULL,
    at      REAL NOT NULL,
    PRIMARY KEY (user, key)
) WITHOUT ROWID;
CREATE TABLE checkpoint (
    seq  INTEGER PRIMARY KEY,
    data TEXT NOT NULL
);
INSERT INTO "checkpoint" VALUES(15,'{"cluster": {"nodes": [2], "memory": 17179869184.0, "cpus": [], "host_memory": [], "models": [], "gpu_memory": []}, "seed": 0, "now": 1030.0, "shadow": "inf", "starts": 2, "virtual_time": 172860.0, "numbers": 6, "head": -1, "users": ["ann"], "used": [36.5], "last_finish": [259260.0], "withdrawn": [], "recalled": [], "groups": [""], "drained": [], "promises": [], "after": [], "doomed": [], "array": ["", ""], "at_most": {}, "bookings": [], "rules": null, "ledger": {"at": 0.0, "faded": [0.0], "hours": [[]]}, "ids": ["2", "4"], "phase": ["queued", "held"], "attempt": [0, 0], "spot": [[], []], "scope": [[[], ""], [[], ""]], "columns": {"submit": [1002.0, 1013.0], "estimate": [86400.0, 86400.0], "memory": [0.0, 0.0], "compute": [100.0, 100.0], "priority": [0.0, 0.0], "weight": [1.0, 1.0], "tickets": [1.0, 1.0], "deadline": ["inf", "inf"], "virtual_start": [60.0, 172860.0], "virtual_finish": [86460.0, 259260.0], "turn": [3.0, 6.0], "requeued": [3.0, 6.0], "progress": [0.0, 0.0], "started": ["inf", "inf"], "overhead": [0.0, 0.0], "slice_started": [0.0, 0.0], "held_for": [0.0, 0.0], "cpus": [0.0, 0.0], "host_memory": [0.0, 0.0], "begin": [0.0, 0.0], "limit": ["inf", "inf"], "notice": [0.0, 0.0], "gpus": [2, 1], "user": [0, 0], "preemptible": [false, false]}}');
CREATE TABLE environments (
    hash    TEXT PRIMARY KEY,
    content TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "environments" VALUES('52a2de848b36ba63d9b48420195c546f','{"HOME":"/home/ann","PATH":"/usr/bin"}');
CREATE TABLE events (
    seq     INTEGER PRIMARY KEY,  -- 1, 2, 3 ...: the order in which things happened
    at      REAL    NOT NULL,     -- seconds since the epoch, on the daemon's clock
    kind    TEXT    NOT NULL,     -- the event's name
    job     TEXT,                 -- none for what happens to the whole yard
    attempt INTEGER,
    data    TEXT    NOT NULL      -- the rest, as JSON; empty if there is none
);
INSERT INTO "events" VALUES(1,1000.0,'Opened',NULL,NULL,'{"cluster":{"nodes":[2]},"gpus":["SIMULATED-0","SIMULATED-1"],"details":{"version":"0.1.0"}}');
INSERT INTO "events" VALUES(2,1000.0,'PolicySet',NULL,NULL,'{"policy":"priority@easy@pack","details":{"configured":true}}');
INSERT INTO "events" VALUES(3,1001.0,'Submitted','1',NULL,'{"request":{"estimate":60.0,"user":"ann","preemptible":false},"details":{"work":{"command":["python","train.py"],"directory":"/home/ann","environment":"52a2de848b36ba63d9b48420195c546f","name":"python","time_limit":60.0}}}');
INSERT INTO "events" VALUES(4,1001.0,'Placed','1',1,'{"gpus":[0]}');
INSERT INTO "events" VALUES(5,1001.5,'Started','1',1,'{"details":{"handle":"4242"}}');
INSERT INTO "events" VALUES(6,1002.0,'Submitted','2',NULL,'{"request":{"gpus":2,"estimate":86400.0,"user":"ann","preemptible":false},"details":{"work":{"command":["sleep","100"],"directory":"/home/ann","environment":"52a2de848b36ba63d9b48420195c546f","name":"sleep","estimated":false}}}');
INSERT INTO "events" VALUES(7,1003.0,'Submitted','3',NULL,'{"request":{"estimate":86400.0,"memory":4000000000.0,"compute":0.0,"priority":5.0,"user":"ann","preemptible":false,"scope":[1]},"details":{"work":{"command":["true"],"directory":"/home/ann","environment":"52a2de848b36ba63d9b48420195c546f","name":"true","tags":["x"]}}}');
INSERT INTO "events" VALUES(8,1003.0,'Placed','3',1,'{"gpus":[1]}');
INSERT INTO "events" VALUES(9,1003.0,'Started','3',1,'{"details":{"handle":"4243"}}');
INSERT INTO "events" VALUES(10,1010.0,'Recalled','3',1,'{"cause":"cancelled","details":{"by":"ann"}}');
INSERT INTO "events" VALUES(11,1011.0,'Exited','3',1,'{"code":143,"cause":"cancelled"}');
INSERT INTO "events" VALUES(12,1012.0,'PolicySet',NULL,NULL,'{"policy":"sjf@easy@pack","details":{"by":"ann"}}');
INSERT INTO "events" VALUES(13,1013.0,'Submitted','4',NULL,'{"request":{"estimate":86400.0,"user":"ann","preemptible":false},"details":{"work":{"command":["false"],"directory":"/home/ann","environment":"52a2de848b36ba63d9b48420195c546f","name":"false"}}}');
INSERT INTO "events" VALUES(14,1013.0,'Held','4',NULL,'');
INSERT INTO "events" VALUES(15,1030.0,'Exited','1',1,'{"code":3}');
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
    preemptions INTEGER NOT NULL DEFAULT 0
, measured TEXT NOT NULL DEFAULT '');
INSERT INTO "jobs" VALUES(1,'1','python','ann','failed',1,'0',3,1001.0,1001.5,1030.0,0.0,'','','{"command":["python","train.py"],"directory":"/home/ann","environment":"52a2de848b36ba63d9b48420195c546f","name":"python","time_limit":60.0,"gpu_count":1,"estimate":60.0,"gpu_memory":null,"from":null}','job','',0,0,'');
INSERT INTO "jobs" VALUES(2,'2','sleep','ann','queued',0,'',NULL,1002.0,NULL,NULL,0.0,'','','{"command":["sleep","100"],"directory":"/home/ann","environment":"52a2de848b36ba63d9b48420195c546f","name":"sleep","estimated":false,"gpu_count":2,"estimate":86400.0,"gpu_memory":null,"from":null}','job','',0,0,'');
INSERT INTO "jobs" VALUES(3,'3','true','ann','cancelled',1,'1',143,1003.0,1003.0,1011.0,5.0,'','cancelled','{"command":["true"],"directory":"/home/ann","environment":"52a2de848b36ba63d9b48420195c546f","name":"true","tags":["x"],"gpu_count":1,"estimate":86400.0,"gpu_memory":4000000000.0,"from":[1]}','job','',0,0,'');
INSERT INTO "jobs" VALUES(4,'4','false','ann','held',0,'',NULL,1013.0,NULL,NULL,0.0,'','','{"command":["false"],"directory":"/home/ann","environment":"52a2de848b36ba63d9b48420195c546f","name":"false","gpu_count":1,"estimate":86400.0,"gpu_memory":null,"from":null}','job','',0,0,'');
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
CREATE INDEX events_of_job ON events (job, seq) WHERE job IS NOT NULL;
CREATE INDEX events_of_yard ON events (kind, seq) WHERE job IS NULL;
CREATE INDEX jobs_open ON jobs (number) WHERE ended IS NULL;
CREATE INDEX jobs_over ON jobs (ended) WHERE ended IS NOT NULL;
CREATE INDEX jobs_by_state ON jobs (state);
CREATE INDEX jobs_by_array ON jobs (array) WHERE array <> '';
CREATE INDEX jobs_by_name ON jobs (name);
CREATE INDEX answers_by_age ON answers (at);
CREATE INDEX jobs_by_batch ON jobs (json_extract(work, '$.batch[0]')) WHERE json_extract(work, '$.batch[0]') IS NOT NULL;
CREATE INDEX runs_by_signature ON runs (signature, at);
CREATE INDEX runs_by_likeness ON runs (likeness, at);
COMMIT;
