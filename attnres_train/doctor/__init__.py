"""What a machine is and how fast it computes and talks: `machine` for a page, `device` for the file that a plan reads.

What is measured runs in processes of its own, one a rank (`processes`, `rank`): `speeds` of links, `rates` of all.
"""
