#!/bin/bash
#SBATCH --job-name=resume
#SBATCH --gres=gpu:1
#SBATCH --time=00:05:00
#SBATCH --requeue
#SBATCH --signal=USR1@60
#SBATCH --open-mode=append
#SBATCH --output=resume.out

CKPT=checkpoint.txt
echo "restart ${SLURM_RESTART_COUNT:-0}"

# The batch shell passes the signal on to the training.
trap 'kill -USR1 "$pid" 2>/dev/null; wait "$pid"; exit 0' USR1
python3 train.py --checkpoint "$CKPT" --wait-for-signal &
pid=$!
wait "$pid"
