#!/usr/bin/python3
"""Checks the Kubernetes manifests: fields and types against a strict schema of what is used here, and whether the files
agree with each other.

An unknown field is refused: the API server only warns about a misspelt one, and then runs without it. To use a field,
add it to the schema below (the names are those of the Kubernetes API reference). Usage: deploy/check_manifests.py
[FOLDER]; exit code 1 and a line for each fault.
"""
import pathlib
import re
import sys

import yaml

LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")
DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$")


# ---- the schema: a checker takes (value, where) and yields faults ----
def text(pattern=None, values=None):
    def check(value, where):
        if not isinstance(value, str):
            yield f"{where}: must be text, not {value!r}" + (
                " (put it in quotes)" if isinstance(value, (int, float, bool)) else ""
            )
        elif values and value not in values:
            yield f"{where}: {value!r} is not one of {', '.join(values)}"
        elif pattern and not pattern.match(value):
            yield f"{where}: {value!r} is malformed"

    return check


def whole(least=0, most=2**31 - 1):
    def check(value, where):
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            yield f"{where}: must be a whole number from {least} to {most}, not {value!r}"

    return check


def flag(value, where):
    if not isinstance(value, bool):
        yield f"{where}: must be true or false, not {value!r}"


def quantity(value, where):
    if isinstance(value, bool) or not QUANTITY.match(str(value)):
        yield f"{where}: {value!r} is not a quantity such as 500m or 2Gi"


def either(*checks):
    def check(value, where):
        faults = [list(one(value, where)) for one in checks]
        if all(faults):
            yield from faults[0]

    return check


def many(item, least=0):
    def check(value, where):
        if not isinstance(value, list) or len(value) < least:
            yield f"{where}: must be a list" + (f" of at least {least}" if least else "")
            return
        for i, one in enumerate(value):
            yield from item(one, f"{where}[{i}]")

    return check


def table(value_check, key=None):
    def check(value, where):
        if not isinstance(value, dict):
            yield f"{where}: must be a table"
            return
        for name, one in value.items():
            if key and not key.match(str(name)):
                yield f"{where}: {name!r} is malformed"
            yield from value_check(one, f"{where}.{name}")

    return check


def fields(required=(), **known):
    def check(value, where):
        if not isinstance(value, dict):
            yield f"{where}: must be a table"
            return
        for name in required:
            if name not in value:
                yield f"{where}: no {name}"
        for name, one in value.items():
            if name not in known:
                yield f"{where}: unknown field {name!r}"
            else:
                yield from known[name](one, f"{where}.{name}")

    return check


def one_of(*names, **known):
    """A table with exactly one of the fields."""
    inner = fields(**known)

    def check(value, where):
        yield from inner(value, where)
        if isinstance(value, dict) and sum(name in value for name in names) != 1:
            yield f"{where}: must have exactly one of {', '.join(names)}"

    return check


