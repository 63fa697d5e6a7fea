"""What only a machine with GPUs can tell, as one command: `./tests/gpu.sh [--gpus N]`.

run.py       each section in a process and a time of its own, then one page
machine.py   how ranks of a section meet: on GPUs over NCCL, or, with --pretend, on CPUs under NCCL's rules
section.py   what a section finds
page.py      all sections as Markdown
never.py     what has never run on a GPU yet

The sections, in the order of the page: device (this machine's speeds), layouts, kernels, synchronization, memory (and
seconds, beside the plan's), saves, failures, profile.
"""
