"""The files of launch/ and docker/ as far as they can be held against rules here: shells, dry runs, YAML, Docker."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted([*ROOT.glob("launch/*.sh"), ROOT / "launch/slurm.sbatch", *ROOT.glob("tests/*.sh")])
WITH_HELP = ("torchrun.sh", "deepspeed.sh", "supervise.sh", "rehearse.sh", "quickstart.sh", "slurm.sbatch")
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")


def shell(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", **environment}
    return subprocess.run(["bash", *map(str, words)], capture_output=True, text=True, cwd=ROOT, env=clean)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_shells_read_it(path: Path) -> None:
    assert shell("-n", path).stderr == ""
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", "-x", "-P", ROOT / "launch", path], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", WITH_HELP)
def test_help_says_how_it_is_used_and_how_it_ends(name: str) -> None:
    done = shell(ROOT / "launch" / name, "--help")
    assert done.returncode == 0 and f"launch/{name}" in done.stdout and done.stderr == ""
    assert "Exit code" in done.stdout or name == "slurm.sbatch"


def dry_run(script: str, *options: object, expect: int = 0) -> str:
    done = shell(ROOT / "launch" / script, "my.toml", "--dry-run", *options)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_dry_runs_print_the_exact_command(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("node-a slots=4\nnode-b slots=4\n")
    alone = dry_run("torchrun.sh", "--ranks", 2, "--training.steps", 3)
    assert "OMP_NUM_THREADS=1 " in alone and "-m torch.distributed.run --standalone --nproc-per-node 2 " in alone
    signals = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
    assert f"--max-restarts 0 --shutdown-timeout 600 --signals-to-handle {signals} -m attnres_train.train " in alone
    assert alone.endswith(" my.toml --training.steps 3\n")
    two = dry_run("torchrun.sh", "--ranks", 8, "--nodes", 2, "--node-rank", 1, "--master", "a:7")
    assert "--nnodes 2 --node-rank 1 --nproc-per-node 8 --master-addr a --master-port 7 --rdzv-conf timeout=" in two
    assert "--nproc-per-node 4 --master-addr node-a" in dry_run("torchrun.sh", f"--hostfile={hosts}", "--node-rank=1")
    pdsh = dry_run("deepspeed.sh", "--hostfile", hosts)
    assert (
        f"--hostfile {hosts} --launcher pdsh --master_addr node-a --master_port 29500 --module attnres_train.train"
        in pdsh
    )
    by_hand = dry_run("deepspeed.sh", "--hostfile", hosts, "--no_ssh", "--node_rank", 1)
    assert "--no_ssh --node_rank 1 --master_addr node-a" in by_hand and "pdsh" not in by_hand
    assert "--num_gpus 3" in dry_run("deepspeed.sh", "--ranks", 3)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--ranks", "none"], "--ranks is 'none'"),
        (["--ranks=0"], "at least 1"),
        (["--nodes", "2"], "need a place to meet"),
        (["--nodes", "2", "--master", "a"], "which of the 2 nodes"),
        (["--nodes", "2", "--master", "a", "--node-rank", "2"], "2, of 2 nodes"),
        (["--master", "a:b"], "not HOST:PORT"),
        (["--hostfile", "/nowhere"], "No such file"),
        (["--hostfile"], "needs a value"),
    ],
)
def test_options_that_cannot_be_met_are_refused(options: list[str], told: str) -> None:
    assert told in dry_run("torchrun.sh", *options, expect=2)


def test_unequal_slots_are_refused_for_deepspeed_alone(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("node-a slots=4\nnode-b slots=2\n")
    assert "unequal slots (node-a 4, node-b 2)" in dry_run("deepspeed.sh", "--hostfile", hosts, expect=2)
    assert "--nproc-per-node 2" in dry_run("torchrun.sh", "--hostfile", hosts, "--node-rank", 1)


def test_the_slurm_script_starts_one_task_a_node() -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_GPUS_ON_NODE": "8"}
    done = shell(ROOT / "launch/slurm.sbatch", "--dry-run", "my.toml", "--a.b", "1", **job)
    assert "srun --ntasks-per-node=1 --nodes=4 " in done.stdout
    assert "launch/torchrun.sh my.toml --a.b 1 --ranks 8 --nodes 4 --master FIRST_NODE:29507" in done.stdout
    assert "supervise.sh launch/torchrun.sh" in shell(
        ROOT / "launch/slurm.sbatch", "--dry-run", "my.toml", SUPERVISE="1", **job
    ).stdout.replace("launch/supervise.sh", "supervise.sh")
    assert shell(ROOT / "launch/slurm.sbatch", "my.toml").returncode == 2


def documents(path: str) -> list[Any]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((ROOT / path).read_text(encoding="utf-8")))


def test_the_job_for_kubernetes_holds_together() -> None:
    service, job = documents("launch/k8s.yaml")
    spec = job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    arguments = dict(argument.lstrip("-").partition("=")[::2] for argument in container["args"][1:])
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == int(arguments["nodes"])
    assert spec["backoffLimit"] == 0 and pod["restartPolicy"] == "Never"
    assert arguments["master"].startswith(f"{job['metadata']['name']}-0.{pod['subdomain']}:")
    assert pod["subdomain"] == service["metadata"]["name"] and service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert int(arguments["ranks"]) == container["resources"]["limits"]["nvidia.com/gpu"]
    assert (ROOT / container["command"][0]).is_file() and pod["terminationGracePeriodSeconds"] >= 600
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_the_two_containers_of_the_rehearsal_are_two_nodes() -> None:
    (compose,) = documents("docker/compose.yaml")
    nodes = compose["services"]
    assert list(nodes) == ["node-0", "node-1"]
    for name, node in nodes.items():
        assert node["hostname"] == name and node["build"]["target"] == "cpu" and "..:/workspace" in node["volumes"]
        assert "--master node-0:29500" in node["command"][-1] and "$${HOSTNAME#node-}" in node["command"][-1]


def test_the_images_keep_the_rules_of_hadolint() -> None:
    """Tagged bases, no cache, nothing recommended, lists removed, pipes that fail, no root, versions locked."""
    bases = re.findall(r"^FROM (\S+) AS (\w+)$", DOCKERFILE, re.MULTILINE)
    assert [name for _, name in bases] == ["cpu", "gpu"]
    assert all(re.search(r":\d[\w.-]+$", base) for base, _ in bases), "a tag with a version (DL3006, DL3007)"
    for stage in re.split(r"^FROM .*$", DOCKERFILE, flags=re.MULTILINE)[1:]:
        steps = re.findall(r"^([A-Z]+) ", stage, re.MULTILINE)
        assert steps[0] == "SHELL" and "pipefail" in stage, "DL4006"
        users = re.findall(r"^USER (\S+)$", stage, re.MULTILINE)
        assert users and users[-1] != "root", "DL3002"
        assert "ADD" not in steps and "MAINTAINER" not in steps and not re.search(r"\bsudo\b|\bcd ", stage)
        for install in re.findall(r"apt-get install.*", stage):
            assert " -y --no-install-recommends " in install, "DL3014, DL3015"
        assert stage.count("rm -rf /var/lib/apt/lists/*") == stage.count("apt-get update") == 1, "DL3009"
        for install in re.findall(r"pip install.*", stage):
            assert "--no-cache-dir" in install and ("requirements.lock" in install or '"$torch"' in install), install
        assert re.search(r'^CMD \["', stage, re.MULTILINE), "DL3025"


def test_the_lock_holds_every_dependency_at_the_tested_version() -> None:
    lines = (ROOT / "docker/requirements.lock").read_text(encoding="utf-8").splitlines()
    locked = dict(line.split("==") for line in lines if not line.startswith("#"))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = re.search(r"^dependencies = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    assert wanted is not None
    for name in re.findall(r'^\s+"([A-Za-z0-9_.-]+)', wanted.group(1), re.MULTILINE):
        assert re.sub(r"[-_.]+", "-", name) in locked, name
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        found = re.match(r"([\w.-]+)==([\w.]+)", line)
        if found and "python_version >=" not in line:  # the images have one lock for 3.11 and 3.12
            assert locked[re.sub(r"[-_.]+", "-", found[1])] == found[2], line