name = text(DNS_LABEL)
labels = table(text(LABEL_VALUE))
metadata = fields(["name"], name=name, labels=labels, annotations=table(text()), namespace=name)
port_or_name = either(whole(1, 65535), name)
probe = one_of(
    "grpc",
    "tcpSocket",
    grpc=fields(["port"], port=whole(1, 65535), service=text()),
    tcpSocket=fields(["port"], port=port_or_name),
    initialDelaySeconds=whole(),
    periodSeconds=whole(1),
    timeoutSeconds=whole(1),
    successThreshold=whole(1),
    failureThreshold=whole(1),
)
seccomp = fields(["type"], type=text(values=["RuntimeDefault", "Unconfined", "Localhost"]))
key_of = fields(["name", "key"], name=name, key=text(), optional=flag)
variable = one_of(
    "value",
    "valueFrom",
    name=text(re.compile(r"[A-Z_][A-Z0-9_]*$")),
    value=text(),
    valueFrom=one_of("secretKeyRef", "configMapKeyRef", secretKeyRef=key_of, configMapKeyRef=key_of),
)
container = fields(
    ["name", "image", "resources", "securityContext"],
    name=name,
    image=text(),
    imagePullPolicy=text(values=["Always", "IfNotPresent", "Never"]),
    command=many(text(), 1),
    args=many(text()),
    env=many(variable),
    ports=many(
        fields(
            ["containerPort"], name=name, containerPort=whole(1, 65535), protocol=text(values=["TCP", "UDP", "SCTP"])
        )
    ),
    readinessProbe=probe,
    livenessProbe=probe,
    startupProbe=probe,
    resources=fields(["requests", "limits"], requests=table(quantity), limits=table(quantity)),
    securityContext=fields(
        ["allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities"],
        allowPrivilegeEscalation=flag,
        readOnlyRootFilesystem=flag,
        privileged=flag,
        runAsNonRoot=flag,
        runAsUser=whole(1),
        capabilities=fields(drop=many(text()), add=many(text())),
    ),
    volumeMounts=many(fields(["name", "mountPath"], name=name, mountPath=text(re.compile("/")), readOnly=flag)),
)
volume = one_of(
    "emptyDir",
    "persistentVolumeClaim",
    "secret",
    name=name,
    emptyDir=fields(medium=text(), sizeLimit=quantity),
    persistentVolumeClaim=fields(["claimName"], claimName=name, readOnly=flag),
    secret=fields(["secretName"], secretName=name, defaultMode=whole(0, 0o777)),
)
selector = fields(["matchLabels"], matchLabels=labels)
pod = fields(
    ["containers", "restartPolicy", "securityContext"],
    restartPolicy=text(values=["Always", "OnFailure", "Never"]),
    subdomain=name,
    hostname=name,
    automountServiceAccountToken=flag,
    terminationGracePeriodSeconds=whole(),
    containers=many(container, 1),
    initContainers=many(container),
    volumes=many(volume),
    securityContext=fields(
        ["runAsNonRoot"],
        runAsNonRoot=flag,
        runAsUser=whole(1),
        runAsGroup=whole(1),
        fsGroup=whole(1),
        seccompProfile=seccomp,
    ),
    topologySpreadConstraints=many(
        fields(
            ["maxSkew", "topologyKey", "whenUnsatisfiable"],
            maxSkew=whole(1),
            topologyKey=text(),
            labelSelector=selector,
            whenUnsatisfiable=text(values=["DoNotSchedule", "ScheduleAnyway"]),
        )
    ),
)
template = fields(["metadata", "spec"], metadata=fields(["labels"], labels=labels, annotations=table(text())), spec=pod)
job = fields(
    ["template"],
    template=template,
    completionMode=text(values=["Indexed", "NonIndexed"]),
    completions=whole(1),
    parallelism=whole(1),
    backoffLimit=whole(),
    backoffLimitPerIndex=whole(),
    activeDeadlineSeconds=whole(1),
    ttlSecondsAfterFinished=whole(),
    suspend=flag,
)
deployment = fields(
    ["selector", "template"],
    replicas=whole(),
    selector=selector,
    template=template,
    strategy=fields(["type"], type=text(values=["Recreate", "RollingUpdate"])),
)
service = fields(
    ["selector"],
    clusterIP=text(),
    type=text(values=["ClusterIP", "NodePort", "LoadBalancer"]),
    selector=labels,
    publishNotReadyAddresses=flag,
    ports=many(
        fields(
            ["port"],
            name=name,
            port=whole(1, 65535),
            targetPort=port_or_name,
            protocol=text(values=["TCP", "UDP", "SCTP"]),
        )
    ),
)


def resource(version, kind, spec):
    return fields(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion=text(values=[version]),
        kind=text(values=[kind]),
        metadata=metadata,
        spec=spec,
    )


KINDS = {
    "Service": resource("v1", "Service", service),
    "Job": resource("batch/v1", "Job", job),
    "Deployment": resource("apps/v1", "Deployment", deployment),
}
KUSTOMIZATION = fields(
    ["apiVersion", "kind", "resources"],
    apiVersion=text(values=["kustomize.config.k8s.io/v1beta1"]),
    kind=text(values=["Kustomization"]),
    resources=many(text(), 1),
    namespace=name,
    images=many(fields(["name"], name=text(), newName=text(), newTag=text(), digest=text())),
    secretGenerator=many(fields(["name", "files"], name=name, files=many(text(), 1))),
    generatorOptions=fields(disableNameSuffixHash=flag),
)


