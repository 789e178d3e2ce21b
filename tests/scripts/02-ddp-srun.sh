#!/bin/bash
#SBATCH -J ddp
#SBATCH -N 1
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH -t 120
#SBATCH -o %x-%j.log

# One process for each GPU, started by srun.
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + ${SLURM_JOB_ID%%_*} % 10000))
export WORLD_SIZE=$SLURM_NTASKS
echo "master $MASTER_ADDR world $WORLD_SIZE"

srun --kill-on-bad-exit=1 -l python3 train.py --epochs 1
