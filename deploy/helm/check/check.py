"""Checks the rendered chart: each resource against Kubernetes' schemas, and the references between resources.

Schemas do not find references to missing resources, ports without a listener, and pods with unnecessary rights. A cluster finds them
only at installation.

    check.py MADE VALUES OLDEST_KUBERNETES ALERTS

The script writes the alert rules to the file ALERTS.
"""

import sys

import kubernetes_validate
import yaml

MADE, VALUES, OLDEST, ALERTS = sys.argv[1:]
# Kinds whose schemas are not part of Kubernetes. promtool checks the contents of rules.
OTHERS = {"PodMonitor", "PrometheusRule", "ScaledObject"}
# The oldest version that the chart supports, and the newest known one.
VERSIONS = [OLDEST, kubernetes_validate.latest_version()]


def fail(resource, what):
    sys.exit(f"{resource['kind']} {resource['metadata']['name']}: {what}")


def pod_of(resource):
    """Returns the pod template of a resource, if it has one."""
    spec = resource.get("spec", {})
    if resource["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    return spec.get("template") if resource["kind"] in {"CronJob", "Deployment", "Job"} else None


def selected(pods, labels):
    return [pod for pod in pods if labels.items() <= pod["metadata"]["labels"].items()]


def port_names(pod):
    return {port["name"] for container in pod["spec"]["containers"] for port in container.get("ports", [])}


def check_pod(resource, pod, of_release, values):
    """Checks that the pod conforms to Kubernetes' restricted security standard, and that its references exist."""
    spec = pod["spec"]
    if not spec["securityContext"]["runAsNonRoot"] or spec["securityContext"]["seccompProfile"]["type"] != "RuntimeDefault":
        fail(resource, "its pods may run as root or without a profile")
    names = {(one["kind"], one["metadata"]["name"]) for one in of_release}
    account = spec["serviceAccountName"]
    if account != "default" and ("ServiceAccount", account) not in names:
        fail(resource, f"there is no service account {account}")
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    given = {volume["configMap"]["name"] for volume in values.get("extraVolumes", [])}
    for volume in volumes.values():
        if "configMap" in volume and volume["configMap"]["name"] not in given:
            if ("ConfigMap", volume["configMap"]["name"]) not in names:
                fail(resource, f"there is no config map {volume['configMap']['name']}")
    for container in spec["containers"]:
        security = container["securityContext"]
        if security["allowPrivilegeEscalation"] or not security["readOnlyRootFilesystem"] or security["capabilities"]["drop"] != ["ALL"]:
            fail(resource, f"{container['name']} has unnecessary rights")
        if not container["resources"].get("requests") or "memory" not in container["resources"].get("limits", {}):
            fail(resource, f"{container['name']} lacks a resource request or a memory limit")
        if resource["kind"] == "Deployment" and "livenessProbe" not in container:
            fail(resource, f"{container['name']} has no liveness probe")
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            port = container.get(probe, {}).get("httpGet", {}).get("port")
            if port is not None and port not in port_names(pod):
                fail(resource, f"its {probe} uses the port {port}, on which no process listens")
        for mount in container["volumeMounts"]:
            if mount["name"] not in volumes:
                fail(resource, f"there is no volume {mount['name']}")


class Loader(yaml.SafeLoader):
    """A YAML loader that rejects duplicate keys."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        if len(keys) != len(set(keys)):
            sys.exit(f"duplicate keys in line {node.start_mark.line + 1} of {MADE}: {sorted(map(str, keys))}")
        return super().construct_mapping(node, deep)


def hook(resource):
    """Returns the events and the weight of a hook; None for other resources."""
    annotations = resource["metadata"].get("annotations") or {}
    events = annotations.get("example.com/hook")
    return (set(events.split(",")), int(annotations["example.com/hook-weight"])) if events else None


def check_hooks(resource, of_release):
    """Checks that the references of hooks exist when they run."""
    own = hook(resource)
    pod = pod_of(resource)
    if not own or not pod:
        return
    named = {pod["spec"]["serviceAccountName"]}
    named |= {volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if "configMap" in volume}
    for other in of_release:
        if other["kind"] in {"ConfigMap", "ServiceAccount"} and other["metadata"]["name"] in named:
            before = hook(other)
            if not before or not own[0] <= before[0] or own[1] <= before[1]:
                fail(resource, f"{other['kind']} {other['metadata']['name']} does not exist yet when it is created")


def check_names(resource, of_release, pods):
    """Checks that the targets of selectors and services exist."""
    spec = resource.get("spec", {})
    kind = resource["kind"]
    if kind == "Deployment" and not spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items():
        fail(resource, "its selector does not match its own pods")
    labels = {
        "NetworkPolicy": lambda: spec["podSelector"]["matchLabels"],
        "PodDisruptionBudget": lambda: spec["selector"]["matchLabels"],
        "PodMonitor": lambda: spec["selector"]["matchLabels"],
        "Service": lambda: spec["selector"],
    }.get(kind)
    found = selected(pods, labels()) if labels else pods
    if not found:
        fail(resource, "it selects no pod")
    if kind == "Service":
        for port in spec["ports"]:
            if len(found) != 1 or port["targetPort"] not in port_names(found[0]):
                fail(resource, f"its target port {port['targetPort']} has no listener")
    if kind == "NetworkPolicy":
        listening = {port["containerPort"] for pod in found for container in pod["spec"]["containers"] for port in container.get("ports", [])}
        # Without executors, no process listens on their ports.
        listening |= {50050, 50051, 50052} if not any(one["metadata"]["name"].endswith("-scheduler") for one in of_release) else set()
        for port in (port["port"] for rule in spec["ingress"] for port in rule["ports"]):
            if port not in listening:
                fail(resource, f"it allows access to the port {port}, which has no listener")
    if kind == "PodMonitor" and any(end["port"] not in set.union(*map(port_names, found)) for end in spec["podMetricsEndpoints"]):
        fail(resource, "it scrapes a port without a listener")
    if kind in {"HorizontalPodAutoscaler", "ScaledObject"}:
        target = [one for one in of_release if one["kind"] == "Deployment" and one["metadata"]["name"] == spec["scaleTargetRef"]["name"]]
        if len(target) != 1:
            fail(resource, "the resource that it scales does not exist")
        if "replicas" in target[0]["spec"]:
            fail(resource, "each upgrade resets the number of replicas")
    if kind == "Ingress":
        for path in (path for rule in spec["rules"] for path in rule["http"]["paths"]):
            service = path["backend"]["service"]
            if not any(
                one["kind"] == "Service"
                and one["metadata"]["name"] == service["name"]
                and service["port"]["name"] in {port["name"] for port in one["spec"]["ports"]}
                for one in of_release
            ):
                fail(resource, f"there is no service {service['name']}")


def main():
    with open(MADE, encoding="utf-8") as file:
        resources = [one for one in yaml.load_all(file, Loader) if one]
    with open(VALUES, encoding="utf-8") as file:
        values = yaml.safe_load(file)
    kinds = set()
    pods = [pod for pod in map(pod_of, resources) if pod]
    names = [(one["kind"], one["metadata"]["name"]) for one in resources]
    if len(names) != len(set(names)):
        sys.exit(f"a resource is there twice: {sorted(names)}")
    for resource in resources:
        kinds.add(resource["kind"])
        # The names of a CronJob's jobs are eleven characters longer.
        if len(resource["metadata"]["name"]) > (52 if resource["kind"] == "CronJob" else 63):
            fail(resource, "its name is too long")
        if resource["kind"] not in OTHERS:
            for version in VERSIONS:
                try:
                    kubernetes_validate.validate(resource, version, strict=True)
                except kubernetes_validate.ValidationError as error:
                    fail(resource, f"violates the schema of Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}")
        pod = pod_of(resource)
        if pod:
            check_pod(resource, pod, resources, values)
        check_names(resource, resources, pods)
        check_hooks(resource, resources)
        if resource["kind"] == "PrometheusRule":
            with open(ALERTS, "w", encoding="utf-8") as file:
                yaml.safe_dump({"groups": resource["spec"]["groups"]}, file)
            base = values["monitoring"]["runbookBase"]
            for rule in (rule for group in resource["spec"]["groups"] for rule in group["rules"]):
                if not rule["annotations"]["runbook_url"].startswith(base):
                    fail(resource, f"{rule['alert']} links to a missing runbook")
    print(f"{len(resources)} resources: {', '.join(sorted(kinds))}")


main()
