"""What may be wrong on a machine, and how to mend it: one small look after another."""