# ---- what the files say about each other ----
def pods_of(resources):
    return [(r["metadata"]["name"], r, r["spec"]["template"]) for r in resources if r["kind"] in ("Job", "Deployment")]


def matches(wanted, found):
    return all(found.get(key) == value for key, value in wanted.items())


def value_after(args, option):
    return args[args.index(option) + 1] if option in args[:-1] else None


def check_references(resources, secrets):
    pods = pods_of(resources)
    services = {r["metadata"]["name"]: r for r in resources if r["kind"] == "Service"}
    for service_name, one in services.items():
        behind = [
            template for _, _, template in pods if matches(one["spec"]["selector"], template["metadata"]["labels"])
        ]
        if len(behind) != 1:
            yield f"Service {service_name}: its selector matches {len(behind)} kinds of pods, not one"
            continue
        open_ports = [port for c in behind[0]["spec"]["containers"] for port in c.get("ports", [])]
        for port in one["spec"].get("ports", []):
            target = port.get("targetPort", port["port"])
            if not any(target in (p.get("name"), p["containerPort"]) for p in open_ports):
                yield f"Service {service_name}: targetPort {target!r} is no port of its pods"
    for owner, one, template in pods:
        where, spec = f"{one['kind']} {owner}", template["spec"]
        if one["kind"] == "Job" and spec["restartPolicy"] == "Always":
            yield f"{where}: a Job's restartPolicy is OnFailure or Never"
        if one["kind"] == "Deployment" and (
            spec["restartPolicy"] != "Always"
            or not matches(one["spec"]["selector"]["matchLabels"], template["metadata"]["labels"])
        ):
            yield f"{where}: needs restartPolicy Always and a selector that matches its own pods"
        for constraint in spec.get("topologySpreadConstraints", []):
            if not matches(constraint.get("labelSelector", {}).get("matchLabels", {}), template["metadata"]["labels"]):
                yield f"{where}: a topologySpreadConstraint does not select its own pods"
        if "subdomain" in spec and spec["subdomain"] not in services:
            yield f"{where}: subdomain {spec['subdomain']!r} is no Service"
        if not spec["securityContext"].get("runAsNonRoot"):
            yield f"{where}: runs as root"
        volumes = [volume["name"] for volume in spec.get("volumes", [])]
        mounted = [mount["name"] for c in spec["containers"] for mount in c.get("volumeMounts", [])]
        for odd in set(volumes) ^ set(mounted):
            yield f"{where}: volume {odd!r} is " + ("never mounted" if odd in volumes else "not there")
        for c in spec["containers"]:
            yield from check_container(f"{where}: container {c['name']}", c, secrets)


def check_container(where, container, secrets):
    names = [variable["name"] for variable in container.get("env", [])]
    for twice in {n for n in names if names.count(n) > 1}:
        yield f"{where}: {twice} is set twice"
    for variable in container.get("env", []):
        reference = variable.get("valueFrom", {}).get("secretKeyRef")
        if reference and reference["key"] not in secrets.get(reference["name"], []):
            yield (
                f"{where}: {variable['name']} refers to key {reference['key']!r} of Secret {reference['name']!r}, "
                "which kustomization.yaml does not make"
            )
    ports = [port["containerPort"] for port in container.get("ports", [])]
    for kind in ("readinessProbe", "livenessProbe", "startupProbe"):
        target = container.get(kind, {}).get("grpc", {}).get("port")
        if target is not None and target not in ports:
            yield f"{where}: {kind} asks port {target}, which is not open"
    context = container["securityContext"]
    if (
        context["allowPrivilegeEscalation"]
        or context.get("privileged")
        or context["capabilities"].get("drop") != ["ALL"]
        or context["capabilities"].get("add")
    ):
        yield f"{where}: has more privileges than it needs"
    for what, least in container["resources"]["requests"].items():
        if what in container["resources"]["limits"] and amount(least) > amount(container["resources"]["limits"][what]):
            yield f"{where}: requests more {what} than its limit"


def amount(value):
    number, unit = re.match(r"([0-9.]+)(.*)", str(value)).groups()
    units = {
        "": 1,
        "m": 1e-3,
        "k": 1e3,
        "M": 1e6,
        "G": 1e9,
        "T": 1e12,
        "Ki": 2**10,
        "Mi": 2**20,
        "Gi": 2**30,
        "Ti": 2**40,
    }
    return float(number) * units[unit]


