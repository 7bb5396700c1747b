"""The Kubernetes manifests are right, and the check notices when they are not."""
import pathlib
import shutil
import sys
import tempfile
import unittest

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
sys.path.insert(0, str(DEPLOY))
try:
    import check_manifests
except ModuleNotFoundError as error:
    print(f"skipped: {error} (apt-get install python3-yaml)")
    sys.exit(77)

# file, text that is there, what takes its place, a part of the fault
MUTATIONS = [
    ("workers.yaml", "restartPolicy: Never", "restartPolicy: Always", "restartPolicy"),
    ("workers.yaml", "restartPolicy: Never", "restartPolcy: Never", "unknown field 'restartPolcy'"),
    ("workers.yaml", "completionMode: Indexed", "completionMode: Index", "not one of Indexed"),
    ("workers.yaml", "completionMode: Indexed", "completionMode: NonIndexed", "must be Indexed"),
    ("workers.yaml", "completions: 4", "completions: 5", "number of ranks differs"),
    ("workers.yaml", "completions: 4", 'completions: "4"', "whole number"),
    ("workers.yaml", 'value: "4"', "value: 4", "must be text"),
    ("workers.yaml", 'value: "4"', 'value: "3"', "number of ranks differs"),
    ("workers.yaml", '"--workers", "4"', '"--workers", "2"', "number of ranks differs"),
    ("workers.yaml", "value: trireme-coordinator:7070", "value: trireme-coordinator:7071", "TRIREME_COORDINATOR"),
    ("workers.yaml", "value: trireme-coordinator:7070", "value: coordinator:7070", "TRIREME_COORDINATOR"),
    ("workers.yaml", "key: token", "key: tokens", "Secret 'trireme-token'"),
    ("workers.yaml", "runAsNonRoot: true", "runAsNonRoot: false", "runs as root"),
    ("workers.yaml", "runAsUser: 10001", "runAsUser: 0", "whole number from 1"),
    ("workers.yaml", "subdomain: trireme-workers", "subdomain: workers", "is no Service"),
    ("workers.yaml", "- name: scratch\n          emptyDir: {}", "", "volume 'scratch' is not there"),
    ("workers.yaml", "memory: 1Gi", "memory: 3Gi", "more memory than its limit"),
    ("workers.yaml", "memory: 1Gi", "memory: 1Gb", "not a quantity"),
    ("workers.yaml", 'drop: ["ALL"]', 'add: ["SYS_ADMIN"]', "more privileges"),
    ("workers.yaml", "name: OMP_NUM_THREADS", "name: TRIREME_SIZE", "set twice"),
    (
        "workers.yaml",
        "app.kubernetes.io/component: worker\n    spec:",
        "app.kubernetes.io/component: other\n    spec:",
        "matches 0 kinds of pods",
    ),
    ("workers.yaml", "apiVersion: batch/v1", "apiVersion: batch/v1beta1", "not one of batch/v1"),
    ("coordinator.yaml", '"--ranks", "4"', '"--ranks", "8"', "number of ranks differs"),
    ("coordinator.yaml", '"--port", "7070"', '"--port", "7000"', "not among its ports"),
    (
        "coordinator.yaml",
        "readinessProbe:\n            grpc:\n              port: 7070",
        "readinessProbe:\n            grpc:\n              port: grpc",
        "whole number",
    ),
    (
        "coordinator.yaml",
        "livenessProbe:\n            grpc:\n              port: 7070",
        "livenessProbe:\n            grpc:\n              port: 7071",
        "not open",
    ),
    ("coordinator.yaml", "livenessProbe:", "startupProbe:", "no livenessProbe"),
    ("coordinator.yaml", "readOnlyRootFilesystem: true", "readOnlyRootFileSystem: true", "unknown field"),
    ("coordinator.yaml", "          image: trireme:latest\n", "", "no image"),
    ("services.yaml", "targetPort: grpc", "targetPort: http", "no port of its pods"),
    ("services.yaml", "  name: trireme-coordinator", "  name: trireme-workers", "there twice"),
    ("services.yaml", "kind: Service", "kind: Servce", "not known here"),
    ("services.yaml", "clusterIP: None", "clusterIP: [None", "cannot read"),
    ("kustomization.yaml", "  - workers.yaml\n", "", "kustomization.yaml lists"),
    ("kustomization.yaml", "      - token", "      - password", "does not make"),
    ("kustomization.yaml", "resources:", "resource:", "unknown field 'resource'"),
]


class Manifests(unittest.TestCase):
    def test_they_are_right(self):
        self.assertEqual(check_manifests.check(DEPLOY / "kubernetes"), [])

    def test_every_mutation_is_noticed(self):
        for file, before, after, fault in MUTATIONS:
            with self.subTest(file=file, after=after), tempfile.TemporaryDirectory(prefix="trireme-test-") as holder:
                folder = pathlib.Path(holder, "kubernetes")
                shutil.copytree(DEPLOY / "kubernetes", folder)
                original = (folder / file).read_text()
                self.assertIn(before, original, "the mutation no longer applies")
                (folder / file).write_text(original.replace(before, after, 1))
                faults = check_manifests.check(folder)
                self.assertTrue(any(fault in line for line in faults), faults)

    def test_a_file_that_is_not_listed(self):
        with tempfile.TemporaryDirectory(prefix="trireme-test-") as holder:
            folder = pathlib.Path(holder, "kubernetes")
            shutil.copytree(DEPLOY / "kubernetes", folder)
            shutil.copy(folder / "services.yaml", folder / "more.yaml")
            self.assertTrue(any("kustomization.yaml lists" in line for line in check_manifests.check(folder)))


if __name__ == "__main__":
    unittest.main()
