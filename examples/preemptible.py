"""A job that can be stopped, and goes on where it was: `gpuyard submit --preemptible -- python preemptible.py`."""

import os
import signal
import sys
import time
from pathlib import Path

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
checkpoint = Path(os.environ.get("GPUYARD_CHECKPOINT_DIR", "."), "step")
asked: list[int] = []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: asked.append(number))

step = int(checkpoint.read_text()) if checkpoint.exists() else 0
print(f"attempt {int(os.environ.get('GPUYARD_RESTART_COUNT', 0)) + 1} begins at step {step}", flush=True)
while step < steps and not asked:
    time.sleep(0.02)  # the work of one step
    step += 1
    print(f"step {step}", flush=True)

checkpoint.with_suffix(".new").write_text(str(step))
checkpoint.with_suffix(".new").rename(checkpoint)  # whole or not at all, whatever happens meanwhile
print(f"asked to stop at step {step}" if step < steps else f"done after {step} steps")
