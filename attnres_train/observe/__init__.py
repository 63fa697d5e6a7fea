"""What a run reports.

metrics.py   the tags and values of a logged step; phases.py those of its time
sinks.py     metrics.jsonl and TensorBoard, each step once across resumes
console.py   log files of every rank, the lines of rank 0
claim.py     one run a folder
presence.py  where this rank is: heartbeat, stacks, who is missing in a wait
recorder.py  puts them together
config.py    the [observe] section
"""
