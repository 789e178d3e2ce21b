#!/bin/bash -l
#SBATCH --job-name="torchrun test"
#SBATCH --nodes 1
#SBATCH --ntasks 1
#SBATCH --gpus 2
#SBATCH --cpus-per-task 8
#SBATCH --time 0-02:00
#SBATCH --exclusive

GPUS=${SLURM_GPUS:-1}
nodes=( $(scontrol show hostnames $SLURM_JOB_NODELIST) )
head_node=${nodes[0]}
echo "Head node: $head_node"

launch() {  # stands in for torchrun, which starts a process for each GPU
  for local_rank in $(seq 0 $(($1 - 1))); do
    LOCAL_RANK=$local_rank WORLD_SIZE=$1 "${@:2}" &
  done
  wait
}
srun bash -c 'echo "step on $SLURM_NODEID"'
launch "$GPUS" sh -c 'echo "local rank $LOCAL_RANK of $WORLD_SIZE"'
