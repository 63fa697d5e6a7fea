"""What a configuration amounts to and will cost, before any rank starts; pure functions of plain values, without torch.

whole        the plan of a run: everything below in one value
text         the same as one page, and as the object that `--json` prints; page: lines of a page
state        weights, gradients, masters, moments, and how data ranks divide them
memory       activations, depth history, buffers, and all of it for the fullest rank
traffic      bytes over every hop between pipeline stages
checkpoint   bytes of a save
groups       process groups of a rank: communicators, open files
devices      well known devices by their data sheets; device_file: one's own machine, measured
speeds       rates that a prediction rests on: measured, or assumed shares of a data sheet; which link ranks talk over
work         FLOPs and bytes of a micro-batch on a stage, by kind
simulate     a step as events, through the schedule
step_end     seconds of what follows the schedule
timing       all of it together: seconds of a step, of the run, of a save
layouts      what advice tries on a number of devices; advise: the fastest of them; advice_text: as a page or JSON
draw         a picture of the schedule; the only one that imports matplotlib
"""

from attnres_train.plan.text import as_json
from attnres_train.plan.whole import Plan, bubble_fraction, plan

__all__ = ["Plan", "as_json", "bubble_fraction", "plan"]
