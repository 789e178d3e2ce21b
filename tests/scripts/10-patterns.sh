#!/bin/bash
## SBATCH --gpus=9 (commented out)
##SBATCH --gpus=8
#SBATCH --job-name 'my job' --gpus=1
#SBATCH --output=out/%x-%u-%5j-%N-100%%.txt
#SBATCH --chdir=work
#SBATCH --export=ALL,GREETING=hello,WHO="the world"
#SBATCH --nice=50 --comment="a remark"
#SBATCH --deadline=now+2hours --begin=now --no-requeue --hold

pwd
echo "$GREETING $WHO"
echo "$0 $*"
#SBATCH --gpus=4
