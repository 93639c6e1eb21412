"""Manifests pass the schemas of Kubernetes, KubeRay and the Prometheus operator, and fit together and our programs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.prometheus_operator import v1, v1alpha1

from deploy.fleet.description_file import read_fleet
from gateway.admission.keys import Access
from gateway.api import guard
from tests.helpers.command_lines import parsed
from tests.helpers.manifests import ROOT, VARIANTS, Manifest, kustomization, manifests_of, pod_templates
from tests.helpers.ray_cluster_schema import RAY_CLUSTER
from worker.server import app as worker_app

OPEN_PATHS = {
    "gateway": {path for path, access in guard._ACCESS.items() if access is Access.OPEN},
    "worker": {path for _, path, _ in worker_app._ROUTES if worker_app._ACCESS.get(path) == worker_app.Access.OPEN},
}
KUBERNETES = "1.31"  # the oldest that still gets fixes
OPERATOR_KINDS = {
    "ServiceMonitor": v1.ServiceMonitor,
    "PodMonitor": v1.PodMonitor,
    "ScrapeConfig": v1alpha1.ScrapeConfig,
}
CASES = [
    pytest.param(manifest, id=f"{variant}-{manifest['kind']}-{manifest['metadata']['name']}")
    for variant in VARIANTS
    for manifest in manifests_of(variant)
]
PODS = [
    pytest.param(variant, template, id=f"{variant}-{name}")
    for variant in VARIANTS
    for manifest in manifests_of(variant)
    for name, template in pod_templates(manifest).items()
]
OURS = [
    pytest.param(container, id=f"{variant}-{name}-{container['name']}")
    for variant in VARIANTS
    for manifest in manifests_of(variant)
    for name, template in pod_templates(manifest).items()
    for container in template["spec"]["containers"]
    if "args" in container and "command" not in container
]


def named(variant: str, kind: str, name: str) -> Manifest:
    return next(m for m in manifests_of(variant) if (m["kind"], m["metadata"]["name"]) == (kind, name))


def check_core(manifest: Manifest) -> None:
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def check_against_model(manifest: Manifest) -> None:
    """Every key that is there is known: it is in what the model makes of it."""
    model = OPERATOR_KINDS[manifest["kind"]].model_validate(manifest)
    seen = json.loads(model.model_dump_json(by_alias=True, exclude_none=True))
    assert_within(manifest, seen, manifest["kind"])


def assert_within(wanted: Any, seen: Any, place: str) -> None:
    if isinstance(wanted, dict):
        assert wanted.keys() <= seen.keys(), f"{place}: unknown {wanted.keys() - seen.keys()}"
        for key, value in wanted.items():
            assert_within(value, seen[key], f"{place}.{key}")
    elif isinstance(wanted, list):
        assert len(wanted) == len(seen), place
        for number, (one, other) in enumerate(zip(wanted, seen, strict=True)):
            assert_within(one, other, f"{place}[{number}]")
    else:
        assert wanted == seen, place


@pytest.mark.parametrize("manifest", CASES)
def test_its_schema_accepts_it(manifest: Manifest) -> None:
    if manifest["kind"] == "RayCluster":
        jsonschema.validate(manifest, RAY_CLUSTER)
        for template in pod_templates(manifest).values():
            check_core({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": template["spec"]})
    elif manifest["kind"] in OPERATOR_KINDS:
        check_against_model(manifest)
    else:
        check_core(manifest)


def test_the_schemas_refuse_a_misspelt_key() -> None:
    cluster = named("ray", "RayCluster", "canopy")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**cluster, "spec": {**cluster["spec"], "rayVersions": "1"}}, RAY_CLUSTER)
    monitor = named("ray", "ServiceMonitor", "canopy-gateway")
    with pytest.raises(AssertionError, match="unknown"):
        check_against_model({**monitor, "spec": {**monitor["spec"], "endpoint": []}})
    deployment = named("plain", "Deployment", "canopy-gateway")
    with pytest.raises(kubernetes_validate.ValidationError):
        check_core({**deployment, "spec": {**deployment["spec"], "replica": 2}})


@pytest.mark.parametrize("container", OURS)
def test_our_programs_accept_the_arguments(container: Manifest) -> None:
    secrets = {variable["name"]: f"value of {variable['name']}" for variable in container["env"]}
    settings = parsed(container["args"], {n: v for n, v in secrets.items() if n.startswith("CANOPY_")})
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert settings.model_dump()["port"] == ports["http"]
    assert settings.model_dump()["host"] == "0.0.0.0"


@pytest.mark.parametrize("container", OURS)
def test_probes_ask_paths_that_are_open_without_a_key(container: Manifest) -> None:
    names = {port["name"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        get = container[probe]["httpGet"]
        assert get["path"] in OPEN_PATHS[container["args"][0]] and get["port"] in names


@pytest.mark.parametrize(("variant", "template"), PODS)
def test_pods_are_confined_and_have_room(variant: str, template: Manifest) -> None:
    spec = template["spec"]
    assert spec["enableServiceLinks"] is False, "its variables would look like settings of ours"
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 10001
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    for container in spec["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
        for mount in container["volumeMounts"]:
            assert mount["name"] in volumes
        for variable in container.get("env", []):
            assert not variable["name"].endswith(("KEY", "TOKEN")) or "secretKeyRef" in variable["valueFrom"]
    assert set(volumes) <= {mount["name"] for c in spec["containers"] for mount in c["volumeMounts"]}
    if any("nvidia.com/gpu" in c["resources"]["limits"] for c in spec["containers"]):
        assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
        assert {"name": "shm", "mountPath": "/dev/shm"} in spec["containers"][0]["volumeMounts"]


@pytest.mark.parametrize(("variant", "template"), PODS)
def test_pods_live_as_long_as_their_requests(variant: str, template: Manifest) -> None:
    for container in template["spec"]["containers"]:
        if "args" not in container or "command" in container:
            continue
        settings = parsed(container["args"]).model_dump()
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
        needed_s = settings["shutdown_grace_s"] + settings.get("shutdown_settle_s", 0) + int(hook[1])
        assert needed_s < template["spec"]["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_selectors_find_pods(variant: str) -> None:
    manifests = manifests_of(variant)
    labels = [
        {**template["metadata"]["labels"], **({"ray.io/cluster": "canopy"} if variant == "ray" else {})}
        for manifest in manifests
        for template in pod_templates(manifest).values()
    ]

    def finds(selector: dict[str, str]) -> bool:
        return any(selector.items() <= found.items() for found in labels)

    for manifest in manifests:
        spec = manifest.get("spec", {})
        if manifest["kind"] == "Service":
            assert finds(spec["selector"])
        elif manifest["kind"] in ("PodDisruptionBudget", "Deployment", "StatefulSet"):
            assert finds(spec["selector"]["matchLabels"])
        elif manifest["kind"] == "NetworkPolicy":
            assert finds(spec["podSelector"]["matchLabels"])
    monitor = named(variant, "ServiceMonitor", "canopy-gateway")["spec"]["selector"]["matchLabels"]
    services = [m["metadata"]["labels"] for m in manifests if m["kind"] == "Service"]
    assert sum(monitor.items() <= found.items() for found in services) == 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_services_lead_to_the_gateways_port(variant: str) -> None:
    for name in ("canopy-gateway", "canopy-gateway-pods"):
        (port,) = named(variant, "Service", name)["spec"]["ports"]
        assert (port["port"], port["targetPort"]) == (8000, "http")


def test_discovery_selects_the_workers_and_may_watch_them() -> None:
    gateway = named("plain", "Deployment", "canopy-gateway")["spec"]["template"]["spec"]
    settings = parsed(gateway["containers"][0]["args"]).model_dump()
    worker = named("plain", "StatefulSet", "canopy-worker")["spec"]["template"]
    selected = dict(pair.split("=", 1) for pair in settings["selector"])
    assert selected.items() <= worker["metadata"]["labels"].items()
    assert settings["service_discovery_port"] == worker["spec"]["containers"][0]["ports"][0]["containerPort"]
    assert gateway["serviceAccountName"] == named("plain", "ServiceAccount", "canopy-gateway")["metadata"]["name"]
    (rule,) = named("plain", "Role", "canopy-gateway")["rules"]
    assert rule == {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}


def test_ray_is_closed_and_the_same_everywhere() -> None:
    spec = named("ray", "RayCluster", "canopy")["spec"]
    assert spec["headGroupSpec"]["rayStartParams"]["dashboard-host"] == "127.0.0.1"
    environments = [spec["autoscalerOptions"]["env"]]
    for template in pod_templates(named("ray", "RayCluster", "canopy")).values():
        environments += [container["env"] for container in template["spec"]["containers"]]
    for environment in environments:
        variables = {variable["name"]: variable for variable in environment}
        assert variables["RAY_AUTH_MODE"]["value"] == "token"
        assert variables["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == "canopy-ray-token"
    pinned = (ROOT.parents[1] / "constraints.txt").read_text().splitlines()
    assert f"ray=={spec['rayVersion']}" in pinned


def test_gateways_of_ray_attach_to_its_head() -> None:
    cluster = named("ray", "RayCluster", "canopy")
    gateway = next(t for name, t in pod_templates(cluster).items() if name == "ray gateway")["spec"]["containers"][1]
    assert parsed(gateway["args"]).model_dump()["ray_address"] == f"{cluster['metadata']['name']}-head-svc:6379"


def test_containers_that_attach_to_the_ray_beside_them_share_what_that_takes() -> None:
    """Sockets in /tmp, and process ids: tests/deploy/clusters/test_ray_up.py attaches the same way."""
    pairs = [
        t["spec"]
        for t in pod_templates(named("ray", "RayCluster", "canopy")).values()
        if len(t["spec"]["containers"]) > 1
    ]
    assert len(pairs) == 2
    for spec in pairs:
        assert spec["shareProcessNamespace"] is True
        mounts = [{m["mountPath"]: m["name"] for m in container["volumeMounts"]} for container in spec["containers"]]
        for path in ("/tmp", "/dev/shm", "/var/cache/canopy"):
            assert mounts[0][path] == mounts[1][path]


def test_the_fleet_of_the_ray_variant_is_valid_and_fits_its_nodes() -> None:
    fleet = read_fleet(str(ROOT / "ray/fleet.yaml"))
    cluster = named("ray", "RayCluster", "canopy")["spec"]
    gpus = next(group for group in cluster["workerGroupSpecs"] if group["groupName"] == "gpu")
    assert (fleet.models[0].replicas.min, fleet.models[0].replicas.max) == (gpus["replicas"], gpus["maxReplicas"])
    sidecar = cluster["headGroupSpec"]["template"]["spec"]["containers"][1]
    assert (ROOT.parent / "docker" / sidecar["command"][0]).is_file()
    parsed(["serve", "--cluster", *sidecar["args"]])


@pytest.mark.parametrize("variant", VARIANTS)
def test_prometheus_finds_what_its_configuration_names(variant: str) -> None:
    text = (ROOT.parent / "prometheus/prometheus-kubernetes.yml").read_text()
    jobs = {job["job_name"]: job for job in yaml.safe_load(text)["scrape_configs"]}
    (name,) = jobs["canopy-gateway"]["dns_sd_configs"][0]["names"]
    assert named(variant, "Service", name)["spec"]["clusterIP"] == "None"
    url = jobs["canopy-worker"]["http_sd_configs"][0]["url"]
    scrape = named(variant, "ScrapeConfig", "canopy-worker")["spec"]["httpSDConfigs"][0]["url"]
    assert scrape.replace(".canopy.svc", "") == url


@pytest.mark.parametrize("variant", VARIANTS)
def test_images_are_named_once(variant: str) -> None:
    images = {image["name"] for image in kustomization(ROOT / variant)["images"]}
    used = {
        container["image"]
        for manifest in manifests_of(variant)
        for template in pod_templates(manifest).values()
        for container in template["spec"]["containers"]
    }
    assert used == images == {"canopy-cpu", "canopy-cuda"}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_builds_it(variant: str, tmp_path: Path) -> None:
    done = subprocess.run(["kubectl", "kustomize", ROOT / variant], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    assert {m["metadata"].get("namespace", "canopy") for m in built} == {"canopy"}
    images = [
        container["image"] for m in built for t in pod_templates(m).values() for container in t["spec"]["containers"]
    ]
    assert images and all(image.startswith("registry.example.com/canopy:") for image in images)
