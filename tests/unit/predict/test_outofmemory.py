"""Which logs tell of a job that ran out of GPU memory."""

from __future__ import annotations

import time

import pytest

from gpuyard.predict.oom import TAIL, recognise

GIB, MIB = 2**30, 2**20
FRAMES = 'Traceback (most recent call last):\n  File "train.py", line 155, in <module>\n    main()\n'
TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.90 GiB "
    "of which 991.56 MiB is free. Process 7 has 3.10 GiB memory in use. Including non-PyTorch memory, this process has "
    "11.50 GiB memory in use. Of the allocated memory 11.00 GiB is allocated by PyTorch\n"
)
OLD_TORCH = (
    "RuntimeError: CUDA out of memory. Tried to allocate 1024.00 MiB (GPU 0; 15.90 GiB total capacity; 14.25 GiB "
    "already allocated; 991.56 MiB free; 607.00 KiB cached)\n"
)
TORCHRUN = (
    "E1116 15:00:01.000 12 torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: 1) local_rank: 0\n"
    + FRAMES
    + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    + "=" * 60
    + "\ntrain.py FAILED\n"
    + "-" * 60
    + "\nFailures:\n  <NO_OTHER_FAILURES>\nRoot Cause (first observed failure):\n[0]:\n  time      : 15:00:01\n"
    + "  host      : box\n  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 12)\n"
    + "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n"
)
TENSORFLOW = (
    "2026-11-16 15:00:01.1: W tensorflow/core/framework/op_kernel.cc:1763] OP_REQUIRES failed at conv_ops.cc:109 : "
    "RESOURCE_EXHAUSTED: OOM when allocating tensor with shape[64,512,256,64] and type float on "
    "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc\n"
)
DRIVER = (
    "2026-11-16 15:00:01: E tensorflow/stream_executor/cuda/cuda_driver.cc:806] failed to allocate 2.53G "
    "(2715310336 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"
)
JAX = (
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 "
    "bytes.\n"
    "BufferAssignment OOM Debugging.\nBufferAssignment stats:\n             parameter allocation:  372.76MiB\n"
    "                 total allocation:   14.44GiB\n"
)
MXNET = (
    "mxnet.base.MXNetError: [11:18:15] src/storage/./pooled_storage_manager.h:157: cudaMalloc failed: out of memory\n"
    "Stack trace:\n  [bt] (0) libmxnet.so(+0x49640b) [0x7fcd6d02340b]\n"
)
DEATHS = {
    "torch": (FRAMES + TORCH, 2 * GIB, 11.5 * GIB),
    "torch of 2021": (FRAMES + OLD_TORCH, GIB, 14.25 * GIB),
    "torch of 2023": (FRAMES + TORCH.replace("torch.Out", "torch.cuda.Out"), 2 * GIB, 11.5 * GIB),
    "a rank": ("".join(f"[rank0]: {line}\n" for line in (FRAMES + TORCH).splitlines()), 2 * GIB, 11.5 * GIB),
    "torchrun": (FRAMES + TORCH + TORCHRUN, 2 * GIB, 11.5 * GIB),
    "a rank whose peers fail of it": (
        FRAMES + TORCH + FRAMES + "torch.distributed.DistBackendError: NCCL error: remote process exited\n" + TORCHRUN,
        2 * GIB,
        11.5 * GIB,
    ),
    "hip": ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 512.00 MiB.\n", 512 * MIB, 0),
    "a kernel": ("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be reported later.\n", 0, 0),
    "cublas": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n",
        0,
        0,
    ),
    "tensorflow": (TENSORFLOW, 64 * 512 * 256 * 64 * 4, 0),
    "tensorflow's exception": (
        FRAMES + "tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node Conv2D}} OOM "
        "when allocating tensor with shape[2,3] and type half on /job:localhost/device:GPU:0 by allocator GPU_0_bfc\n",
        12,
        0,
    ),
    "tensorflow's exception without a reason": (
        TENSORFLOW + "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:\n",
        64 * 512 * 256 * 64 * 4,
        0,
    ),
    "tensorflow's driver": (DRIVER, 2.53 * GIB, 0),
    "jax": (FRAMES + JAX, 4770354232, 0),
    "cupy": (
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes (allocated so far: 25,600 B)",
        8e9,
        25600,
    ),
    "old cupy": ("cupy.cuda.memory.OutOfMemoryError: out of memory to allocate 1200 bytes (total 72 bytes)", 1200, 0),
    "numba": ("numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY", 0, 0),
    "mxnet": (MXNET, 0, 0),
    "c": ("terminate called after throwing\ncudaErrorMemoryAllocation: out of memory\nAborted (core dumped)\n", 0, 0),
    "while it was handled": (
        FRAMES + TORCH + "\nDuring handling of the above exception, another exception occurred:\n\n" + FRAMES
        + "AttributeError: 'NoneType' object has no attribute 'close'\n",
        2 * GIB,
        11.5 * GIB,
    ),
    "behind a progress bar": ("12/100 [==>   ]\r13/100 [==>   ]\r" + TORCH.replace("\n", "\r\n"), 2 * GIB, 11.5 * GIB),
    "in colours": ("\x1b[31m" + TORCH + "\x1b[0m", 2 * GIB, 11.5 * GIB),
}  # fmt: skip


