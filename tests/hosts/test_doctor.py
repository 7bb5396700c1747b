"""`trireme doctor --hosts` and `trireme tune --hosts`: what they find out about hosts, and what comes of it."""
import json
import re

import training

SIZES = "4096,65536,1048576"
LINK = r"(?m)^ +{} +{} +\d+ us +(\S+) Gbit/s  (.+)$"


class Doctor(training.HostsTest):
    HOSTS = 3

    def setUp(self):
        super().setUp()
        for host in self.hosts.names:  # without, the machine's load would be measured
            self.hosts.limit(host, "500mbit")

    def doctor(self, hosts, code, *more):
        process = self.start("doctor", "--hosts", hosts, "--remote", self.remote(), *more)
        out, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, code, out + error)
        return out

    def link(self, text, a, b):
        """(Gbit/s, verdict) of one direction."""
        found = re.search(LINK.format(a, b), text)
        self.assertTrue(found, f"{a} to {b} in:\n{text}")
        return float(found[1]), found[2]

    def test_two_good_hosts(self):
        text = self.doctor("a,b:4", 0)
        for host in "ab":
            self.assertRegex(
                text, rf"(?m)^ +{host} +{re.escape(self.hosts.address(host))} +\d+\.\d+\.\d+ +[-+]\d+\.\d ms  ok$"
            )
        for a, b in ("ab", "ba"):
            gbit, verdict = self.link(text, a, b)
            self.assertTrue(0.3 < gbit < 0.7, gbit)
            self.assertEqual(verdict, "ok")
        self.assertIn("ready to train", text)
        self.assertNotIn("PROBLEM", text)
        self.assertEqual(self.hosts.pids(), [])

    def test_slow_cable(self):
        self.hosts.limit("c", "50mbit")
        text = self.doctor("a,b,c", 1)
        for a, b in ("ac", "ca", "bc", "cb"):
            gbit, verdict = self.link(text, a, b)
            self.assertTrue(0.03 < gbit < 0.07, gbit)
            self.assertEqual(verdict.split(",")[0], "SLOW")
        self.assertEqual(self.link(text, "a", "b")[1], "ok")
        self.assertRegex(text, r"(?m)^PROBLEM  host c, to and from all others: only 0\.0\d+ Gbit/s.*[Cc]heck the cable")
        self.assertNotIn("ready to train", text)

    def test_no_way_between_two(self):
        route = ["ip", "route", "{}", "unreachable", self.hosts.address("c")]
        self.hosts.check("b", [word.format("add") for word in route])
        self.addCleanup(self.hosts.check, "b", [word.format("del") for word in route])
        text = self.doctor("a,b,c", 1)
        for a, b in ("bc", "cb"):
            self.assertRegex(text, rf"(?m)^ +{a} +{b} +- +-  BLOCKED$")
            self.assertRegex(text, rf"(?m)^PROBLEM  from host {a} to host {b}: no connection, port \d+ of .*firewall")
        for a, b in ("ab", "ac", "ba", "ca"):
            self.assertEqual(self.link(text, a, b)[1], "ok")

    def test_bad_hosts_do_not_hide_the_others(self):
        process = self.start(
            "doctor",
            "--hosts",
            "a,nowhere,b,c",
            "--remote",
            f"{training.ON_HOST.with_name('no-such-program')} {{host}} {{command}}",
        )
        text, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, text + error)
        self.assertRegex(text, r"(?m)^PROBLEM  host 'nowhere' cannot be found: .*spelling")
        for host in "bc":
            self.assertRegex(text, rf"(?m)^PROBLEM  host {host} is of no use: .*no-such-program")
        self.assertNotIn("host a", text)

    def test_unknown_name(self):
        text = self.doctor("a,nowhere,b", 1)
        self.assertRegex(text, r"(?m)^PROBLEM  host 'nowhere' cannot be found")
        self.assertEqual(self.link(text, "b", "a")[1], "ok")


class Tune(training.HostsTest):
    HOSTS = 3
    MODEL = ["mlp:64", "--data", "synthetic:200", "--epochs", 1, "--batch", 32]

    def run_here(self, *words):
        process = self.start(*words, env={"XDG_CACHE_HOME": str(self.folder)})
        out, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, out + error)
        return out

    def train_here(self):
        self.assertIn(
            "epoch 1 ",
            self.run_here("train", self.MODEL[0], "--hosts", "a:1,b:1", "--remote", self.remote(), *self.MODEL[1:]),
        )

    def cache(self):
        return self.folder / "trireme" / "network.json"

    def test_what_is_measured_is_kept_and_used(self):
        text = self.run_here("tune", "--hosts", "a:1,b:1", "--remote", self.remote(), "--sizes", SIZES, "--rounds", 1)
        for size in ("4 KiB", "64 KiB", "1 MiB"):
            self.assertRegex(text, rf"(?m)^ +{size} +\d+ us +\d+ us  (direct|ring)$")
        self.assertIn(str(self.cache()), text)
        entry = json.loads(self.cache().read_text())["gloo, 2 machines"]
        self.assertEqual([row["bytes"] for row in entry["measured"]], [4096, 65536, 1048576])
        self.train_here()

    def test_all_ranks_use_what_rank_0_has(self):
        # A ring adds in another order, which shows that it was used. If only some ranks did, that would be a Mismatch.
        self.cache().parent.mkdir()
        remote = f"env -u XDG_CACHE_HOME HOME=/nowhere {self.remote()}"
        models = {}
        for choice in (0, "all"):
            self.cache().write_text(json.dumps({"gloo, 3 machines": {"direct_bytes": choice}}))
            save = self.folder / f"{choice}.safetensors"
            self.run_here(
                "train", self.MODEL[0], "--hosts", "a:1,b:1,c:1", "--remote", remote, *self.MODEL[1:], "--save", save
            )
            models[choice] = save.read_bytes()
        self.assertNotEqual(models[0], models["all"])

    def test_damaged_cache(self):
        self.cache().parent.mkdir()
        self.cache().write_text('{"gloo, 2 machines": {"direct_bytes": ')
        self.train_here()

    def test_one_machine_has_nothing_to_tune(self):
        process = self.start("tune")
        _, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 2)
        self.assertIn("--hosts", error)


if __name__ == "__main__":
    training.main()
