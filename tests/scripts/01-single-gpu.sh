#!/bin/bash
#SBATCH --job-name=single
#SBATCH --partition=gpu
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --gres=gpu:1
#SBATCH --time=01:30:00
#SBATCH --output=single-%j.out

set -euo pipefail

echo "Job $SLURM_JOB_ID ($SLURM_JOB_NAME) on $SLURM_JOB_NODELIST"
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
echo "threads $OMP_NUM_THREADS"
python3 train.py --epochs 2
