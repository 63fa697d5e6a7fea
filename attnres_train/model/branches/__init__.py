"""What a sublayer may be, one file each, behind one interface (`branch.py`).

    attention.py    grouped-query self-attention with rotary positions
    mlp.py          SwiGLU MLP

To add a branch: write its class, and give the layers that have it their line in `branches_of` (choose.py).
"""
