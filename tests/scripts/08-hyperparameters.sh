#!/usr/bin/env bash
#SBATCH --job-name=hyper
#SBATCH --array=0-7%4
#SBATCH --gpus-per-task=1
#SBATCH --ntasks=1
#SBATCH --time=15:00
#SBATCH --output=hyper.%a

LRS=(0.1 0.01 0.001 0.0001)
SEEDS=(1 2)
LR=${LRS[$((SLURM_ARRAY_TASK_ID % 4))]}
SEED=${SEEDS[$((SLURM_ARRAY_TASK_ID / 4))]}
python3 train.py --lr "$LR" --seed "$SEED"
