"""`gpuyard top`: GPUs and jobs live on a terminal."""
