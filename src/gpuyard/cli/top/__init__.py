"""`gpuyard top`: the yard, live on a terminal."""
