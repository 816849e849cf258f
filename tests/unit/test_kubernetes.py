"""deploy/kubernetes: that the parts fit together. `make check` validates each file against Kubernetes' schemas."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml

from tarry import __version__
from tarry.settings.model import Settings
from tarry.topology.load import load

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
BASE = FOLDER / "base"
CUSTOM = {"ServiceMonitor"}


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


ROUTER, APPLY = read(BASE / "router.yaml"), read(BASE / "apply.yaml")
SECRETS = {
    part["metadata"]["name"]: part["stringData"]
    for part in yaml.safe_load_all((FOLDER / "secrets.example.yaml").read_text())
}


def named_files(kustomization: Path) -> Iterator[Path]:
    """The files that a kustomization names, and the kustomizations of the folders that it names."""
    about = read(kustomization)
    for name in [*about.get("resources", []), *about.get("components", [])]:
        path = (kustomization.parent / name).resolve()
        yield path / "kustomization.yaml" if path.is_dir() else path
    yield from (kustomization.parent / patch["path"] for patch in about.get("patches", []) if "path" in patch)
    for generator in about.get("configMapGenerator", []):
        yield from (kustomization.parent / name for name in generator["files"])


def test_every_manifest_is_named_by_a_kustomization_and_exists() -> None:
    named = {path.resolve() for one in FOLDER.rglob("kustomization.yaml") for path in named_files(one)}
    assert [path for path in named if not path.is_file()] == []
    tops = {FOLDER / "overlays" / name / "kustomization.yaml" for name in ("small", "production")}
    files = {path for path in FOLDER.rglob("*") if path.is_file()}
    assert files - named == tops | {FOLDER / "README.md", FOLDER / "secrets.example.yaml"}


def test_everything_that_selects_pods_selects_the_routers() -> None:
    labels = ROUTER["spec"]["template"]["metadata"]["labels"]
    pod = ROUTER["spec"]["template"]["spec"]
    selectors = [
        ROUTER["spec"]["selector"]["matchLabels"],
        pod["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
        read(BASE / "service.yaml")["spec"]["selector"],
        read(BASE / "disruptionbudget.yaml")["spec"]["selector"]["matchLabels"],
    ]
    assert selectors == [labels] * 4
    both = read(BASE / "networkpolicy.yaml")["spec"]["podSelector"]["matchLabels"].items()
    assert both <= labels.items()
    assert both <= APPLY["spec"]["template"]["metadata"]["labels"].items()


def test_the_service_monitor_selects_the_service_and_its_port() -> None:
    monitor, service = read(FOLDER / "components/prometheus/servicemonitor.yaml"), read(BASE / "service.yaml")
    common = read(BASE / "kustomization.yaml")["labels"][0]["pairs"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= (service["metadata"]["labels"] | common).items()
    assert [end["port"] for end in monitor["spec"]["endpoints"]] == [service["spec"]["ports"][0]["name"]]
    assert set(monitor["spec"]["endpoints"][0]) <= {"port", "path", "interval"}


def test_probes_and_ports_agree_with_the_address_of_the_service() -> None:
    (container,) = ROUTER["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one["value"] for one in container["env"]}
    assert (env["HTTP_HOST"], int(env["HTTP_PORT"])) == ("0.0.0.0", container["ports"][0]["containerPort"])  # noqa: S104
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": container["ports"][0]["name"]}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": container["ports"][0]["name"]}
    assert read(BASE / "service.yaml")["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]


@pytest.mark.parametrize("workload", [ROUTER, APPLY], ids=["router", "apply"])
def test_a_container_may_do_little(workload: dict[str, Any]) -> None:
    pod = workload["spec"]["template"]["spec"]
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 10001)
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_what_the_secrets_and_the_manifests_set_are_settings() -> None:
    known = {field.alias for field in Settings.model_fields.values()} | {"TARRY_LOG"}
    for workload, secret in ((ROUTER, "tarry-router"), (APPLY, "tarry-deploy")):
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        assert [source["secretRef"]["name"] for source in container["envFrom"]] == [secret]
        variables = SECRETS[secret] | {one["name"]: one["value"] for one in container.get("env", [])}
        assert set(variables) <= known
        assert Settings.model_validate(variables).address.vhost == "/"


def test_the_image_has_the_version_of_the_package() -> None:
    (image,) = read(BASE / "kustomization.yaml")["images"]
    assert (image["name"], image["newTag"]) == ("tarry", __version__)
    assert f"registry.example.com/tarry:{__version__}" in (FOLDER / "README.md").read_text()


def test_the_topology_of_the_production_overlay_can_be_read() -> None:
    assert [policy.name for policy in load(FOLDER / "overlays/production/topology").policies] == ["default"]


def test_the_autoscaler_scales_the_deployment_by_the_request_queue() -> None:
    scaler = read(FOLDER / "components/autoscaling/autoscaler.yaml")["spec"]
    assert scaler["scaleTargetRef"]["name"] == ROUTER["metadata"]["name"]
    selected = scaler["metrics"][0]["external"]["metric"]["selector"]["matchLabels"]
    assert selected == {"queue": load(FOLDER / "overlays/production/topology").broker_names.scheduled}


def test_the_network_policy_lets_out_what_the_secrets_and_a_collector_need() -> None:
    rules = read(BASE / "networkpolicy.yaml")["spec"]["egress"]
    allowed = {port["port"] for rule in rules for port in rule["ports"]}
    urls = [urlsplit(value) for secret in SECRETS.values() for name, value in secret.items() if name.endswith("_URL")]
    assert {url.port for url in urls} | {53, 443, 4318, 5671, 15671} == allowed


def built(overlay: str) -> list[dict[str, Any]]:
    """The manifests of an overlay. GitHub's runners have kubectl; elsewhere the test is skipped without it."""
    if shutil.which("kubectl") is None:
        reason = "NO KUBECTL: the overlays are not built. Put kubectl 1.27 or newer, which has kustomize, on PATH."
        if os.environ.get("GITHUB_ACTIONS"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    command = ["kubectl", "kustomize", str(FOLDER / "overlays" / overlay)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return list(yaml.safe_load_all(done.stdout))


def router_of(parts: list[dict[str, Any]]) -> dict[str, Any]:
    found: list[dict[str, Any]] = [part["spec"] for part in parts if part["kind"] == "Deployment"]
    assert len(found) == 1
    return found[0]


def test_the_overlay_small_has_one_router_without_the_api() -> None:
    router = router_of(built("small"))
    assert router["replicas"] == 1
    assert {"name": "HTTP_API", "value": "off"} in router["template"]["spec"]["containers"][0]["env"]


def test_the_overlay_production_has_the_api_its_own_policies_and_no_fixed_number_of_routers() -> None:
    parts = built("production")
    router = router_of(parts)
    (container,) = router["template"]["spec"]["containers"]
    assert "replicas" not in router
    assert [one["value"] for one in container["env"] if one["name"] == "HTTP_API"] == ["on"]
    maps = {part["metadata"]["name"] for part in parts if part["kind"] == "ConfigMap"}
    for workload in (part for part in parts if part["kind"] in {"Deployment", "Job"}):
        pod = workload["spec"]["template"]["spec"]
        assert {one["configMap"]["name"] for one in pod["volumes"] if "configMap" in one} == maps
        assert {"name": "TARRY_TOPOLOGY", "value": "/topology"} in pod["containers"][0]["env"]
    assert {part["kind"] for part in parts} >= {
        "ServiceMonitor",
        "HorizontalPodAutoscaler",
        "PodDisruptionBudget",
        "NetworkPolicy",
    }


@pytest.mark.parametrize("overlay", ["small", "production"])
def test_an_overlay_builds_to_valid_manifests(overlay: str) -> None:
    parts = built(overlay)
    for part in parts:
        if part["kind"] not in CUSTOM:
            kubernetes_validate.validate(part, kubernetes_validate.latest_version(), strict=True)
    images = {
        container["image"]
        for part in parts
        if part["kind"] in {"Deployment", "Job"}
        for container in part["spec"]["template"]["spec"]["containers"]
    }
    assert images == {f"registry.example.com/tarry:{__version__}"}
