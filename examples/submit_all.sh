#!/bin/sh
# Queue one job of each kind, with different wishes, and wait until all are over. A daemon must be up:
#
#     gpuyard up                          # on this machine's GPUs
#     gpuyard up --simulate-gpus 4x16G    # or on simulated ones, to try it
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python3}
export OMP_NUM_THREADS=1 # a job that has a GPU does not need every core

matmul=$(gpuyard submit --name matmul --gpus 2 --estimate 10s -- "$python" matmul.py)
cnn=$(gpuyard submit --name cnn --estimate 10s -- "$python" cnn.py)
trees=$(gpuyard submit --name trees --gpu-memory 4G --estimate 5s -- "$python" boosted_trees.py)
recurrent=$(gpuyard submit --name recurrent --gpu-memory 4G --priority 5 -- "$python" recurrent.py)
digits=$(gpuyard submit --name digits --time 5m -- "$python" mnist_like.py --epochs 15 --id digits)

gpuyard ps
gpuyard wait "$matmul" "$cnn" "$trees" "$recurrent" "$digits"
gpuyard history --limit 5
gpuyard logs "$digits"
