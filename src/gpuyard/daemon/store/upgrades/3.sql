-- Version 2 knew neither leases nor arrays, retries and preemption.
ALTER TABLE jobs ADD COLUMN kind TEXT NOT NULL DEFAULT 'job';
ALTER TABLE jobs ADD COLUMN array TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN failures INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN preemptions INTEGER NOT NULL DEFAULT 0;
CREATE INDEX jobs_by_array ON jobs (array) WHERE array <> '';
CREATE INDEX jobs_by_name ON jobs (name);
