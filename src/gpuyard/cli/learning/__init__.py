"""`gpuyard learn` and `gpuyard adapt`: trained policies, and networks that grow within a budget."""
