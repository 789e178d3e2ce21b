#!/bin/bash
#SBATCH --job-name=conda-env
#SBATCH --account=lab
#SBATCH --qos=normal
#SBATCH --gres=gpu:1
#SBATCH --mem-per-cpu=4000M
#SBATCH --mail-type=END,FAIL
#SBATCH --mail-user=someone@example.org
#SBATCH --time=00:30:00

module purge
module load cuda/12.1

# Conda may be there or not.
if command -v conda >/dev/null 2>&1; then
  eval "$(conda shell.bash hook)"
  conda activate base
fi

cd "$SLURM_SUBMIT_DIR"
python3 train.py --lr 0.01
