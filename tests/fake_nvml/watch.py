"""Open the GPUs, say how that went, and read them once for every line of input."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from gpuyard.gpus.base import GpusUnavailable
from gpuyard.gpus.nvml import NvmlGpus


def main() -> None:
    try:
        gpus = NvmlGpus(retry_driver=float(sys.argv[1]), retry_gpu=float(sys.argv[2]))
    except GpusUnavailable as error:
        print(json.dumps({"problem": str(error)}), flush=True)
        return
    print(json.dumps({"problem": None}), flush=True)
    for _ in sys.stdin:
        readings = [asdict(reading) for reading in gpus.read()]
        print(json.dumps({"devices": [asdict(device) for device in gpus.devices], "readings": readings}), flush=True)
    gpus.close()


if __name__ == "__main__":
    main()
