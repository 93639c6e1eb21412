"""What KubeRay accepts as a RayCluster (ray.io/v1), as JSON schema, for no package has its CRD.

Source of names and types: "KubeRay CRD API reference" of KubeRay 1.7. Pod templates, environment variables and
resources are Kubernetes' own and checked by `kubernetes-validate`. Unknown keys are refused everywhere: a real server
would drop them silently.
"""

from __future__ import annotations

from typing import Any

_TEXT: dict[str, Any] = {"type": "string"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_FLAG: dict[str, Any] = {"type": "boolean"}
_TEXTS: dict[str, Any] = {"type": "object", "additionalProperties": _TEXT}
_KUBERNETES: dict[str, Any] = {"type": "object"}


def _object(required: tuple[str, ...] = (), **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


_HEAD = _object(
    ("template",),
    serviceType={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    headService=_KUBERNETES,
    enableIngress=_FLAG,
    resources=_TEXTS,
    labels=_TEXTS,
    rayStartParams=_TEXTS,
    template=_KUBERNETES,
)
_WORKERS = _object(
    ("groupName", "template"),
    groupName={"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"},
    replicas=_COUNT,
    minReplicas=_COUNT,
    maxReplicas=_COUNT,
    idleTimeoutSeconds=_COUNT,
    numOfHosts=_COUNT,
    suspend=_FLAG,
    resources=_TEXTS,
    labels=_TEXTS,
    rayStartParams=_TEXTS,
    scaleStrategy=_object(workersToDelete={"type": "array", "items": _TEXT}),
    template=_KUBERNETES,
)
_AUTOSCALER = _object(
    resources=_KUBERNETES,
    image=_TEXT,
    imagePullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
    securityContext=_KUBERNETES,
    idleTimeoutSeconds=_COUNT,
    upscalingMode={"enum": ["Default", "Aggressive", "Conservative"]},
    version={"enum": ["v1", "v2"]},
    env={"type": "array", "items": _KUBERNETES},
    envFrom={"type": "array", "items": _KUBERNETES},
    volumeMounts={"type": "array", "items": _KUBERNETES},
)
_SPEC = _object(
    ("headGroupSpec",),
    rayVersion=_TEXT,
    authOptions=_object(mode={"enum": ["disabled", "token"]}, secretName=_TEXT, enableK8sTokenAuth=_FLAG),
    autoscalerOptions=_AUTOSCALER,
    enableInTreeAutoscaling=_FLAG,
    gcsFaultToleranceOptions=_KUBERNETES,
    headServiceAnnotations=_TEXTS,
    managedBy=_TEXT,
    suspend=_FLAG,
    headGroupSpec=_HEAD,
    workerGroupSpecs={"type": "array", "items": _WORKERS},
)
RAY_CLUSTER = _object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayCluster"},
    metadata=_KUBERNETES,
    spec=_SPEC,
)
