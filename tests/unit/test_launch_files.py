"""The files of launch/ and docker/ as far as they can be held against rules here: shells, dry runs, YAML, Docker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attnres_train.launch.commands import SHUTDOWN_SECONDS

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted([*ROOT.glob("launch/*.sh"), ROOT / "launch/slurm.sbatch", *ROOT.glob("tests/*.sh")])
WITH_HELP = ("torchrun.sh", "deepspeed.sh", "supervise.sh", "rehearse.sh", "quickstart.sh", "slurm.sbatch")
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")
DOCKERIGNORE = (ROOT / "docker/Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
K8S = (ROOT / "launch/k8s.yaml").read_text(encoding="utf-8")
STAGES = dict(re.findall(r"^FROM \S+ AS (\w+)$(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL))
"""Of the Dockerfile: what is done for each image, by its name."""


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
    assert "srun --ntasks-per-node=1 --nodes=4 --kill-on-bad-exit=0 " in done.stdout
    done = shell(ROOT / "launch/slurm.sbatch", "--dry-run", "my.toml", "--a.b", "1", SLURM_CPUS_PER_TASK="96", **job)
    assert "srun --ntasks-per-node=1 --nodes=4 --cpus-per-task=96 --kill-on-bad-exit=0 " in done.stdout
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
    assert pod["terminationGracePeriodSeconds"] > SHUTDOWN_SECONDS, "a stop saves first"
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def copied_into_the_job_image() -> list[Path]:
    """Files and folders of this checkout that the image has, by their paths in it; each must be in the context."""
    found = []
    for source, target in re.findall(r"^COPY (\S+) (/workspace/\S+)$", STAGES["job"], re.MULTILINE):
        assert (ROOT / source).exists() and (target.rstrip("/") == f"/workspace/{source.rstrip('/')}")
        assert f"!{source.rstrip('/')}" in DOCKERIGNORE, f"{source} is not sent to the builder"
        found.append(Path(target))
    return found


def pod_of_the_job() -> tuple[dict[str, Any], dict[str, Any]]:
    _, job = documents("launch/k8s.yaml")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def test_every_path_of_the_job_is_in_its_image_or_in_a_volume() -> None:
    pod, container = pod_of_the_job()
    mounts = [Path(mount["mountPath"]) for mount in container["volumeMounts"]]
    there = [*copied_into_the_job_image(), *mounts]
    work = Path(container["workingDir"])
    launcher, config = container["command"][-1], container["args"][0]
    run = work / "runs" / Path(config).stem  # where a run without `training.run_folder` writes
    for path in (work / launcher, work / config, work / "attnres_train/train.py", work / "tokens", run):
        assert any(path.is_relative_to(one) for one in there), path
    assert (ROOT / launcher).stat().st_mode & 0o111, "the image has it with the mode it has here"
    maps = [volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume]
    assert maps and f"create configmap {maps[0]} --from-file={Path(config).name}" in K8S
    assert container["image"].endswith(":job") and f"--target job -t {container['image']}" in K8S
    assert container["imagePullPolicy"] == "Always", "one tag, several codes"
    assert Path("/dev/shm") in mounts
    (shm,) = [volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume]
    assert shm["medium"] == "Memory" and gibibytes(shm["sizeLimit"]) < gibibytes(limits(container)["memory"])


def test_the_code_of_the_image_starts_where_nothing_else_is(tmp_path: Path) -> None:
    _, container = pod_of_the_job()
    work = tmp_path / "workspace"
    for path in copied_into_the_job_image():
        shutil.copytree(ROOT / path.name, work / path.name, ignore=shutil.ignore_patterns("__pycache__"))
    config = work / container["args"][0]
    config.parent.mkdir()
    shutil.copy(ROOT / "configs/quickstart.toml", config)
    words = [word.replace("$(JOB_COMPLETION_INDEX)", "1") for word in (container["command"][-1], *container["args"])]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ATTNRES_VENV": sys.prefix}
    done = subprocess.run([*words, "--dry-run"], cwd=work, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--nnodes 2 --node-rank 1 --nproc-per-node 8 --master-addr attnres-0.attnres" in done.stdout
    plan = [sys.executable, "-m", "attnres_train.cli", "plan", str(config), "--world", "8", "--json"]
    done = subprocess.run(plan, cwd=work, env=environment | {"PYTHONPATH": str(work)}, capture_output=True, text=True)
    assert done.returncode in (0, 2) and "Traceback" not in done.stderr, done.stderr


def limits(container: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = container["resources"]["limits"]
    return found


def gibibytes(text: str) -> int:
    assert text.endswith("Gi")
    return int(text.removesuffix("Gi"))


def test_the_job_may_write_where_it_must_and_lock_memory() -> None:
    """As the user of the image: by the group of the volumes, with a home, and the one capability that RDMA asks."""
    pod, container = pod_of_the_job()
    (user,) = set(re.findall(r"useradd --create-home --uid (\d+) trainer", DOCKERFILE))
    words = container["command"]
    assert words[0] == "setpriv" and words[-2] == "--" and container["securityContext"]["runAsUser"] == 0
    assert {f"--reuid={user}", f"--regid={user}", "--clear-groups"} <= set(words)
    assert pod["securityContext"]["fsGroup"] == int(user), "the group that may write to volumes"
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert {"--inh-caps=+ipc_lock", "--ambient-caps=+ipc_lock"} <= set(words), "of no use to who is not root otherwise"
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert environment["HOME"] == "/home/trainer"
    (runs,) = [mount for mount in container["volumeMounts"] if mount["name"] == "runs"]
    assert not runs.get("readOnly")
    assert environment["NCCL_NET"] == "IB" and limits(container)["rdma/hca"] == 1
    assert "take out rdma/hca and NCCL_NET" in K8S
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="root and setpriv")
def test_what_the_job_puts_before_the_launcher_leaves_a_user_who_may_lock_memory() -> None:
    _, container = pod_of_the_job()
    read = ["grep", "-E", "^(Uid|CapEff):", "/proc/self/status"]
    done = subprocess.run([*container["command"][:-1], *read], capture_output=True, text=True)
    found = dict(line.split(":", 1) for line in done.stdout.splitlines())
    assert found["Uid"].split() == ["1001"] * 4, done.stderr
    assert int(found["CapEff"], 16) == 1 << 14, "CAP_IPC_LOCK and nothing else"


def test_the_images_for_gpus_have_what_nccl_opens_for_infiniband() -> None:
    installed = re.findall(r"apt-get install (.*?)&&", STAGES["gpu"], re.DOTALL)[0].split()
    assert {"libibverbs1", "ibverbs-providers", "librdmacm1"} <= set(installed)
    assert "FROM gpu AS job" in DOCKERFILE


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
    assert [name for _, name in bases] == ["cpu", "gpu", "job"] == list(STAGES)
    tagged = [base for base, _ in bases if base not in STAGES]
    assert all(re.search(r":\d[\w.-]+$", base) for base in tagged), "a tag with a version (DL3006, DL3007)"
    for stage in STAGES.values():
        steps = re.findall(r"^([A-Z]+) ", stage, re.MULTILINE)
        assert steps[0] == "SHELL" and "pipefail" in stage, "DL4006"
        users = re.findall(r"^USER (\S+)$", stage, re.MULTILINE)
        assert users and users[-1] != "root", "DL3002"
        assert "ADD" not in steps and "MAINTAINER" not in steps and not re.search(r"\bsudo\b|\bcd ", stage)
        for install in re.findall(r"apt-get install.*", stage):
            assert " -y --no-install-recommends " in install, "DL3014, DL3015"
        updates = stage.count("apt-get update")
        assert stage.count("rm -rf /var/lib/apt/lists/*") == updates == stage.count("apt-get install"), "DL3009"
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
