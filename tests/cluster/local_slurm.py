"""A whole Slurm on one machine, for tests: munge, the controller and one node, on loopback.

It lives in one folder, knows nothing of a Slurm that the machine may have, and is gone when it is
stopped. There is no accounting database and there are no cgroups: memory is sampled every second
and a job above its limit is killed (OverMemoryKill), processes are found by their parents.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
#: Where Debian has daemons; the PATH of a user often lacks it.
SYSTEM_FOLDERS = "/usr/sbin:/sbin"
#: More processors than the machine may have: jobs of these tests mostly wait.
PROCESSORS = 4
MEMORY_MIB = 16_000
STARTUP_SECONDS = 30.0

CONFIGURATION = """\
ClusterName=tsc
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherParams=OverMemoryKill
JobAcctGatherFrequency=task=1
KillWait=5
MinJobAge=3600
GresTypes=gpu
NodeName=node NodeHostname={host} NodeAddr=127.0.0.1 CPUs={processors} Boards=1 SocketsPerBoard=1 \
CoresPerSocket={processors} ThreadsPerCore=1 RealMemory={memory} Gres=gpu:1 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Say what of Slurm is not installed here; empty if all of it is."""
    path = os.pathsep.join([os.environ.get("PATH", ""), SYSTEM_FOLDERS])
    absent = [name for name in (*DAEMONS, *CLIENTS) if shutil.which(name, path=path) is None]
    if absent:
        return f"Slurm is not installed ({', '.join(absent)} not found)"
    return ""


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody listens at; all are held until the last is found."""
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


class LocalSlurm:
    """A Slurm of one node.

    Parameters
    ----------
    folder : Path
        New; a short path, because sockets lie in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.configuration = folder / "slurm.conf"
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which commands use this Slurm.

        The executor's job steps drop every variable that begins with SLURM, SLURM_CONF included:
        `srun` is found first as a script that sets it again.
        """
        path = os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"], SYSTEM_FOLDERS])
        kept = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
        return {**kept, "PATH": path, "SLURM_CONF": str(self.configuration)}

    def start(self) -> None:
        """Start all of it.

        Raises
        ------
        RuntimeError
            If it does not come up; the message has the last lines of its logs.
        """
        for name in ("munge", "state", "spool", "bin"):
            (self.folder / name).mkdir(parents=True)
        self._write()
        munge = self.folder / "munge"
        self._launch(
            "munged",
            "--foreground",
            f"--key-file={munge}/key",
            f"--socket={munge}/socket",
            f"--pid-file={munge}/pid",
            f"--log-file={munge}/log",
            f"--seed-file={munge}/seed",
            "--num-threads=2",
            # As root it would not take a socket in a folder of others.
            "--force",
        )
        self._await(lambda: (munge / "socket").exists())
        self._launch("slurmctld", "-D", "-f", str(self.configuration))
        self._launch("slurmd", "-D", "-f", str(self.configuration), "-N", "node")
        self._await(lambda: self.run("sinfo", "-h", "-o", "%T", check=False).strip() == "idle")

    def stop(self) -> None:
        """End every job and every daemon."""
        self.run("scancel", "--user", _user(), check=False)
        deadline = time.monotonic() + 15.0
        while self.run("squeue", "-h", check=False).strip() and time.monotonic() < deadline:
            time.sleep(0.2)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(10.0)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()

    def run(self, *command: str, check: bool = True) -> str:
        """Run one of Slurm's commands and return what it says."""
        done = subprocess.run(
            command,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def jobs(self) -> list[dict[str, str]]:
        """Return all jobs since the start, each with what `scontrol show job` says of it."""
        lines = self.run("scontrol", "show", "jobs", "--oneliner", "--details").splitlines()
        found = []
        for line in lines:
            pairs = re.findall(r"(\S+?)=(.*?)(?= \S+?=|$)", line)
            found.append({key: value.strip() for key, value in pairs})
        return [job for job in found if "JobId" in job]

    def _write(self) -> None:
        (self.folder / "munge").chmod(0o700)
        key = self.folder / "munge" / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        controller_port, node_port = _free_ports(2)
        self.configuration.write_text(
            CONFIGURATION.format(
                folder=self.folder,
                host=socket.gethostname().split(".")[0],
                user=_user(),
                controller_port=controller_port,
                node_port=node_port,
                processors=PROCESSORS,
                memory=MEMORY_MIB,
            )
        )
        # A GPU that can be asked for; nothing in it computes.
        (self.folder / "gres.conf").write_text("NodeName=node Name=gpu Count=1 File=/dev/null\n")
        srun = self.folder / "bin" / "srun"
        real = shutil.which("srun")
        srun.write_text(f'#!/bin/sh\nexec env SLURM_CONF={self.configuration} {real} "$@"\n')
        srun.chmod(0o755)

    def _launch(self, name: str, *arguments: str) -> None:
        with open(self.folder / f"{name}.out", "wb") as output:
            self._daemons.append(
                subprocess.Popen(
                    [name, *arguments],
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _await(self, is_up) -> None:  # type: ignore[no-untyped-def]
        deadline = time.monotonic() + STARTUP_SECONDS
        while not is_up():
            dead = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            if dead or time.monotonic() > deadline:
                logs = [*self.folder.glob("*.out"), *self.folder.glob("*.log")]
                ends = [f"{log.name}:\n{log.read_text()[-800:]}" for log in logs]
                raise RuntimeError("Slurm does not start\n" + "\n".join(ends))
            time.sleep(0.1)


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name
