#!/bin/sh
#SBATCH --job-name=tf --gres=gpu:a100:1   # one of the big ones
#SBATCH --time=2-0  --open-mode=append
#SBATCH -o tf.out

export TF_FORCE_GPU_ALLOW_GROWTH=true
export TF_CPP_MIN_LOG_LEVEL=2
export XLA_FLAGS="--xla_gpu_cuda_data_dir=/usr/local/cuda"
echo "visible: $CUDA_VISIBLE_DEVICES"
srun -n 1 -c 4 --gres=gpu:1 python3 train.py --epochs 1
