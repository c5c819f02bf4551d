"""What the chart makes of some values: each resource by Kubernetes' own schemas, and what names what.

A name that leads nowhere, a port that nobody listens at, a pod that may do more than it has to: a schema finds none of
these, and a cluster only when it is too late.

    check.py MADE VALUES OLDEST_KUBERNETES ALERTS

ALERTS is where the rules go that Prometheus would get.
"""

import sys

import kubernetes_validate
import yaml

MADE, VALUES, OLDEST, ALERTS = sys.argv[1:]
# Whose schemas are not Kubernetes' own. What is in a rule is promtool's.
OTHERS = {"PodMonitor", "PrometheusRule", "ScaledObject"}
# The oldest that the chart says it runs on, and the newest that is known.
VERSIONS = [OLDEST, kubernetes_validate.latest_version()]


def fail(resource, what):
    sys.exit(f"{resource['kind']} {resource['metadata']['name']}: {what}")


def pod_of(resource):
    """The template of the pods that a resource makes, if it makes some."""
    spec = resource.get("spec", {})
    if resource["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    return spec.get("template") if resource["kind"] in {"CronJob", "Deployment", "Job"} else None


def selected(pods, labels):
    return [pod for pod in pods if labels.items() <= pod["metadata"]["labels"].items()]


def port_names(pod):
    return {port["name"] for container in pod["spec"]["containers"] for port in container.get("ports", [])}


def check_pod(resource, pod, of_release, values):
    """It runs as the strictest of Kubernetes' standards wants it, with what is there."""
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
            fail(resource, f"{container['name']} may do more than it has to")
        if not container["resources"].get("requests") or "memory" not in container["resources"].get("limits", {}):
            fail(resource, f"{container['name']} says not what it needs")
        if resource["kind"] == "Deployment" and "livenessProbe" not in container:
            fail(resource, f"nobody sees when {container['name']} hangs")
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            port = container.get(probe, {}).get("httpGet", {}).get("port")
            if port is not None and port not in port_names(pod):
                fail(resource, f"its {probe} asks {port}, where nobody listens")
        for mount in container["volumeMounts"]:
            if mount["name"] not in volumes:
                fail(resource, f"there is no volume {mount['name']}")


class Loader(yaml.SafeLoader):
    """YAML in which nothing is said twice."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        if len(keys) != len(set(keys)):
            sys.exit(f"said twice, in line {node.start_mark.line + 1} of {MADE}: {sorted(map(str, keys))}")
        return super().construct_mapping(node, deep)


def hook(resource):
    """When it is made, before all others, and in which order."""
    annotations = resource["metadata"].get("annotations") or {}
    events = annotations.get("example.com/hook")
    return (set(events.split(",")), int(annotations["example.com/hook-weight"])) if events else None


def check_hooks(resource, of_release):
    """What is made before all others finds what it names."""
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
                fail(resource, f"{other['kind']} {other['metadata']['name']} is not there yet when it is made")


def check_names(resource, of_release, pods):
    """Whom it selects or leads to is there."""
    spec = resource.get("spec", {})
    kind = resource["kind"]
    if kind == "Deployment" and not spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items():
        fail(resource, "its selector is not of its own pods")
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
                fail(resource, f"it leads to {port['targetPort']}, where nobody listens")
    if kind == "NetworkPolicy":
        listening = {port["containerPort"] for pod in found for container in pod["spec"]["containers"] for port in container.get("ports", [])}
        # Without executors nobody listens at their ports.
        listening |= {50050, 50051, 50052} if not any(one["metadata"]["name"].endswith("-scheduler") for one in of_release) else set()
        for port in (port["port"] for rule in spec["ingress"] for port in rule["ports"]):
            if port not in listening:
                fail(resource, f"it lets others reach {port}, where nobody listens")
    if kind == "PodMonitor" and any(end["port"] not in set.union(*map(port_names, found)) for end in spec["podMetricsEndpoints"]):
        fail(resource, "it asks a port where nobody listens")
    if kind in {"HorizontalPodAutoscaler", "ScaledObject"}:
        target = [one for one in of_release if one["kind"] == "Deployment" and one["metadata"]["name"] == spec["scaleTargetRef"]["name"]]
        if len(target) != 1:
            fail(resource, "what it scales is not there")
        if "replicas" in target[0]["spec"]:
            fail(resource, "each upgrade takes back how it has scaled")
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
        # The jobs of a CronJob have eleven signs more.
        if len(resource["metadata"]["name"]) > (52 if resource["kind"] == "CronJob" else 63):
            fail(resource, "its name is longer than it may be")
        if resource["kind"] not in OTHERS:
            for version in VERSIONS:
                try:
                    kubernetes_validate.validate(resource, version, strict=True)
                except kubernetes_validate.ValidationError as error:
                    fail(resource, f"not as Kubernetes {version} wants it: {'.'.join(map(str, error.path))}: {error.message}")
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
                    fail(resource, f"{rule['alert']} leads nowhere")
    print(f"{len(resources)} resources: {', '.join(sorted(kinds))}")


main()
