"""Starting the ranks of one node and judging how they ended; imports neither torch nor anything heavy.

hostfile.py  reads `host slots=N` lines, every fault with its line
names.py     whether host names resolve, which address and network interface leads to another node
meeting.py   nodes find each other before a rank starts, and a node that does not come is named
commands.py  the exact command and environment of either launcher
record.py    one small file a rank: where it is, and how it ended
verdict.py   which of several endings is the cause, and the exit code
watch.py     the processes of a job, the output of the launcher, the time that is left to them
start.py     what the launch scripts run: meet, launch, watch, judge
"""
