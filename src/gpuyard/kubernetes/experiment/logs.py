"""The end of what a pod printed. It is no JSON, which is all that `Api` speaks, and it comes from the pod's machine."""

from __future__ import annotations

import http.client

from gpuyard.kubernetes.api import core
from gpuyard.kubernetes.kubeconfig import Connection

_TIMEOUT = 10.0
_SIZE, _LINES = 2**18, 500


def tail(connection: Connection, namespace: str, pod: str) -> bytes:
    """The last lines of a pod's output; nothing where its machine is gone, or we may not read it."""
    link: http.client.HTTPConnection
    if connection.tls:
        link = http.client.HTTPSConnection(
            connection.host, connection.port, timeout=_TIMEOUT, context=connection.context
        )
    else:
        link = http.client.HTTPConnection(connection.host, connection.port, timeout=_TIMEOUT)
    authorization = connection.authorization()
    path = f"{connection.path}{core('pods', namespace, pod, 'log')}?limitBytes={_SIZE}&tailLines={_LINES}"
    try:
        link.request("GET", path, headers={"Authorization": authorization} if authorization else {})
        answer = link.getresponse()
        return answer.read(_SIZE) if answer.status == 200 else b""
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        link.close()
