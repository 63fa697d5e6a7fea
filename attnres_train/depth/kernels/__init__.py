"""The arithmetic of the mix, one file a backend, all with the interface `mix.MixKernel`.

lean.py    plain torch operations, on any device
native.py  compiled code for the CPU: mix.cpp, which build.py compiles on first use
triton_mix.py  GPUs; checked here in Triton's interpreter
"""
