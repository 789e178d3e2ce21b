#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --array=1-3
#SBATCH --gres=gpu:1
#SBATCH --time=10
#SBATCH --output=logs/sweep_%A_%a.out
#SBATCH --error=logs/sweep_%A_%a.err

# Line number $SLURM_ARRAY_TASK_ID of params.txt is what this task is called with.
ARGS=$(sed -n "${SLURM_ARRAY_TASK_ID}p" params.txt)
echo "task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT: $ARGS"
echo "a warning" >&2
python3 train.py $ARGS
