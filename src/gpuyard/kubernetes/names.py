"""What things are called on a cluster: labels, annotations and resources that gpuyard reads, and those that it writes.

What is said of a pod may be a label or an annotation; where both are there, the annotation counts.
"""

from __future__ import annotations

SCHEDULER = "gpuyard"  # `spec.schedulerName` of the pods that are ours
DOMAIN = "gpuyard.dev"

# -- read, of pods
GPU_MEMORY = "gpuyard.dev/gpu-memory"
"""How much of each GPU a pod wants, as in `6994Mi`; of a node, how much each of its GPUs has."""
GPU_COUNT = "gpuyard.dev/gpu-count"  # on how many GPUs of one node a pod wants that much; 1 if nothing is said
GANG = "gpuyard.dev/gang"  # the gang that a pod is a member of: all start together, or none does
GANG_SIZE = "gpuyard.dev/gang-size"  # how many members a gang must have at least
GANG_TIMEOUT = "gpuyard.dev/gang-timeout"  # how long a gang may be incomplete, as in `10m`
DURATION = "gpuyard.dev/duration"  # how long a pod is expected to run, as in `90s`
ADMISSION = "gpuyard.dev/admission"
"""`requests`: the pod's request counts, even if usage of similar pods is known; `usage`: measured usage counts."""
PREEMPTIBLE = "gpuyard.dev/preemptible"
"""`false`: never evicted by us; `true`: also where a namespace has less than its share."""
WORKLOAD = "gpuyard.dev/workload"
"""What a pod has in common with those that use the same memory; by default that is worked out of its containers."""
SEED_MEMORY = "GPU_MEM_REQ"  # miB of a GPU, as pods of Kube-Knots' scheduler for Kubernetes say it

# -- read, of namespaces
QUOTA = "gpuyard.dev/gpu-quota"  # how many GPUs the pods of a namespace may have at once
SHARE = "gpuyard.dev/share"  # what share a namespace deserves, relative to the others' 1

# -- resources and labels that others define
GPU = "nvidia.com/gpu"
ALIYUN_MEMORY = "aliyun.com/gpu-mem"  # giB of a GPU, as Alibaba's gpushare extender counts them
NODE_GPU_MEMORY = "nvidia.com/gpu.memory"  # miB of each GPU of a node, by NVIDIA's GPU feature discovery
NODE_GPU_MODEL = "nvidia.com/gpu.product"

# -- written, on pods that we bind
INDICES = "gpuyard.dev/gpu-indices"
"""The GPUs of its node that a pod has, as in `0,2`; a `fieldRef` makes `NVIDIA_VISIBLE_DEVICES` of it."""
CHARGED = "gpuyard.dev/gpu-memory-charged"  # what the pod is counted with on each of its GPUs
ADMITTED = "gpuyard.dev/admitted-by"  # `fit`, `history`, `cbp` or `pp`

LEASE = "gpuyard-scheduler"