@pytest.mark.parametrize("name", DEATHS)
def test_a_lack_of_gpu_memory_is_recognised_and_what_was_wanted(name: str) -> None:
    log, wanted, held = DEATHS[name]
    death = recognise(b"epoch 1\nepoch 2\n" + log.encode())
    assert death is not None
    assert death.wanted == pytest.approx(wanted)
    assert death.held == pytest.approx(held)
    assert death.said
    assert len(death.said) <= 200


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16", "latin-1"])
def test_the_encoding_does_not_matter(encoding: str) -> None:
    death = recognise(("Größe\n" + TORCH).encode(encoding))
    assert death is not None
    assert death.wanted == 2 * GIB


EPOCHS = "".join(f"epoch {n}: loss 0.1\n" for n in range(60))


@pytest.mark.parametrize(
    "log",
    [
        "",
        "epoch 1\nValueError: shapes do not match\n",
        FRAMES + TORCH + "halving the batch size\n" + EPOCHS,
        "WARNING: CUDA out of memory. Tried to allocate 2.00 GiB; skipping the batch\n" + EPOCHS[:400],
        TORCH + "going on\n" + FRAMES + "KeyError: 'label'\n",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB for an array\n",
        "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9\n",
        TENSORFLOW.replace("device:GPU:0 by allocator GPU_0_bfc", "device:CPU:0 by allocator cpu"),
        "ResourceExhaustedError: failed to allocate checkpoint; No space left on device\n",
        "grpc RESOURCE_EXHAUSTED: Received message larger than max (5 vs. 4)\n",
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`\n",
        "MemoryError\n",
    ],
)
def test_other_ends_are_not_taken_for_it(log: str) -> None:
    assert recognise(log.encode()) is None


def test_on_a_full_gpu_less_will_do_but_not_another_error() -> None:
    assert recognise(b"RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED\n", full=True) is not None
    assert recognise(b"Segmentation fault\n", full=True) is None
    assert recognise(b"Segmentation fault\n", full=True, wordless=True) is not None
    assert recognise(b"KeyError: 'label'\n", full=True, wordless=True) is None


def test_only_the_end_of_a_log_is_read_and_nonsense_does_no_harm() -> None:
    assert recognise(TORCH.encode() + b"\n" * TAIL) is None
    assert recognise(bytes(range(256)) * 300) is None
    huge = f"CUDA out of memory. Tried to allocate {'9' * 400} GiB\nOOM when allocating tensor with shape[{'9' * 400}]"
    assert recognise(huge.encode()) is not None


@pytest.mark.parametrize(
    "piece", [b"NCCL ", b"ResourceExhaustedError ", b"a.A.", b"(a pid=1", b"\x1b[", b"memory\n", b"\n"]
)
def test_nobody_can_keep_the_daemon_busy_with_a_log(piece: bytes) -> None:
    began = time.process_time()
    recognise(b"memory " + piece * (TAIL // len(piece)), full=True, wordless=True)
    assert time.process_time() - began < 5
