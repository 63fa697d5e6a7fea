"""What a machine is and can.

look.py         everything of `attnres doctor`: versions, devices, links, checks, speeds, what a step needs
processes.py    measuring by several processes, one a rank
speed.py        one process of the speed test; rates.py: one of those that measure a device file's rates
device.py       the device file of this machine
"""
