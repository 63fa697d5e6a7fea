"""What a run reports.

metrics.py         the tags and values of a logged step; phases.py those of its time
tags.py            what each tag holds, in which unit: the words that TensorBoard shows
record_lines.py    a line of records, read back
kept_file.py       a file that may be taken away while it is written
settings_history.py  which settings were used from which step to which
sinks.py           lines of JSON, each step once across resumes; what guards training from a full disk
tail.py            the last lines of a file
event_file.py      TensorBoard's files
wandb_sink.py      curves at Weights & Biases
remaining.py       how long a run still takes
console.py         log files of every rank, the lines of rank 0
depth_watch.py     looks at the depth while a step runs, over all ranks
depth_look.py      what a look found: plain numbers, tags, records
depth_findings.py  what in it deserves a word; depth_alarms.py when that is told
depth_map.py       readers by sources as a picture
depth_recorder.py  keeps looks: lines, curves, pictures, alarms
profiling.py       traces of chosen steps
claim.py           one run a folder
presence.py        where this rank is: heartbeat, stacks, who is missing in a wait
recorder.py        puts them together
config.py          the [observe] section; rules.py what it may say
"""
