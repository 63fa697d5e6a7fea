"""What a run reports.

metrics.py         the tags and values of a logged step
tags.py            what each tag holds, in which unit: the words that TensorBoard shows
record_lines.py    lines of records, read back
kept_file.py       a file that may be taken away while it is written
settings_history.py  which settings were used from which step to which
sinks.py           lines of JSON, each step once across resumes; what guards training from a full disk
event_file.py      TensorBoard's files
wandb_sink.py      curves at Weights & Biases
console.py         log files of every rank, the lines of rank 0, how long a run still takes
depth_watch.py     looks at the depth while a step runs, over all ranks
depth_look.py      what a look found: plain numbers, tags, records
depth_alarms.py    what in it deserves a word, and when that is told
depth_map.py       readers by sources as a picture
depth_recorder.py  keeps looks: lines, curves, pictures, alarms
profiling.py       traces of chosen steps
claim.py           one run a folder
presence.py        where this rank is: heartbeat, stacks, who is missing in a wait
recorder.py        puts them together
config.py          the [observe] section; rules.py what it may say
"""
