"""What a configuration amounts to, before any rank starts; pure functions of plain values, without torch.

whole       the plan of a run: everything below in one value
report      the same as the object that `--json` prints; text: as one page
memory      bytes of the fullest rank by kind
traffic     bytes over every hop between pipeline stages
"""

from attnres_train.plan.report import as_json
from attnres_train.plan.whole import Plan, bubble_fraction, plan

__all__ = ["Plan", "as_json", "bubble_fraction", "plan"]
