"""Launchers, verdicts, configuration."""

from tests.mutants.mutant import mutant

MUTANTS = (
    mutant(
        "the last record is the cause",
        "launch/verdict.py",
        "return min(own, key=_time) if own",
        "return max(own, key=_time) if own",
        "unit/launch_verdict",
    ),
    mutant(
        "a rank that the launcher ended comes first",
        "launch/verdict.py",
        "then = now + (code == -signal.SIGTERM)",
        "then = now - (code == -signal.SIGTERM)",
        "unit/launch_verdict",
    ),
    mutant(
        "a living rank ended without a word",
        "launch/verdict.py",
        "elif record.end is None and record.pid not in alive:",
        "elif record.end is None:",
        "unit/launch_verdict",
    ),
    mutant(
        "two nodes may have one rank",
        "launch/meeting.py",
        "        if node.rank in self.here:",
        "        if node.rank in self.here and node.rank == 0:",
        "unit/launch_meeting",
    ),
    mutant(
        "nodes may count differently",
        "launch/meeting.py",
        "if node.nodes != self.mine.nodes or not",
        "if not",
        "unit/launch_meeting",
    ),
    mutant(
        "the later of two values wins without a word",
        "config/overrides.py",
        "    if name in values:\n",
        "    if False:\n",
        "unit/config_overrides",
    ),
    mutant(
        "a date is a date",
        "config/overrides.py",
        'len(parsed) > 1 or isinstance(parsed["value"], dates)',
        "len(parsed) > 1",
        "unit/config_overrides",
    ),
    mutant(
        "a flag swallows the file behind it",
        "config/overrides.py",
        '("." in name or not following.endswith(".toml"))',
        "True",
        "unit/config_overrides",
        "unit/cli",
    ),
    mutant(
        "a folder that cannot be flushed ends the run",
        "durable.py",
        "errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP",
        "errno.ENOSYS, errno.EOPNOTSUPP",
        "distributed/durability",
    ),
)