def check_job(resources):
    """One coordinator, one set of workers, and the same number and port in every place that says it."""
    by_command = {}
    for owner, one, template in pods_of(resources):
        for c in template["spec"]["containers"]:
            by_command.setdefault((c.get("args") or [None])[0], []).append((owner, one, c))
    if sorted(by_command, key=str) != ["coordinator", "train"] or any(len(found) != 1 for found in by_command.values()):
        found = sorted(by_command, key=str)
        yield f"expected one container that runs 'coordinator' and one that runs 'train', found {found}"
        return
    (_, _, coordinator), (owner, workers, worker) = by_command["coordinator"][0], by_command["train"][0]
    environment = {variable["name"]: variable.get("value") for variable in worker.get("env", [])}
    ranks = {
        "coordinator's --ranks": value_after(coordinator["args"], "--ranks"),
        "TRIREME_SIZE": environment.get("TRIREME_SIZE"),
        "--workers": value_after(worker["args"], "--workers"),
        "completions": str(workers["spec"].get("completions")),
        "parallelism": str(workers["spec"].get("parallelism")),
    }
    if len(set(ranks.values())) != 1:
        yield f"the number of ranks differs: {ranks}"
    if workers["spec"].get("completionMode") != "Indexed":
        yield f"Job {owner}: completionMode must be Indexed, which is where ranks come from"
    host, _, port = (environment.get("TRIREME_COORDINATOR") or "").partition(":")
    found = [r for r in resources if r["kind"] == "Service" and r["metadata"]["name"] == host]
    if not found or port not in [str(p["port"]) for p in found[0]["spec"].get("ports", [])]:
        yield f"TRIREME_COORDINATOR={host}:{port} is no Service and port of these files"
    own_port = value_after(coordinator["args"], "--port")
    if own_port not in [str(p["containerPort"]) for p in coordinator.get("ports", [])]:
        yield f"the coordinator listens on {own_port}, which is not among its ports"
    for kind in ("readinessProbe", "livenessProbe"):
        if kind not in coordinator:
            yield f"the coordinator has no {kind}"
    for what, one in (("coordinator", coordinator), ("worker", worker)):
        if "TRIREME_TOKEN" not in [variable["name"] for variable in one.get("env", []) if "valueFrom" in variable]:
            yield f"the {what} has no TRIREME_TOKEN from a Secret"


def check(folder):
    """All faults of the manifests in the folder, as lines."""
    folder, faults, resources = pathlib.Path(folder), [], []
    try:
        kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
        documents = {
            path.name: list(yaml.safe_load_all(path.read_text()))
            for path in sorted(folder.glob("*.yaml"))
            if path.name != "kustomization.yaml"
        }
    except (OSError, yaml.YAMLError) as error:
        return [f"cannot read the manifests: {error}"]
    faults += KUSTOMIZATION(kustomization, "kustomization.yaml")
    for file, found in documents.items():
        for i, document in enumerate(found):
            kind = document.get("kind") if isinstance(document, dict) else None
            faults += (
                KINDS[kind](document, f"{file}[{i}]")
                if kind in KINDS
                else [f"{file}[{i}]: kind {kind!r} is not known here"]
            )
            resources.append(document)
    if faults:
        return faults  # what follows relies on the shape
    if sorted(kustomization["resources"]) != sorted(documents):
        faults.append(
            f"kustomization.yaml lists {sorted(kustomization['resources'])}, the folder has {sorted(documents)}"
        )
    names = [(r["kind"], r["metadata"]["name"]) for r in resources]
    faults += [f"{kind} {name} is there twice" for kind, name in sorted({n for n in names if names.count(n) > 1})]
    secrets = {
        s["name"]: [file.partition("=")[0] for file in s["files"]] for s in kustomization.get("secretGenerator", [])
    }
    return faults + list(check_references(resources, secrets)) + list(check_job(resources))


if __name__ == "__main__":
    faults = check(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "kubernetes")
    print("\n".join(faults) if faults else "manifests: ok")
    sys.exit(1 if faults else 0)
