#!/bin/bash
#SBATCH --job-name=evaluate
#SBATCH --dependency=afterok:prepare
#SBATCH --gres=gpu:1
#SBATCH --time=5
#SBATCH --kill-on-invalid-dep=yes

cat prepared.txt
python3 train.py --epochs 1
