"""Kubernetes manifests of deploy/kubernetes as Python objects, and the pods that they make."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2] / "deploy/kubernetes"
VARIANTS = ("plain", "ray")
Manifest = dict[str, Any]


def kustomization(folder: Path) -> Manifest:
    """Its kustomization.yaml."""
    return dict(yaml.safe_load((folder / "kustomization.yaml").read_text()))


def files_of(folder: Path) -> Iterator[Path]:
    """The manifest files that a kustomization names, through other folders too."""
    named = kustomization(folder)
    for name in [*named.get("resources", []), *named.get("components", [])]:
        path = (folder / name).resolve()
        if path.is_dir():
            yield from files_of(path)
        else:
            yield path


@cache
def manifests_of(variant: str) -> list[Manifest]:
    """All objects of a variant, with those of the monitoring component."""
    paths = [*files_of(ROOT / variant), *files_of(ROOT / "monitoring")]
    return [manifest for path in paths for manifest in yaml.safe_load_all(path.read_text())]


def pod_templates(manifest: Manifest) -> dict[str, Manifest]:
    """Pod templates of an object by a name for people: of workloads one, of a RayCluster one for each group."""
    kind, spec = manifest["kind"], manifest.get("spec", {})
    if kind == "RayCluster":
        groups = {f"ray {group['groupName']}": group["template"] for group in spec["workerGroupSpecs"]}
        return {"ray head": spec["headGroupSpec"]["template"], **groups}
    if kind in ("Deployment", "StatefulSet"):
        return {f"{kind} {manifest['metadata']['name']}": spec["template"]}
    return {}
