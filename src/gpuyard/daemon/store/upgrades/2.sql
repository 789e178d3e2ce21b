-- Version 1 looked through the whole log for the policy, and through all jobs to count them.
CREATE INDEX events_of_yard ON events (kind, seq) WHERE job IS NULL;
CREATE INDEX jobs_by_state ON jobs (state);
