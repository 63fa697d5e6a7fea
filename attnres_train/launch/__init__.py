"""Starting the ranks of one node and judging how they ended; imports neither torch nor anything heavy.

hostfile.py    reads `host slots=N` lines, every fault with its line
names.py       whether host names resolve, which address and network interface leads to another node
interfaces.py  the variables that name network interfaces, against those that there are
facts.py       what must be the same on every node: code, Python, libraries
gpus.py        the GPUs of this node, as the kernel shows them
cores.py       the cores of this process, and how many threads a rank takes of them
rdma.py        whether NCCL will find InfiniBand or RoCE here
meeting.py     nodes find each other before a rank starts, and a node that does not come is named
twice.py       two launchers that would each start all ranks, ranks that no launcher has told which they are
commands.py    the exact command and environment of either launcher
gate.py        a launcher that imports early, begins when told to, and keeps its own words apart
record.py      one small file a rank: where it is, and how it ended
job_folder.py  where those files lie, and that nothing of them is left
process.py     processes by more than their number, and how a child ends with its parent
verdict.py     which of several endings is the cause, and the exit code
watch.py       the processes of a job, the output of the launcher, the time that is left to them
start.py       what the launch scripts run: meet, launch, watch, judge
"""
